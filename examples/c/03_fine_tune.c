// C: tensors of several types. The frozen base is in 8 bits, a matrix in bf16 and the rest in fp32.
//
// Two ranks fit y = x^2 by what follows a frozen layer, under every stage. Under ZERO_POS_G_P each
// of them holds half of the base. Beside it the program needs the C++20 file optimizers.cpp.
// prints: stage 0: loss 0.00.*stage 3: loss 0.00[0-9]+, parameters [0-9a-f]+, a rank holds
#include <zero/c.h>

#include <stdio.h>
#include <string.h>
enum { hidden = 512, samples = 32, base_w = 0, base_b, gain, output_w, output_b, tensors };
#define TRY(call) \
  if ((code = (call)) != ZERO_OK) return code

static float from_bf16(uint16_t half) {
  uint32_t const bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
static uint16_t to_bf16(float value) {  // to the nearest, or to even
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A real trainer reads these from a file: of each tensor, a rank is asked for its share.
static int32_t codes(int32_t tensor, int64_t first, int64_t n, uint8_t* bytes, void* user) {
  (void)user;
  for (int64_t i = 0; i < n; ++i) bytes[i] = (uint8_t)((first + i) * (tensor ? 29 : 37) % 255);
  return 0;
}
static int32_t initial(int32_t tensor, int64_t first, int64_t n, float* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < n; ++i) values[i] = tensor == gain ? 1 : (float)((first + i) % 5) / 64;
  return 0;
}

static int32_t train(zero_comm* comm, void* stage) {
  int32_t code = ZERO_OK;
  zero_tensor model[tensors] = {ZERO_TENSOR("base.w", 0, hidden),
                                ZERO_TENSOR("base.b", 0, hidden),
                                ZERO_TENSOR("gain", 0, hidden),
                                ZERO_TENSOR("output.w", 0, hidden),
                                ZERO_TENSOR("output.b", 0, 1)};
  model[base_w].dtype = model[base_b].dtype = ZERO_DTYPE_I8;  // bytes, which only you interpret
  model[base_w].flags = model[base_b].flags = ZERO_FROZEN;
  model[gain].dtype = model[output_b].dtype = ZERO_DTYPE_F32;
  zero_options options = zero_options_of(*(int32_t*)stage, ZERO_BF16, ZERO_ADAMW);
  options.others = 1;  // for tensors that say another type than that of ZERO_BF16
  options.other_precisions[0] = ZERO_FP32;
  options.rule.lr = 0.01;
  zero_optimizer* opt = NULL;
  TRY(zero_create(comm, &options, model, tensors, &opt));
  TRY(zero_load(opt, initial, NULL));      // numbers
  TRY(zero_load_bytes(opt, codes, NULL));  // bytes
  double loss = 0;
  for (int step = 0; step < 300; ++step) {
    void const* p[tensors];
    void* g[tensors];  // null for what is frozen
    TRY(zero_parameters(opt, 0, p, tensors));
    TRY(zero_gradients(opt, 0, ZERO_OVERWRITE, g, tensors));
    int8_t const *w = p[base_w], *b = p[base_b];
    float const* scale = p[gain];
    uint16_t const* weights = p[output_w];
    float of_scale[hidden] = {0}, of_weight[hidden] = {0}, out[hidden], of_bias = 0;
    loss = 0;
    for (int s = 0; s < samples; ++s) {
      float const x = (float)(2 * s + zero_comm_rank(comm)) / samples - 1;
      float error = *(float const*)p[output_b] - x * x;
      for (int k = 0; k < hidden; ++k) {
        float const sum = (float)w[k] / 64 * x + (float)b[k] / 128;
        out[k] = sum > 0 ? sum : 0;
        error += from_bf16(weights[k]) * scale[k] * out[k];
      }
      loss += (double)(error * error) / samples;
      for (int k = 0; k < hidden; ++k) {
        of_scale[k] += 2 * error / samples * from_bf16(weights[k]) * out[k];
        of_weight[k] += 2 * error / samples * scale[k] * out[k];
      }
      of_bias += 2 * error / samples;
    }
    for (int k = 0; k < hidden; ++k) ((uint16_t*)g[output_w])[k] = to_bf16(of_weight[k]);
    memcpy(g[gain], of_scale, sizeof(of_scale));
    *(float*)g[output_b] = of_bias;
    TRY(zero_reduce(opt, 0));
    TRY(zero_release(opt, 0));
    TRY(zero_step(opt, NULL, NULL));
  }
  void const* all[tensors];
  TRY(zero_full_parameters(opt, all, tensors));
  int64_t held[ZERO_ROLES];
  TRY(zero_held(opt, held));
  uint32_t hash = 0;
  int const sizes[tensors] = {hidden, hidden, 4 * hidden, 2 * hidden, 4};
  for (int t = 0; t < tensors; ++t)
    for (int i = 0; i < sizes[t]; ++i) hash = hash * 31 + ((uint8_t const*)all[t])[i];
  if (zero_comm_rank(comm) != 0) return ZERO_OK;
  printf("stage %d: loss %.4f, parameters %08x, a rank holds %d bytes of parameters\n",
         *(int32_t*)stage,
         loss,
         hash,
         (int)held[ZERO_ROLE_PARAMETERS]);
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
