/// Policies by number: rules, a trainer's own among them, with hyper-parameters; states of 8 bits;
/// fp16 and its loss scale; micro-batches that add up; gradients that are reduced where they were
/// lent.
#include "c_api/trainer.h"

static int32_t ones(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)tensor, (void)first, (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = 1;
  return 0;
}

/// The only element after two steps whose gradient is 1.
static int two_steps(zero_comm* comm, zero_options const* options, float* value) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 1)};
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, options, model, 1, &opt) == ZERO_OK);
  REQUIRE(zero_broadcast_from(opt, ones, NULL, 0) == ZERO_OK);
  void *w = NULL, *g = NULL;
  for (int step = 0; step < 2; ++step) {
    REQUIRE(zero_gradients(opt, 0, ZERO_ADD, &g, 1) == ZERO_OK);
    *(float*)g = 1;
    REQUIRE(zero_reduce(opt, 0) == ZERO_OK);
    REQUIRE(zero_step(opt, NULL, NULL) == ZERO_OK);
  }
  REQUIRE(zero_parameter(opt, 0, &w) == ZERO_OK);
  memcpy(value, w, sizeof(*value));
  zero_destroy(opt);
  return 0;
}

static int rules(zero_comm* comm) {
  float value = 0;
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, 1000);
  options.rule.lr = 0.25;
  REQUIRE(two_steps(comm, &options, &value) == 0 && value == 0.5f);
  options.rule.beta1 = 0.5;
  REQUIRE(two_steps(comm, &options, &value) != 0);
  REQUIRE(strstr(zero_message(comm), "the rule plain has no beta1") != NULL);
  options.rule = zero_rule_of(ZERO_SGD);
  options.rule.lr = 0.25;
  options.rule.momentum = 0.5;
  REQUIRE(two_steps(comm, &options, &value) == 0 && value == 1 - 0.25f - 0.25f * 1.5f);
  options.rule.nesterov = 1;
  REQUIRE(two_steps(comm, &options, &value) == 0 && value == 1 - 0.25f * 1.5f - 0.25f * 1.75f);
  // The sums of squares are 1/4, then 7/16, whose root is 0.6614.
  options.rule = zero_rule_of(ZERO_ADAM);
  options.rule.lr = 1;
  options.rule.beta1 = 0;
  options.rule.beta2 = 0.75;
  options.rule.eps = 0.5;
  REQUIRE(two_steps(comm, &options, &value) == 0 && value < 1 - 1.33f && value > 1 - 1.34f);
  options.rule.eps_hat = 1;
  REQUIRE(two_steps(comm, &options, &value) == 0 && value < 1 - 1.069f && value > 1 - 1.070f);
  options.rule = zero_rule_of(ZERO_SGD);
  options.rule.eps_hat = 1;
  REQUIRE(two_steps(comm, &options, &value) != 0);
  REQUIRE(strstr(zero_message(comm), "has no eps_hat") != NULL);
  options.rule = zero_rule_of(1001);
  REQUIRE(two_steps(comm, &options, &value) != 0);
  REQUIRE(strstr(zero_message(comm), "the rule of number 1001; add") != NULL);
  return 0;
}

static int is_near(float a, float b) { return a - b < 1e-5f && b - a < 1e-5f; }

/// Steps that are as long as a share of the tensor.
static int ratios(zero_comm* comm) {
  float value = 0;
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, ZERO_LAMB);
  options.rule.lr = 0.25;
  options.rule.weight_decay = 0;
  REQUIRE(two_steps(comm, &options, &value) == 0 && is_near(value, 0.75f * 0.75f));
  options.rule.max_ratio = 0.5;
  REQUIRE(two_steps(comm, &options, &value) == 0 && is_near(value, 0.75f));
  options.rule.min_ratio = options.rule.max_ratio = 1;
  REQUIRE(two_steps(comm, &options, &value) == 0 && is_near(value, 0.5f));
  options.rule.trust = 0.5;
  REQUIRE(two_steps(comm, &options, &value) != 0);
  REQUIRE(strstr(zero_message(comm), "the rule LAMB has no trust") != NULL);
  options.rule = zero_rule_of(ZERO_LARS);
  options.rule.lr = 0.25;
  options.rule.momentum = 0;
  options.rule.trust = 0.5;
  REQUIRE(two_steps(comm, &options, &value) == 0 && value == 0.875f - 0.125f * 0.875f);
  options.rule = zero_rule_of(ZERO_SGD);
  options.rule.min_ratio = 1;
  REQUIRE(two_steps(comm, &options, &value) != 0);
  REQUIRE(strstr(zero_message(comm), "has no min_ratio") != NULL);
  return 0;
}

