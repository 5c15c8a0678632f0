// A trainer in C that keeps all parameters in one flat buffer, and all gradients in another.
// Tensors of layers are stacked: their first dimension is the layer.
//
// A residual network, whose embedding is its output's matrix, too, learns which token follows a
// token. One process, and AdamW by hand.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { vocabulary = 24, channels = 16, hidden = 32, layers = 3, batch = 32, steps = 600 };
enum { wte, fcw, fcb, projw, projb, tensors };

static char const* const names[tensors] = {"wte", "fcw", "fcb", "projw", "projb"};
static int64_t const shapes[tensors][3] = {{vocabulary, channels, 1},
                                           {layers, hidden, channels},
                                           {layers, hidden, 1},
                                           {layers, channels, hidden},
                                           {layers, channels, 1}};

typedef struct Model {
  int64_t size;           // elements of all tensors together
  float* params;          // [size]
  float* grads;           // [size]
  float *m, *v;           // [size] each: moments of AdamW
  float* param[tensors];  // where each lies in params
  float* grad[tensors];
} Model;

static void model_init(Model* model) {
  memset(model, 0, sizeof(*model));
  int64_t offset[tensors];
  for (int t = 0; t < tensors; ++t) {
    offset[t] = model->size;
    model->size += shapes[t][0] * shapes[t][1] * shapes[t][2];
  }
  model->params = calloc((size_t)model->size, sizeof(float));
  model->grads = calloc((size_t)model->size, sizeof(float));
  model->m = calloc((size_t)model->size, sizeof(float));
  model->v = calloc((size_t)model->size, sizeof(float));
  uint32_t random = 1;
  for (int64_t i = 0; i < model->size; ++i) {
    random = random * 1664525u + 1013904223u;
    model->params[i] = ((float)(random >> 8) / 8388608.f - 1.f) / 4.f;
  }
  for (int t = 0; t < tensors; ++t) {
    model->param[t] = model->params + offset[t];
    model->grad[t] = model->grads + offset[t];
  }
}

static void model_free(Model* model) {
  free(model->params);
  free(model->grads);
  free(model->m);
  free(model->v);
}

// out += w in, for a matrix of [rows][columns].
static void multiply(float* out, float const* w, float const* in, int rows, int columns) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) out[r] += w[r * columns + c] * in[c];
  }
}

// Its gradients: din += w^T dout, dw += dout in^T.
static void multiply_backward(float* din,
                              float* dw,
                              float const* w,
                              float const* in,
                              float const* dout,
                              int rows,
                              int columns) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      din[c] += w[r * columns + c] * dout[r];
      dw[r * columns + c] += dout[r] * in[c];
    }
  }
}

// Adds scale times the gradients of one sample; returns its loss.
static double forward_backward(Model* model, int token, int target, float scale) {
  float x[layers + 1][channels], h[layers][hidden], logits[vocabulary] = {0};
  memcpy(x[0], model->param[wte] + token * channels, sizeof(x[0]));
  for (int l = 0; l < layers; ++l) {
    memcpy(h[l], model->param[fcb] + l * hidden, sizeof(h[l]));
    multiply(h[l], model->param[fcw] + l * hidden * channels, x[l], hidden, channels);
    for (int k = 0; k < hidden; ++k) h[l][k] = h[l][k] > 0 ? h[l][k] : 0;
    for (int c = 0; c < channels; ++c)
      x[l + 1][c] = x[l][c] + model->param[projb][l * channels + c];
    multiply(x[l + 1], model->param[projw] + l * channels * hidden, h[l], channels, hidden);
  }
  multiply(logits, model->param[wte], x[layers], vocabulary, channels);
  double sum = 0;
  for (int v = 0; v < vocabulary; ++v) sum += exp(logits[v]);
  double const loss = log(sum) - logits[target];

  float dlogits[vocabulary], dx[channels] = {0};
  for (int v = 0; v < vocabulary; ++v) {
    dlogits[v] = scale * ((float)(exp(logits[v]) / sum) - (v == target ? 1.f : 0.f));
  }
  multiply_backward(
      dx, model->grad[wte], model->param[wte], x[layers], dlogits, vocabulary, channels);
  for (int l = layers - 1; l >= 0; --l) {
    float dh[hidden] = {0};
    int64_t const fc = l * hidden * channels, proj = l * channels * hidden;
    for (int c = 0; c < channels; ++c) model->grad[projb][l * channels + c] += dx[c];
    multiply_backward(
        dh, model->grad[projw] + proj, model->param[projw] + proj, h[l], dx, channels, hidden);
    for (int k = 0; k < hidden; ++k) dh[k] = h[l][k] > 0 ? dh[k] : 0;
    for (int k = 0; k < hidden; ++k) model->grad[fcb][l * hidden + k] += dh[k];
    multiply_backward(
        dx, model->grad[fcw] + fc, model->param[fcw] + fc, x[l], dh, hidden, channels);
  }
  for (int c = 0; c < channels; ++c) model->grad[wte][token * channels + c] += dx[c];
  return loss;
}

// AdamW.
static void update(
    Model* model, float lr, float beta1, float beta2, float eps, float decay, int t) {
  for (int64_t i = 0; i < model->size; ++i) {
    float const g = model->grads[i];
    model->m[i] = beta1 * model->m[i] + (1.f - beta1) * g;
    model->v[i] = beta2 * model->v[i] + (1.f - beta2) * g * g;
    float const m_hat = model->m[i] / (1.f - powf(beta1, (float)t));
    float const v_hat = model->v[i] / (1.f - powf(beta2, (float)t));
    model->params[i] -= lr * (m_hat / (sqrtf(v_hat) + eps) + decay * model->params[i]);
  }
}

static int train(FILE* log) {
  Model model;
  model_init(&model);
  double first = 0, loss = 0;
  for (int step = 0; step < steps; ++step) {
    memset(model.grads, 0, (size_t)model.size * sizeof(float));
    loss = 0;
    for (int b = 0; b < batch; ++b) {
      int const token = (step * 7 + b) % vocabulary;
      loss += forward_backward(&model, token, (5 * token + 3) % vocabulary, 1.f / batch) / batch;
    }
    update(&model, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f, step + 1);
    if (step == 0) first = loss;
  }
  fprintf(log, "loss %.4f to %.4f\n", first, loss);
  model_free(&model);
  return 0;
}

int main(void) {
  for (int t = 0; t < tensors; ++t) printf("%s%s", names[t], t + 1 < tensors ? ", " : ": ");
  return train(stdout);
}
