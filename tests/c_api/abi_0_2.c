/// A trainer of version 0.2, compiled against the headers that 0.2 had, in abi_0_2, and linked with
/// the library of today: structs and symbols are what they were. It stays as it is. Takes a
/// directory.
#include <zero/c.h>
#include <zero/c_checkpoint.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { rows = 5, columns = 8, elements = rows * columns, layers = 2, bias = 3 };

#define REQUIRE(condition)                                                       \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "%d: %s: %s\n", __LINE__, #condition, zero_message(comm)); \
      return ZERO_UNKNOWN;                                                       \
    }                                                                            \
  } while (0)

/// Where runs leave files, and what the first had at its end.
typedef struct job {
  char checkpoints[500];
  char model[500];
  float result[elements];
} job;

/// The model: a matrix in a group, a stack of two layers, a bias that is frozen, and one tied.
static int32_t create(zero_comm* comm, int32_t stage, zero_optimizer** opt) {
  int64_t const matrix[2] = {rows, columns}, stack[2] = {layers, columns}, vector[1] = {bias};
  zero_tensor model[4] = {zero_tensor_of("w", 0, 2, matrix),
                          zero_stack_of("layers", 1, 2, stack),
                          zero_tensor_of("b", 3, 1, vector),
                          zero_tensor_of("tied", 3, 2, matrix)};
  model[0].group = model[3].group = "weights";
  model[0].learning_rate = model[3].learning_rate = 0.5f;
  model[1].weight_decay = 0;
  model[2].flags = ZERO_FROZEN;
  model[3].tied_to = "w";
  zero_options options = zero_options_of(stage, ZERO_FP32, ZERO_ADAMW);
  options.bucket_bytes = 256;
  options.prefetch = 2;
  options.rule.lr = 0.0625;
  options.rule.beta2 = 0.75;
  options.rule.weight_decay = 0.125;
  options.rule.maximize = 0;
  zero_plan ahead = zero_plan_of(), plan = zero_plan_of();
  int32_t const ranks = zero_comm_size(comm);
  char message[300] = "";
  int32_t const code =
      zero_plan_ahead(&options, model, 4, ranks, 1, &ahead, message, sizeof(message));
  if (code != ZERO_OK) fprintf(stderr, "%s\n", message);
  REQUIRE(code == ZERO_OK);
  REQUIRE(zero_create(comm, &options, model, 4, opt) == ZERO_OK);
  REQUIRE(zero_get_plan(*opt, 1, &plan) == ZERO_OK);
  REQUIRE(plan.trained_elements == elements + layers * columns);
  REQUIRE(plan.trained_elements == ahead.trained_elements);
  REQUIRE(plan.sent_elements == ahead.sent_elements && plan.sent_bytes == 4 * plan.sent_elements);
  int64_t held[ZERO_ROLES], total = 0;
  REQUIRE(zero_held(*opt, held) == ZERO_OK);
  REQUIRE(memcmp(held, plan.held, sizeof(held)) == 0);
  for (int i = 0; i < ZERO_ROLES; ++i) total += held[i];
  REQUIRE(total == plan.total && held[ZERO_ROLE_STATE] >= 8 * plan.trained_elements / ranks);
  return ZERO_OK;
}

static int32_t fill(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = (float)(tensor * 64 + first + i) / 64;
  return 0;
}

/// Counts elements of masters and of both states, and finds masters that are no numbers.
static int32_t count(zero_owned const* owned, void* user) {
  char const* const names[3] = {"master", "exp_avg", "exp_avg_sq"};
  if (owned->size != (int64_t)sizeof(*owned) || owned->element_bytes != sizeof(float)) return 1;
  if (owned->number < 0 || owned->number > 2) return 2;
  if (strcmp(owned->array, names[owned->number]) != 0) return 3;
  if (strcmp(owned->name, owned->tensor == 0 ? "w" : "layers") != 0) return 4;
  if (owned->first < 0 || owned->first + owned->count > elements) return 5;
  for (int64_t i = 0; i < owned->count; ++i) {
    if (!(fabsf(((float const*)owned->data)[i]) < 10)) return 6;
  }
  ((int64_t*)user)[owned->number] += owned->count;
  return 0;
}

/// A step, whose mean gradient has the norm `norm` before it is clipped.
static int32_t step(zero_comm* comm, zero_optimizer* opt, float norm, zero_report* report) {
  for (int32_t unit = 3; unit >= 0; --unit) {
    void* gradients[2] = {NULL, NULL};
    int32_t const tensors = unit == 3 ? 2 : 1;
    REQUIRE(zero_gradients(opt, unit, ZERO_ADD, gradients, tensors) == ZERO_OK);
    REQUIRE(unit != 3 || gradients[0] == NULL);
    if (unit == 0) ((float*)gradients[0])[9] = 0.6f * norm;
    if (unit == 2) ((float*)gradients[0])[1] = 0.8f * norm;
    REQUIRE(zero_reduce(opt, unit) == ZERO_OK);
  }
  zero_step_options options = zero_step_options_of();
  options.max_norm = 2;
  options.learning_rate = 0.03125;
  options.skip_non_finite = 1;
  options.stop = zero_comm_rank(comm) == 0 && norm > 4;
  return zero_step(opt, &options, report);
}