/// Adds up bytes of numbers by the number of their array: of scales there are none.
static int32_t by_array(zero_owned const* owned, void* user) {
  int64_t* const bytes = user;
  if (owned->number < 0 || owned->number > 2) return 1;
  bytes[owned->number] += owned->count * owned->element_bytes;
  return 0;
}

enum { coded = 4096, small = 512 };

/// States of 8 bits: of tensors of two precisions, but for a small one and one that says otherwise.
static int codes(zero_comm* comm) {
  zero_tensor model[4] = {ZERO_TENSOR("w", 0, coded),
                          ZERO_TENSOR("n", 0, coded),
                          ZERO_TENSOR("small", 0, small),
                          ZERO_TENSOR("full", 0, coded)};
  model[1].dtype = model[2].dtype = ZERO_DTYPE_F32;
  zero_options options = zero_options_of(ZERO_POS, ZERO_BF16_REST16, ZERO_ADAMW8BIT);
  options.others = 1;
  options.other_precisions[0] = ZERO_FP32;
  options.rule.lr = 0x1p-6;
  options.rule.weight_decay = 0;
  // A byte for each moment of an element, and of a group of 32.
  int64_t const eight = 2 * (coded + coded / 32), full = 2 * 4;
  zero_plan plan = zero_plan_of();
  for (int i = 0; i < 2; ++i) {
    model[3].flags = i == 0 ? 0 : ZERO_FULL_STATES;
    REQUIRE(zero_plan_ahead(&options, model, 4, 1, 1, &plan, NULL, 0) == ZERO_OK);
    REQUIRE(plan.held[ZERO_ROLE_STATE] ==
            2 * eight + full * small + (i == 0 ? eight : full * coded));
  }
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, &options, model, 4, &opt) == ZERO_OK);
  REQUIRE(zero_load(opt, ones, NULL) == ZERO_OK);
  void* g[4] = {NULL, NULL, NULL, NULL};
  REQUIRE(zero_gradients(opt, 0, ZERO_OVERWRITE, g, 4) == ZERO_OK);
  for (int i = 0; i < coded; ++i) {
    ((uint16_t*)g[0])[i] = ((uint16_t*)g[3])[i] = 0x3f80;
    ((float*)g[1])[i] = 1;
    if (i < small) ((float*)g[2])[i] = 1;
  }
  REQUIRE(zero_reduce(opt, 0) == ZERO_OK && zero_step(opt, NULL, NULL) == ZERO_OK);
  void* w[4];
  for (int t = 0; t < 4; ++t) REQUIRE(zero_parameter(opt, t, &w[t]) == ZERO_OK);
  for (int i = 0; i < coded; ++i) {
    // 1 - 2^-6 in bf16, as near as eps lets it be.
    REQUIRE(((uint16_t*)w[0])[i] == 0x3f7c && ((uint16_t*)w[3])[i] == 0x3f7c);
    REQUIRE(is_near(((float*)w[1])[i], 1 - 0x1p-6f));
    REQUIRE(i >= small || is_near(((float*)w[2])[i], 1 - 0x1p-6f));
  }
  int64_t bytes[3] = {0, 0, 0};
  REQUIRE(zero_visit_owned(opt, by_array, bytes) == ZERO_OK);
  for (int a = 0; a < 3; ++a) REQUIRE(bytes[a] == 4 * (3 * coded + small));
  zero_destroy(opt);
  // What is compiled in pairs is there with nothing else.
  options = zero_options_of(ZERO_POS, ZERO_FP16, ZERO_ADAMW8BIT);
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_NOT_DEFINED);
  REQUIRE(strstr(zero_message(comm), "zero::AdamW8bit with zero::Mixed<zero::fp16>; add the"));
  return 0;
}

