// C: the loop of the C++ examples, through zero/c.h, under every stage.
//
// Two ranks, which see different samples, fit y = x^2 with one hidden layer. Beside it the program
// needs the one C++20 file optimizers.cpp; twin.cpp is the same in C++.
// prints: stage 0: loss 0.00.*stage 3: loss 0.00[0-9]+, parameters [0-9a-f]+
#include <zero/c.h>

#include <stdio.h>
#include <string.h>
enum { hidden = 16, samples = 32, tensors = 4 };
#define TRY(call) \
  if ((code = (call)) != ZERO_OK) return code

static int32_t initial(int32_t tensor, int64_t first, int64_t n, float* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < n; ++i) values[i] = (float)((first + i) * 7 % 11 + tensor) / 8 - 0.75f;
  return 0;
}

static int32_t train(zero_comm* comm, void* stage) {
  int32_t code = ZERO_OK;
  zero_tensor const model[tensors] = {ZERO_TENSOR("hidden.w", 0, hidden),
                                      ZERO_TENSOR("hidden.b", 0, hidden),
                                      ZERO_TENSOR("output.w", 1, hidden),
                                      ZERO_TENSOR("output.b", 1, 1)};
  zero_options options = zero_options_of(*(int32_t*)stage, ZERO_FP32, ZERO_ADAMW);
  options.rule.lr = 0.02;
  zero_optimizer* opt = NULL;
  TRY(zero_create(comm, &options, model, tensors, &opt));
  TRY(zero_load(opt, initial, NULL));
  double loss = 0;
  for (int step = 0; step < 300; ++step) {
    float const *w1[2], *w2[2];  // weights, bias
    float *g1[2], *g2[2], out[hidden];
    TRY(zero_parameters(opt, 0, (void const**)w1, 2));  // gathered, if they are partitioned
    TRY(zero_parameters(opt, 1, (void const**)w2, 2));
    TRY(zero_gradients(opt, 1, ZERO_ADD, (void**)g2, 2));  // zeros, to add to
    TRY(zero_gradients(opt, 0, ZERO_ADD, (void**)g1, 2));
    loss = 0;
    for (int s = 0; s < samples; ++s) {
      float const x = (float)(2 * s + zero_comm_rank(comm)) / samples - 1;
      float error = w2[1][0] - x * x;
      for (int k = 0; k < hidden; ++k) {
        out[k] = w1[0][k] * x + w1[1][k] > 0 ? w1[0][k] * x + w1[1][k] : 0;
        error += w2[0][k] * out[k];
      }
      loss += (double)(error * error) / samples;
      for (int k = 0; k < hidden; ++k) {
        g2[0][k] += 2 * error / samples * out[k];
        g1[0][k] += out[k] > 0 ? 2 * error / samples * w2[0][k] * x : 0;
        g1[1][k] += out[k] > 0 ? 2 * error / samples * w2[0][k] : 0;
      }
      g2[1][0] += 2 * error / samples;
    }
    TRY(zero_reduce(opt, 1));  // complete: may travel
    TRY(zero_reduce(opt, 0));
    TRY(zero_release(opt, 0));
    TRY(zero_release(opt, 1));
    TRY(zero_step(opt, NULL, NULL));
  }
  void const* all[tensors];
  TRY(zero_full_parameters(opt, all, tensors));
  uint32_t hash = 0, bits = 0;
  for (int t = 0; t < tensors; ++t)
    for (int64_t i = 0; i < model[t].shape[0]; ++i, hash = hash * 31 + bits)
      memcpy(&bits, (float const*)all[t] + i, sizeof(bits));
  if (zero_comm_rank(comm) != 0) return ZERO_OK;
  printf("stage %d: loss %.4f, parameters %08x\n", *(int32_t*)stage, loss, hash);
  return ZERO_OK;
}

int main(void) {
  char message[512] = "";
  for (int32_t stage = ZERO_REPLICATED; stage <= ZERO_POS_G_P; ++stage) {
    if (zero_run_ranks(2, train, &stage, message, sizeof(message)) == ZERO_OK) continue;
    fprintf(stderr, "%s\n", message);
    return 1;
  }
  return 0;
}
