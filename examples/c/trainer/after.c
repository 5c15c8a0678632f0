// A trainer in C that keeps all parameters in one flat buffer, and all gradients in another.
// Tensors of layers are stacked: their first dimension is the layer.
//
// A residual network, whose embedding is its output's matrix, too, learns which token follows a
// token. Two ranks, which share the states of AdamW and the reduced gradients.

#include <zero/c.h>

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

static int32_t train(zero_comm* comm, void* log) {
  Model model;
  model_init(&model);
  zero_tensor t[tensors] = {zero_tensor_of(names[wte], 0, 3, shapes[wte])};
  for (int i = fcw; i < tensors; ++i) t[i] = zero_stack_of(names[i], 1, 3, shapes[i]);
  zero_options const o = zero_options_of(ZERO_POS_G, ZERO_FP32, ZERO_ADAMW);
  zero_optimizer* z = NULL;
  if (zero_create_flat(comm, &o, t, tensors, model.params, model.grads, model.size, &z)) return 1;
  double first = 0, loss = 0;
  for (int step = 0; step < steps; ++step) {
    memset(model.grads, 0, (size_t)model.size * sizeof(float));
    loss = 0;
    for (int b = zero_comm_rank(comm); b < batch; b += zero_comm_size(comm)) {
      int const token = (step * 7 + b) % vocabulary;
      loss += forward_backward(&model, token, (5 * token + 3) % vocabulary, 1.f / batch) / batch;
    }
    if (zero_reduce_all_of(z, 0.5) || zero_comm_sum(comm, &loss) || zero_step(z, 0, 0)) return 1;
    if (step == 0) first = loss;
  }
  if (zero_comm_rank(comm) == 0) fprintf(log, "loss %.4f to %.4f\n", first, loss);
  model_free(&model);
  return 0;
}

int main(void) {
  for (int t = 0; t < tensors; ++t) printf("%s%s", names[t], t + 1 < tensors ? ", " : ": ");
  char message[300];
  return zero_run_ranks(2, train, stdout, message, sizeof(message)) ? puts(message) : 0;
}