enum { layers = 3, layer = 4100, layer_groups = 129, wide = 4096, wide_groups = 128, kinds = 3 };
/// Of each tensor and array: numbers or codes, then scales.
typedef unsigned char held_bytes[kinds][3][2][4 * layers * layer];
/// What a run is shown after two steps and after a third, which another goes on from.
typedef struct held_run {
  int32_t resumes;
  int64_t steps[layers + 2];
  held_bytes second, third;
} held_run;
/// Where a visit copies to, or a fill from.
typedef struct held_copy {
  held_bytes* bytes;
  int32_t fills;
  unsigned char bad;  ///< code that element 5 of the exp_avg of 'n' gets instead; 0 for none
  double entries;     ///< that were shown
} held_copy;

static int32_t copy_held(zero_held_array const* held, void* user) {
  char const* const names[kinds] = {"layers", "n", "small"};
  char const* const arrays[3] = {"master", "exp_avg", "exp_avg_sq"};
  int64_t const elements[kinds] = {layers * layer, wide, small};
  int64_t const groups[kinds] = {layers * layer_groups, wide_groups, 0};
  held_copy* const copy = user;
  int32_t const t = held->tensor, number = held->number;
  if (held->size != sizeof(*held) || t < 0 || t >= kinds || number < 0 || number > 2) return 1;
  if (strcmp(held->name, names[t]) != 0 || strcmp(held->array, arrays[number]) != 0) return 2;
  int const is_number = number == 0 || t == 2, scales = held->coding == ZERO_CODING_ROOT_SCALES;
  int32_t const code = number == 1 ? ZERO_CODING_ROOT : ZERO_CODING_ROOT_OF_SQUARES;
  if (held->coding != (is_number ? ZERO_CODING_VALUES : scales ? held->coding : code)) return 3;
  if (held->dtype != (is_number ? ZERO_DTYPE_F32 : ZERO_DTYPE_U8)) return 4;
  if (held->entry_bytes != (is_number ? 4 : 1)) return 5;
  if (held->first < 0 || held->first + held->count > (scales ? groups : elements)[t]) return 6;
  unsigned char* const place = (*copy->bytes)[t][number][scales] + held->first * held->entry_bytes;
  size_t const bytes = (size_t)(held->count * held->entry_bytes);
  copy->entries += (double)held->count;
  memcpy(copy->fills ? held->data : place, copy->fills ? place : held->data, bytes);
  int64_t const fifth = 5 - held->first;
  if (copy->bad == 0 || t != 1 || number != 1 || scales) return 0;
  if (fifth >= 0 && fifth < held->count) ((unsigned char*)held->data)[fifth] = copy->bad;
  return 0;
}

static int32_t varied(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = trainer_value(tensor, first + i);
  return 0;
}

/// Gradients are the same on every rank.
static int32_t held_step(zero_comm* comm, zero_optimizer* opt, int32_t number) {
  for (int32_t unit = layers; unit >= 0; --unit) {
    int32_t const tensors = unit == layers ? 2 : 1;
    void* g[2] = {NULL, NULL};
    REQUIRE(zero_gradients(opt, unit, ZERO_OVERWRITE, g, tensors) == ZERO_OK);
    for (int32_t t = 0; t < tensors; ++t) {
      int64_t const count = unit < layers ? layer : t == 0 ? wide : small;
      for (int64_t i = 0; i < count; ++i) {
        float const value = trainer_gradient(unit + t, i, 0, number) * (float)(1 + i % 7);
        trainer_put(g[t], i, value, unit < layers ? ZERO_BF16 : ZERO_FP32);
      }
    }
    REQUIRE(zero_reduce(opt, unit) == ZERO_OK);
  }
  return zero_step(opt, NULL, NULL);
}

