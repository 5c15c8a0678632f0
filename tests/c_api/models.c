/// Model files through zero/c_checkpoint.h: what some ranks export, others import under another
/// stage, with other names, or in part. Takes a directory.
#include "c_api/trainer.h"
#include "zero/c_checkpoint.h"

enum { rows = 7, columns = 11, elements = rows * columns, bias = 5 };

/// What a rank exports or imports, and with what.
typedef struct exchange {
  char const* path;
  int32_t precision;
  int32_t dtype;
  char written[1000];
} exchange;

static float value(int32_t tensor, int64_t i) { return (float)(tensor * 100 + i) / 3; }

static int32_t fill(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = value(tensor, first + i);
  return 0;
}
static int32_t zeros(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)tensor, (void)first, (void)user;
  memset(values, 0, (size_t)count * sizeof(float));
  return 0;
}

/// Models of two tensors, the second of another name and size.
static int32_t begin(zero_comm* comm,
                     int32_t stage,
                     int32_t precision,
                     char const* second,
                     int64_t size,
                     zero_optimizer** opt) {
  zero_tensor const model[2] = {ZERO_TENSOR("w", 0, rows, columns), ZERO_TENSOR(second, 1, size)};
  zero_options options = zero_options_of(stage, precision, ZERO_ADAMW);
  options.bucket_bytes = 512;
  return zero_create(comm, &options, model, 2, opt);
}