/// Trains, saves and exports.
static int32_t train(zero_comm* comm, void* user) {
  job* const j = user;
  zero_optimizer* opt = NULL;
  zero_checkpoints* saved = NULL;
  zero_report report = zero_report_of();
  REQUIRE(create(comm, ZERO_POS, &opt) == ZERO_OK);
  REQUIRE(zero_load(opt, fill, NULL) == ZERO_OK);
  REQUIRE(zero_set_lr(opt, "weights", 0.25f) == ZERO_OK);
  for (int i = 1; i < 4; ++i) {
    REQUIRE(step(comm, opt, (float)(2 * i), &report) == ZERO_OK);
    REQUIRE(report.step == i && report.weight == zero_comm_size(comm));
    REQUIRE(fabs(report.grad_norm - 2 * i) < 1e-5 && report.loss_scale == 1);
    REQUIRE(fabs(report.clip_coefficient - 1. / i) < 1e-5);
    REQUIRE(report.skipped == 0 && report.stop == (i == 3));
  }
  zero_rule rule = zero_rule_of(ZERO_AMSGRAD);
  REQUIRE(zero_set_rule(opt, NULL, &rule) == ZERO_INVALID_ARGUMENT);
  int64_t seen[3] = {0, 0, 0};
  REQUIRE(zero_visit_owned(opt, count, seen) == ZERO_OK);
  REQUIRE(seen[0] > 0 && seen[0] == seen[1] && seen[0] == seen[2]);
  zero_checkpoints_options options = zero_checkpoints_options_of();
  options.keep = 1;
  REQUIRE(zero_checkpoints_open_with(comm, j->checkpoints, &options, &saved) == ZERO_OK);
  REQUIRE(zero_checkpoint_save(saved, opt, "blob", 4) == ZERO_OK);
  char const* const metadata[2] = {"of", "0.2"};
  zero_export_options export = zero_export_options_of();
  export.metadata = metadata;
  export.metadata_count = 1;
  export.dtype = ZERO_EXPORT_MASTER;
  int64_t bytes = 0;
  REQUIRE(zero_export_model(opt, j->model, &export, NULL, 0, &bytes) == ZERO_OK);
  REQUIRE(bytes > 4 * elements);
  void const* all[4];
  REQUIRE(zero_full_parameters(opt, all, 4) == ZERO_OK && all[3] == all[0]);
  if (zero_comm_rank(comm) == 0) memcpy(j->result, all[0], sizeof(j->result));
  return zero_release_full(opt);
}

/// Is the matrix what the first run had at its end?
static int same(zero_optimizer* opt, job const* j) {
  void const* all[4];
  if (zero_full_parameters(opt, all, 4) != ZERO_OK) return 0;
  int const found = memcmp(all[0], j->result, sizeof(j->result)) == 0;
  return zero_release_full(opt) == ZERO_OK && found;
}

/// Loads the checkpoint and the model file, under another stage.
static int32_t go_on(zero_comm* comm, void* user) {
  job* const j = user;
  zero_optimizer* opt = NULL;
  zero_checkpoints* saved = NULL;
  int64_t found = -1, bytes = 0;
  char blob[4] = "";
  REQUIRE(create(comm, ZERO_POS_G_P, &opt) == ZERO_OK);
  REQUIRE(zero_checkpoints_open(comm, j->checkpoints, 1, &saved) == ZERO_OK);
  zero_load_options load = zero_load_options_of();
  zero_differences differences = zero_differences_of();
  load.verify_first = 1;
  REQUIRE(zero_checkpoint_load_with(saved, opt, &load, &differences, &found) == ZERO_OK);
  REQUIRE(found == 3 && differences.missing + differences.unexpected + differences.unfit == 0);
  REQUIRE(zero_checkpoint_blob(saved, blob, sizeof(blob), &bytes) == ZERO_OK && bytes == 4);
  REQUIRE(memcmp(blob, "blob", 4) == 0 && same(opt, j));
  zero_report report = zero_report_of();
  REQUIRE(step(comm, opt, 1, &report) == ZERO_OK && report.step == 4);
  REQUIRE(!same(opt, j));
  // A tensor that is missing is counted, and keeps its values.
  char const* const names[2] = {"layers", "elsewhere"};
  zero_import_options import = zero_import_options_of();
  import.names = names;
  import.names_count = 1;
  REQUIRE(zero_import_model(opt, j->model, &import, NULL) == ZERO_DATA);
  import.strict = 0;
  REQUIRE(zero_import_model(opt, j->model, &import, &differences) == ZERO_OK);
  REQUIRE(differences.missing == 1 && differences.unexpected == 1 && differences.unfit == 0);
  REQUIRE(same(opt, j));
  return zero_destroy(opt);
}

int main(int arguments, char** argument) {
  static job j;
  char message[1000] = "";
  if (arguments != 2) return 1;
  snprintf(j.checkpoints, sizeof(j.checkpoints), "%s/run", argument[1]);
  snprintf(j.model, sizeof(j.model), "%s/model.safetensors", argument[1]);
  int32_t code = zero_run_ranks(2, train, &j, message, sizeof(message));
  if (code == ZERO_OK) code = zero_run_ranks(2, go_on, &j, message, sizeof(message));
  if (code != ZERO_OK) fprintf(stderr, "%s\n", message);
  return code == ZERO_OK ? 0 : 1;
}