/// Trains for three steps, or for the last of them, after codes that make no sense are refused.
static int32_t train_held(zero_comm* comm, void* user) {
  held_run* const run = user;
  int64_t const shape[2] = {layers, layer};
  zero_tensor model[kinds] = {zero_stack_of("layers", 0, 2, shape),
                              ZERO_TENSOR("n", layers, wide),
                              ZERO_TENSOR("small", layers, small)};
  model[1].dtype = model[2].dtype = ZERO_DTYPE_F32;
  zero_options options = zero_options_of(ZERO_POS, ZERO_BF16_REST16, ZERO_ADAMW8BIT);
  options.others = 1;
  options.other_precisions[0] = ZERO_FP32;
  options.seed = 7;
  options.bucket_bytes = run->resumes ? 4096 : 0;
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, &options, model, kinds, &opt) == ZERO_OK);
  static held_bytes alone;
  held_bytes* const shown = run->resumes ? &alone : &run->third;
  float scale = 1;
  int32_t streak = 0;
  if (run->resumes) {
    held_copy from = {&run->second, 1, 0x80, 0};
    REQUIRE(zero_fill_held(opt, copy_held, &from) == ZERO_INVALID_ARGUMENT);
    REQUIRE(strstr(zero_message(comm), "code for element 5 of 'exp_avg' of tensor 'n' that"));
    REQUIRE(held_step(comm, opt, 2) == ZERO_INVALID_ARGUMENT);
    REQUIRE(strstr(zero_message(comm), "are neither the old nor the new") != NULL);
    REQUIRE(zero_discard(opt) == ZERO_OK);
    from.bad = 0;
    REQUIRE(zero_fill_held(opt, copy_held, &from) == ZERO_OK);
    REQUIRE(zero_set_counters(opt, run->steps, layers + 2, 1, 0) == ZERO_OK);
  } else {
    held_copy to = {&run->second, 0, 0, 0};
    REQUIRE(zero_load(opt, varied, NULL) == ZERO_OK);
    for (int i = 0; i < 2; ++i) REQUIRE(held_step(comm, opt, i) == ZERO_OK);
    REQUIRE(zero_visit_held(opt, copy_held, &to) == ZERO_OK);
    int64_t steps[layers + 2];
    REQUIRE(zero_get_counters(opt, steps, layers + 2, &scale, &streak) == ZERO_OK);
    if (zero_comm_rank(comm) == 0) memcpy(run->steps, steps, sizeof(steps));
  }
  REQUIRE(held_step(comm, opt, 2) == ZERO_OK);
  held_copy to = {shown, 0, 0, 0};
  REQUIRE(zero_visit_held(opt, copy_held, &to) == ZERO_OK);
  REQUIRE(zero_comm_sum(comm, &to.entries) == ZERO_OK);
  REQUIRE(to.entries ==
          3 * (layers * layer + wide + small) + 2 * (layers * layer_groups + wide_groups));
  if (run->resumes) {
    for (int t = 0; t < kinds; ++t) {
      for (int a = 0; a < 3; ++a) {
        size_t const bytes = sizeof(run->third[t][a]);
        REQUIRE(memcmp(run->second[t][a], run->third[t][a], bytes) != 0);
        REQUIRE(memcmp((*shown)[t][a], run->third[t][a], bytes) == 0);
      }
    }
  }
  return zero_destroy(opt);
}

/// What two ranks were shown, codes and scales among it, a rank alone goes on from to the same
/// bits.
static int held_arrays(zero_comm* comm) {
  static held_run run;
  char message[500] = "";
  int32_t const code = zero_run_ranks(2, train_held, &run, message, sizeof(message));
  if (code != ZERO_OK) fprintf(stderr, "%s\n", message);
  run.resumes = 1;
  return code != ZERO_OK || train_held(comm, &run) != ZERO_OK;
}

/// Updates of a quarter of a bf16 step, which a remainder adds up.
static int remainders(zero_comm* comm) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 1)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_BF16_REST16, 1000);
  options.rule.lr = 0x1p-10;
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_OK);
  REQUIRE(zero_broadcast_from(opt, ones, NULL, 0) == ZERO_OK);
  // Half of it is rounded away from zero.
  uint16_t const one = 0x3f80, expected[3] = {0x3f80, 0x3f80, 0x3f7f};
  for (int step = 0; step < 3; ++step) {
    void *w = NULL, *g = NULL;
    REQUIRE(zero_gradients(opt, 0, ZERO_OVERWRITE, &g, 1) == ZERO_OK);
    memcpy(g, &one, sizeof(one));
    REQUIRE(zero_reduce(opt, 0) == ZERO_OK);
    REQUIRE(zero_step(opt, NULL, NULL) == ZERO_OK);
    REQUIRE(zero_parameter(opt, 0, &w) == ZERO_OK);
    REQUIRE(memcmp(w, &expected[step], sizeof(one)) == 0);
  }
  zero_destroy(opt);
  options.precision = ZERO_BF16_REST8;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_NOT_DEFINED);
  REQUIRE(strstr(zero_message(comm), "zero::Mixed<zero::bf16, zero::Rest8>; add it") != NULL);
  return 0;
}