static int32_t save(zero_comm* comm, void* user) {
  exchange* const e = user;
  zero_optimizer* opt = NULL;
  char const* const metadata[4] = {"author", "somebody else", "format", "np"};
  char written[1000] = "";
  int64_t bytes = 0;
  zero_export_options options = zero_export_options_of();
  REQUIRE(begin(comm, ZERO_POS, e->precision, "b", bias, &opt) == ZERO_OK);
  REQUIRE(zero_export_model(opt, e->path, NULL, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "load_parameters(values)") != NULL);
  REQUIRE(zero_load(opt, fill, NULL) == ZERO_OK);

  REQUIRE(zero_export_model(opt, NULL, NULL, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  options.dtype = 7;
  REQUIRE(zero_export_model(opt, e->path, &options, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "there is no dtype 7") != NULL);
  options = zero_export_options_of();
  options.max_file_bytes = -1;
  REQUIRE(zero_export_model(opt, e->path, &options, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  options = zero_export_options_of();
  options.metadata_count = 1;
  REQUIRE(zero_export_model(opt, e->path, &options, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "metadata is null") != NULL);
  options.metadata = metadata;
  options.size = 8;
  REQUIRE(zero_export_model(opt, e->path, &options, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "a zero_export_options says it has 8 bytes") != NULL);

  options.size = sizeof(options);
  options.metadata_count = 2;
  options.dtype = e->dtype;
  // So that each tensor has a file of its own.
  if (e->dtype == ZERO_EXPORT_MASTER) options.max_file_bytes = elements * 4;
  REQUIRE(zero_export_model(opt, e->path, &options, written, sizeof(written), &bytes) == ZERO_OK);
  int64_t const width = e->precision == ZERO_FP32 || e->dtype == ZERO_EXPORT_MASTER ? 4 : 2;
  REQUIRE(bytes > (elements + bias) * width && bytes < (elements + bias) * width + 1000);
  if (zero_comm_rank(comm) == 0) memcpy(e->written, written, sizeof(written));
  return ZERO_OK;
}

/// Are all values of a tensor those that were saved, or all 0?
static int32_t holds(zero_comm* comm, zero_optimizer* opt, int32_t tensor, int32_t saved) {
  void const* all[2] = {NULL, NULL};
  REQUIRE(zero_full_parameters(opt, all, 2) == ZERO_OK);
  for (int64_t i = 0; i < (tensor == 0 ? elements : bias); ++i) {
    REQUIRE(((float const*)all[tensor])[i] == (saved ? value(tensor, i) : 0));
  }
  return zero_release_full(opt);
}

static int32_t load(zero_comm* comm, void* user) {
  char const* const path = ((exchange const*)user)->written;
  zero_optimizer *same = NULL, *renamed = NULL, *other = NULL;
  zero_differences found = zero_differences_of();
  REQUIRE(begin(comm, ZERO_POS_G_P, ZERO_FP32, "b", bias, &same) == ZERO_OK);
  REQUIRE(zero_import_model(same, NULL, NULL, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(zero_import_model(same, "/there/is/none", NULL, NULL) == ZERO_RESOURCE);
  REQUIRE(zero_import_model(same, path, NULL, &found) == ZERO_OK);
  REQUIRE(holds(comm, same, 0, 1) == ZERO_OK && holds(comm, same, 1, 1) == ZERO_OK);
  REQUIRE(found.missing == 0 && found.unexpected == 0 && found.unfit == 0);
  REQUIRE(zero_destroy(same) == ZERO_OK);

  REQUIRE(begin(comm, ZERO_POS, ZERO_FP32, "bias", bias, &renamed) == ZERO_OK);
  REQUIRE(zero_load(renamed, zeros, NULL) == ZERO_OK);
  zero_import_options options = zero_import_options_of();
  REQUIRE(zero_import_model(renamed, path, NULL, &found) == ZERO_DATA);
  REQUIRE(strstr(zero_message(comm), "not in the file: 'bias'; not in the optimizer: 'b'") != NULL);
  REQUIRE(holds(comm, renamed, 0, 0) == ZERO_OK);
  options.strict = 0;
  REQUIRE(zero_import_model(renamed, path, &options, &found) == ZERO_OK);
  REQUIRE(found.missing == 1 && found.unexpected == 1 && found.unfit == 0);
  REQUIRE(strstr(zero_message(comm), "zero: left out: not in the file: 'bias'") != NULL);
  REQUIRE(holds(comm, renamed, 0, 1) == ZERO_OK && holds(comm, renamed, 1, 0) == ZERO_OK);
  char const* const names[4] = {"b", "bias", "b", "c"};
  options = zero_import_options_of();
  options.names = names;
  options.names_count = 2;
  REQUIRE(zero_import_model(renamed, path, &options, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "names have 'b' twice") != NULL);
  options.names_count = -1;
  REQUIRE(zero_import_model(renamed, path, &options, NULL) == ZERO_INVALID_ARGUMENT);
  options.names_count = 1;
  options.reserved = 1;
  REQUIRE(zero_import_model(renamed, path, &options, NULL) == ZERO_INVALID_ARGUMENT);
  options.reserved = 0;
  found.size = 0;
  REQUIRE(zero_import_model(renamed, path, &options, &found) == ZERO_INVALID_ARGUMENT);
  REQUIRE(zero_import_model(renamed, path, &options, NULL) == ZERO_OK);
  REQUIRE(holds(comm, renamed, 1, 1) == ZERO_OK);

  found = zero_differences_of();
  options = zero_import_options_of();
  options.strict = 0;
  REQUIRE(begin(comm, ZERO_POS, ZERO_FP32, "b", bias + 1, &other) == ZERO_OK);
  REQUIRE(zero_load(other, zeros, NULL) == ZERO_OK);
  REQUIRE(zero_import_model(other, path, &options, &found) == ZERO_OK);
  REQUIRE(found.missing == 0 && found.unexpected == 0 && found.unfit == 1);
  REQUIRE(strstr(zero_message(comm), "'b' has shape [6] here and [5] in the file") != NULL);
  return ZERO_OK;
}

/// 3.4e38 in one element, which float holds and bf16 does not.
static int32_t large(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = tensor == 0 && first + i == 3 ? 3.4e38f : 1;
  return 0;
}
/// And a number that float does not hold.
static int32_t larger(int32_t tensor, int64_t first, int64_t count, double* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = tensor == 0 && first + i == 3 ? -1e300 : 1;
  return 0;
}
/// Sets masters of the first tensor to that.
static int32_t enlarge(zero_owned const* owned, void* user) {
  (void)user;
  for (int64_t i = 0; i < owned->count && owned->number == 0 && owned->tensor == 0; ++i) {
    ((float*)owned->data)[i] = owned->first + i == 3 ? 3.4e38f : 1;
  }
  return 0;
}
/// Finds masters that are not 1, or what they were to be.
static int32_t find(zero_owned const* owned, void* user) {
  float const wanted = *(float const*)user;
  for (int64_t i = 0; i < owned->count && owned->number == 0; ++i) {
    float const expected = owned->tensor == 0 && owned->first + i == 3 ? wanted : 1;
    if (((float const*)owned->data)[i] != expected) return 1;
  }
  return 0;
}
static int32_t refused(zero_comm* comm, int32_t code, char const* value) {
  char words[200];
  snprintf(words,
           sizeof(words),
           "element 3 of tensor 'w' is %s, which would become infinite in bf16; with overflow = "
           "saturate",
           value);
  REQUIRE(code == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), words) != NULL);
  return ZERO_OK;
}
static int32_t saturated(zero_comm* comm, zero_optimizer* opt, int32_t code, float wanted) {
  REQUIRE(code == ZERO_OK);
  REQUIRE(zero_visit_owned(opt, find, &wanted) == ZERO_OK);
  return zero_load(opt, zeros, NULL);
}

/// Values that do not fit, by all calls that take some: refused, or saturated where that is said.
static int32_t overflow(zero_comm* comm, void* user) {
  char const* const path = ((exchange const*)user)->path;
  char directory[1000];
  snprintf(directory, sizeof(directory), "%s.run", path);
  zero_tensor const model[2] = {ZERO_TENSOR("w", 0, rows, columns), ZERO_TENSOR("b", 1, bias)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, ZERO_SGD);
  zero_optimizer *wide = NULL, *refuses = NULL, *saturates = NULL;
  zero_checkpoints* saved = NULL;
  zero_import_options import = zero_import_options_of();
  zero_load_options load_options = zero_load_options_of();
  zero_export_options export = zero_export_options_of();
  import.overflow = load_options.overflow = export.overflow = ZERO_OVERFLOW_SATURATE;
  int64_t step = -1;
  REQUIRE(zero_create(comm, &options, model, 2, &wide) == ZERO_OK);
  options.precision = ZERO_BF16;
  REQUIRE(zero_create(comm, &options, model, 2, &refuses) == ZERO_OK);
  options.overflow = 2;
  REQUIRE(zero_create(comm, &options, model, 2, &saturates) == ZERO_INVALID_ARGUMENT);
  options.overflow = ZERO_OVERFLOW_SATURATE;
  REQUIRE(zero_create(comm, &options, model, 2, &saturates) == ZERO_OK);
  REQUIRE(zero_load(refuses, zeros, NULL) == ZERO_OK);
  REQUIRE(zero_load(wide, large, NULL) == ZERO_OK);
  REQUIRE(zero_export_model(wide, path, NULL, NULL, 0, NULL) == ZERO_OK);
  REQUIRE(zero_checkpoints_open(comm, directory, 1, &saved) == ZERO_OK);
  REQUIRE(zero_checkpoint_save(saved, wide, NULL, 0) == ZERO_OK);

  // Doubles are looked at where they become floats, on the one rank that has them.
  int32_t code = zero_load_double(wide, larger, NULL);
  REQUIRE(code == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "is -1e+300, which would become infinite in fp32") != NULL);
  REQUIRE(refused(comm, zero_load(refuses, large, NULL), "3.4e+38") == ZERO_OK);
  REQUIRE(refused(comm, zero_load_double(refuses, larger, NULL), "-1e+300") == ZERO_OK);
  code = zero_broadcast_from_double(refuses, larger, NULL, 1);
  REQUIRE(refused(comm, code, "-1e+300") == ZERO_OK);
  REQUIRE(refused(comm, zero_broadcast_from(refuses, large, NULL, 1), "3.4e+38") == ZERO_OK);
  REQUIRE(refused(comm, zero_import_model(refuses, path, NULL, NULL), "3.4e+38") == ZERO_OK);
  REQUIRE(refused(comm, zero_checkpoint_load(saved, refuses, &step), "3.4e+38") == ZERO_OK);
  REQUIRE(refused(comm, zero_fill_owned(refuses, enlarge, NULL), "3.4e+38") == ZERO_OK);

  float const most = 0x1.FEp127f;
  REQUIRE(saturated(comm, saturates, zero_load(saturates, large, NULL), most) == ZERO_OK);
  code = zero_load_double(saturates, larger, NULL);
  REQUIRE(saturated(comm, saturates, code, -most) == ZERO_OK);
  code = zero_broadcast_from_double(saturates, larger, NULL, 1);
  REQUIRE(saturated(comm, saturates, code, -most) == ZERO_OK);
  code = zero_import_model(saturates, path, &import, NULL);
  REQUIRE(saturated(comm, saturates, code, most) == ZERO_OK);
  code = zero_checkpoint_load_with(saved, saturates, &load_options, NULL, &step);
  REQUIRE(saturated(comm, saturates, code, most) == ZERO_OK);
  load_options.overflow = -1;
  code = zero_checkpoint_load_with(saved, saturates, &load_options, NULL, &step);
  REQUIRE(code == ZERO_INVALID_ARGUMENT);

  // An update makes a parameter infinite.
  void* gradients[1] = {NULL};
  zero_step_options rate = zero_step_options_of();
  rate.learning_rate = 3.4e38;
  REQUIRE(zero_load(saturates, zeros, NULL) == ZERO_OK);
  REQUIRE(zero_gradients(saturates, 0, ZERO_ADD, gradients, 1) == ZERO_OK);
  ((uint16_t*)gradients[0])[3] = 0xbf80;  // -1
  REQUIRE(zero_reduce(saturates, 0) == ZERO_OK);
  REQUIRE(zero_without_gradient(saturates, 1) == ZERO_OK);
  REQUIRE(zero_step(saturates, &rate, NULL) == ZERO_OK);
  code = zero_export_model(saturates, path, NULL, NULL, 0, NULL);
  REQUIRE(refused(comm, code, "3.4e+38") == ZERO_OK);
  REQUIRE(zero_export_model(saturates, path, &export, NULL, 0, NULL) == ZERO_OK);
  export.overflow = 2;
  REQUIRE(zero_export_model(saturates, path, &export, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  export.overflow = 0, export.without_frozen = 2;
  REQUIRE(zero_export_model(saturates, path, &export, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  return zero_checkpoints_close(saved);
}

/// Has a file that text in its first bytes?
static int has(char const* path, char const* text) {
  char head[500] = "";
  FILE* const file = fopen(path, "rb");
  size_t const bytes = file == NULL ? 0 : fread(head, 1, sizeof(head) - 1, file);
  if (file != NULL) fclose(file);
  // Behind eight bytes of size, of which some are 0.
  return bytes > 8 && strstr(head + 8, text) != NULL;
}

static int32_t bytes_of(int32_t tensor, int64_t first, int64_t count, uint8_t* bytes, void* user) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) bytes[i] = (uint8_t)(first + i + tensor);
  return 0;
}

/// Frozen bytes that files call something else, and what leaves them out.
static int32_t without_frozen(zero_comm* comm, void* user) {
  char const* const path = user;
  char directory[1000];
  int64_t step = 0;
  zero_optimizer *opt = NULL, *next = NULL;
  zero_checkpoints* saved = NULL;
  zero_export_options export = zero_export_options_of();
  zero_load_options load_options = zero_load_options_of();
  zero_checkpoints_options options = zero_checkpoints_options_of();
  zero_options const made = zero_options_of(ZERO_POS_G_P, ZERO_FP32, ZERO_ADAMW);
  zero_tensor model[2] = {ZERO_TENSOR("w", 0, rows), ZERO_TENSOR("base", 0, elements)};
  model[1].flags = ZERO_FROZEN;
  model[1].dtype = ZERO_DTYPE_F8_E4M3;
  REQUIRE(zero_create(comm, &made, model, 2, &opt) == ZERO_OK);
  REQUIRE(zero_load(opt, fill, NULL) == ZERO_OK && zero_load_bytes(opt, bytes_of, NULL) == ZERO_OK);
  export.without_frozen = 1;
  REQUIRE(zero_export_model(opt, path, &export, NULL, 0, NULL) == ZERO_OK);
  REQUIRE(has(path, "\"w\"") && !has(path, "\"base\""));
  REQUIRE(zero_export_model(opt, path, NULL, NULL, 0, NULL) == ZERO_OK);
  REQUIRE(has(path, "\"base\"") && has(path, "\"F8_E4M3\""));

  snprintf(directory, sizeof(directory), "%s.checkpoints", path);
  options.without_frozen = 2;
  REQUIRE(zero_checkpoints_open_with(comm, directory, &options, &saved) == ZERO_INVALID_ARGUMENT);
  options.without_frozen = 1;
  REQUIRE(zero_checkpoints_open_with(comm, directory, &options, &saved) == ZERO_OK);
  REQUIRE(zero_checkpoint_save(saved, opt, NULL, 0) == ZERO_OK);
  REQUIRE(zero_create(comm, &made, model, 2, &next) == ZERO_OK);
  REQUIRE(zero_checkpoint_load(saved, next, &step) == ZERO_OK && step == 0);
  REQUIRE(strstr(zero_message(comm), "zero: frozen and not loaded: 'base'") != NULL);
  REQUIRE(zero_export_model(next, path, NULL, NULL, 0, NULL) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "tensor 'base' has no values") != NULL);
  REQUIRE(zero_import_model(next, path, NULL, NULL) == ZERO_OK);
  REQUIRE(zero_export_model(next, path, NULL, NULL, 0, NULL) == ZERO_OK);
  load_options.without_frozen = 2;
  REQUIRE(zero_checkpoint_load_with(saved, next, &load_options, NULL, &step) ==
          ZERO_INVALID_ARGUMENT);
  load_options.without_frozen = 1;
  REQUIRE(zero_checkpoint_load_with(saved, next, &load_options, NULL, &step) == ZERO_OK);
  REQUIRE(zero_destroy(next) == ZERO_OK);

  // Another name for the same bytes.
  model[1].dtype = ZERO_DTYPE_I8;
  REQUIRE(zero_create(comm, &made, model, 2, &next) == ZERO_OK);
  REQUIRE(zero_import_model(next, path, NULL, NULL) == ZERO_DATA);
  REQUIRE(strstr(zero_message(comm), "'base' is F8_E4M3 in the file, and I8 here") != NULL);
  return zero_checkpoints_close(saved);
}

int main(int argc, char** argv) {
  char message[500] = "", path[900];
  if (argc != 2 || every_function(0) == NULL) return 1;
  snprintf(path, sizeof(path), "%s/model.safetensors", argv[1]);
  exchange fp32 = {path, ZERO_FP32, ZERO_EXPORT_PARAMETER, ""};
  exchange master = {path, ZERO_BF16, ZERO_EXPORT_MASTER, ""};
  exchange half = {path, ZERO_BF16, ZERO_EXPORT_PARAMETER, ""};
  int32_t failed = zero_run_ranks(2, save, &fp32, message, sizeof(message));
  int sound = failed == ZERO_OK && strcmp(fp32.written, path) == 0;
  sound = sound && has(path, "\"author\":\"somebody else\"") && has(path, "\"format\":\"np\"");
  if (failed == ZERO_OK) failed = zero_run_ranks(3, load, &fp32, message, sizeof(message));
  if (failed == ZERO_OK) failed = zero_run_ranks(3, save, &master, message, sizeof(message));
  sound = sound && strstr(master.written, "/model.safetensors.index.json") != NULL;
  if (failed == ZERO_OK) failed = zero_run_ranks(2, load, &master, message, sizeof(message));
  if (failed == ZERO_OK) failed = zero_run_ranks(1, save, &half, message, sizeof(message));
  sound = sound && has(path, "\"BF16\"");
  if (failed == ZERO_OK) failed = zero_run_ranks(2, overflow, &half, message, sizeof(message));
  if (failed == ZERO_OK) failed = zero_run_ranks(3, without_frozen, path, message, sizeof(message));
  if (failed != ZERO_OK || !sound) fprintf(stderr, "%s\n", message);
  return failed == ZERO_OK && sound ? 0 : 1;
}