enum { many = 64 };
/// Parameters after a step that moves each by half of a bf16 step.
static int half_steps(zero_comm* comm, uint64_t seed, uint16_t* values) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, many)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_BF16_STOCHASTIC, 1000);
  options.rule.lr = 0x1p-9;
  options.seed = seed;
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_OK);
  REQUIRE(zero_broadcast_from(opt, ones, NULL, 0) == ZERO_OK);
  void *w = NULL, *g = NULL;
  REQUIRE(zero_gradients(opt, 0, ZERO_OVERWRITE, &g, 1) == ZERO_OK);
  for (int i = 0; i < many; ++i) ((uint16_t*)g)[i] = 0x3f80;
  REQUIRE(zero_reduce(opt, 0) == ZERO_OK);
  REQUIRE(zero_step(opt, NULL, NULL) == ZERO_OK);
  REQUIRE(zero_parameter(opt, 0, &w) == ZERO_OK);
  memcpy(values, w, many * sizeof(*values));
  zero_destroy(opt);
  return 0;
}

/// A seed has the same bits again, and two seeds that differ in one bit have others.
static int seeds(zero_comm* comm) {
  uint16_t none[many], zero[many], low[many], again[many], high[many];
  REQUIRE(half_steps(comm, zero_options_of(0, 0, 0).seed, none) == 0);
  REQUIRE(half_steps(comm, 0, zero) == 0 && memcmp(none, zero, sizeof(zero)) == 0);
  REQUIRE(half_steps(comm, 1, low) == 0 && memcmp(low, zero, sizeof(zero)) != 0);
  REQUIRE(half_steps(comm, 1, again) == 0 && memcmp(low, again, sizeof(low)) == 0);
  REQUIRE(half_steps(comm, (uint64_t)1 << 63, high) == 0 && memcmp(high, zero, sizeof(zero)) != 0);
  REQUIRE(memcmp(high, low, sizeof(low)) != 0);
  return 0;
}

static int loss_scale(zero_comm* comm) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 1)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP16, ZERO_SGD);
  options.loss_scale = 1024;
  options.loss_scale_interval = 1;
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_OK);
  REQUIRE(zero_load(opt, ones, NULL) == ZERO_OK);
  uint16_t const values[2] = {0x7c00, 0x3c00};  // infinity, 1
  float const scales[3] = {1024, 512, 1024};
  zero_report report = zero_report_of();
  for (int step = 0; step < 2; ++step) {
    float scale = 0;
    void* g = NULL;
    REQUIRE(zero_loss_scale(opt, &scale) == ZERO_OK && scale == scales[step]);
    REQUIRE(zero_gradients(opt, 0, ZERO_OVERWRITE, &g, 1) == ZERO_OK);
    memcpy(g, &values[step], sizeof(values[step]));
    REQUIRE(zero_reduce(opt, 0) == ZERO_OK);
    REQUIRE(zero_step(opt, NULL, &report) == ZERO_OK);
    REQUIRE(report.skipped == 1 - step && report.step == step);
    REQUIRE(report.loss_scale == scales[step]);
    REQUIRE(zero_loss_scale(opt, &scale) == ZERO_OK && scale == scales[step + 1]);
  }
  return 0;
}

static int micro_batches(zero_comm* comm) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 1)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, 1000);
  options.accumulation = ZERO_ACCUMULATE_FULL;
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_OK);
  void *w = NULL, *g = NULL;
  REQUIRE(zero_parameter(opt, 0, &w) == ZERO_OK);
  *(float*)w = 2;
  REQUIRE(zero_adopt(opt) == ZERO_OK);
  REQUIRE(zero_gradients(opt, 0, ZERO_OVERWRITE, &g, 1) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "ask for ZERO_ADD") != NULL);
  for (int micro = 0; micro < 2; ++micro) {
    REQUIRE(zero_micro_step(opt, 2, micro) == ZERO_OK);
    REQUIRE(zero_gradients(opt, 0, ZERO_ADD, &g, 1) == ZERO_OK);
    *(float*)g += 1;
    REQUIRE(zero_reduce(opt, 0) == ZERO_OK);
  }
  zero_report report = zero_report_of();
  REQUIRE(zero_step(opt, NULL, &report) == ZERO_OK);
  REQUIRE(report.weight == 4 && report.grad_norm == 0.5);
  REQUIRE(*(float*)w == 1.5f);
  return 0;
}

static int in_place(zero_comm* comm) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 100)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, 1000);
  zero_plan beside = zero_plan_of(), plan = zero_plan_of();
  char message[500] = "";
  options.memory = ZERO_BORROWED;
  REQUIRE(zero_plan_ahead(&options, model, 1, 2, 1, &beside, NULL, 0) == ZERO_OK);
  options.memory = 1000;
  REQUIRE(zero_plan_ahead(&options, model, 1, 2, 1, &plan, NULL, 0) == ZERO_OK);
  REQUIRE(beside.total - plan.total >= 50 * 4);
  zero_optimizer* opt = NULL;
  float w[100], g[100];
  for (int i = 0; i < 100; ++i) w[i] = 1, g[i] = (float)i;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_OK);
  REQUIRE(zero_bind_flat(opt, w, g, 100) == ZERO_OK && zero_adopt(opt) == ZERO_OK);
  REQUIRE(zero_step(opt, NULL, NULL) == ZERO_OK);
  for (int i = 0; i < 100; ++i) REQUIRE(w[i] == 1 - (float)i);
  // What the library does not compile is not offered.
  options.accumulation = ZERO_ACCUMULATE_SHARD;
  REQUIRE(zero_plan_ahead(&options, model, 1, 2, 1, &plan, message, sizeof(message)) ==
          ZERO_NOT_DEFINED);
  REQUIRE(strstr(message, "BorrowedInPlace has no room for the sums"));
  options.memory = ZERO_BORROWED;
  REQUIRE(zero_plan_ahead(&options, model, 1, 2, 1, &plan, NULL, 0) == ZERO_OK);
  return 0;
}

static int32_t thirds(int32_t tensor, int64_t first, int64_t count, double* values, void* user) {
  (void)tensor, (void)first, (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = 1. / 3;
  return 0;
}

static int doubles(zero_comm* comm) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 1)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP64, ZERO_SGD);
  options.rule.momentum = 0;
  zero_optimizer* opt = NULL;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_OK);
  void *w = NULL, *g = NULL;
  REQUIRE(zero_parameter(opt, 0, &w) == ZERO_OK);
  double* const value = w;
  // Values that float would round keep their digits, from a function and from the root.
  REQUIRE(zero_load_double(opt, thirds, NULL) == ZERO_OK && *value == 1. / 3);
  REQUIRE(zero_load(opt, ones, NULL) == ZERO_OK && *value == 1);
  REQUIRE(zero_broadcast_from_double(opt, thirds, NULL, 0) == ZERO_OK && *value == 1. / 3);
  REQUIRE(zero_load_double(opt, NULL, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(zero_set_lr_double(opt, NULL, 0.1) == ZERO_OK);
  REQUIRE(zero_gradients(opt, 0, ZERO_ADD, &g, 1) == ZERO_OK);
  *(double*)g = 1;
  REQUIRE(zero_reduce(opt, 0) == ZERO_OK);
  REQUIRE(zero_step(opt, NULL, NULL) == ZERO_OK && *value == 1. / 3 - 0.1);
  zero_destroy(opt);
  // A precision in float rounds them.
  options.precision = ZERO_FP32;
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_OK);
  REQUIRE(zero_parameter(opt, 0, &w) == ZERO_OK);
  REQUIRE(zero_load_double(opt, thirds, NULL) == ZERO_OK && *(float*)w == (float)(1. / 3));
  zero_destroy(opt);
  // A rule of float is not offered in double.
  options = zero_options_of(ZERO_POS, ZERO_FP64, 1000);
  REQUIRE(zero_create(comm, &options, model, 1, &opt) == ZERO_NOT_DEFINED);
  REQUIRE(strstr(zero_message(comm), "doubles need a rule in double") != NULL);
  return 0;
}

int main(void) {
  zero_comm* comm = NULL;
  if (every_function(0) == NULL || zero_self(&comm, NULL, 0) != ZERO_OK) return 1;
  int const failed = rules(comm) + ratios(comm) + codes(comm) + held_arrays(comm) +
                     remainders(comm) + seeds(comm) + loss_scale(comm) + micro_batches(comm) +
                     in_place(comm) + doubles(comm);
  // Ends the optimizers that are left.
  return failed + (zero_comm_close(comm, NULL, 0) == ZERO_OK ? 0 : 1);
}
