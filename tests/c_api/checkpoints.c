/// Checkpoints through zero/c_checkpoint.h: a run that was cut in two has the bits of one that was
/// not, on another number of ranks and under another stage. Takes a directory that is not there.
#include "c_api/trainer.h"
#include "zero/c_checkpoint.h"

enum { elements = 50 };

/// What a rank works with.
typedef struct worker {
  zero_optimizer* opt;
  zero_checkpoints* saved;
  int64_t step;  ///< that a load has found
} worker;

static int32_t fill(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)tensor, (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = (float)(first + i) / 64;
  return 0;
}

/// An optimizer, and the checkpoints of a directory if it is not null.
static int32_t begin(zero_comm* comm, int32_t stage, char const* directory, worker* own) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 5, elements / 5)};
  zero_options const options = zero_options_of(stage, ZERO_FP32, ZERO_ADAMW);
  worker const none = {NULL, NULL, -1};
  *own = none;
  REQUIRE(zero_create(comm, &options, model, 1, &own->opt) == ZERO_OK);
  if (directory == NULL) return ZERO_OK;
  REQUIRE(zero_checkpoints_open(comm, "", 2, &own->saved) == ZERO_INVALID_ARGUMENT);
  REQUIRE(zero_checkpoints_open(comm, directory, 2, &own->saved) == ZERO_OK);
  return ZERO_OK;
}

/// A step, whose sum over all ranks does not depend on how many there are, and what it says.
static int32_t step(zero_comm* comm, zero_optimizer* opt, int32_t number) {
  void* g = NULL;
  REQUIRE(zero_gradients(opt, 0, ZERO_OVERWRITE, &g, 1) == ZERO_OK);
  for (int k = 0; k < elements; ++k) ((float*)g)[k] = (float)((k + number) % 7 - 3) / 4;
  REQUIRE(zero_reduce(opt, 0) == ZERO_OK);
  return zero_step(opt, NULL, NULL);
}

typedef struct run {
  char const* directory;  ///< null: no checkpoints
  int32_t stage;
  int32_t until;    ///< step
  int32_t resumed;  ///< at which step it is to go on
  float result[elements];
} run;

static int32_t train(zero_comm* comm, void* user) {
  run* const r = user;
  worker own;
  int64_t bytes = -1;
  int32_t blob[2] = {0, 0};
  REQUIRE(begin(comm, r->stage, r->directory, &own) == ZERO_OK);
  if (r->directory != NULL) {
    REQUIRE(zero_checkpoint_latest(own.saved, own.opt, &own.step) == ZERO_OK);
    REQUIRE(own.step == (r->resumed > 0 ? r->resumed : -1));
    REQUIRE(zero_checkpoint_load(own.saved, own.opt, &own.step) == ZERO_OK);
    REQUIRE(zero_checkpoint_blob(own.saved, blob, sizeof(blob), &bytes) == ZERO_OK);
    // As many ranks have saved, or this is not theirs.
    REQUIRE(bytes == (r->resumed > 0 && zero_comm_size(comm) == 2 ? 8 : 0));
    REQUIRE(bytes == 0 || (blob[0] == zero_comm_rank(comm) && blob[1] == own.step));
  }
  if (own.step < 0) REQUIRE(zero_load(own.opt, fill, NULL) == ZERO_OK);
  for (int32_t i = own.step < 0 ? 0 : (int32_t)own.step; i < r->until; ++i) {
    REQUIRE(step(comm, own.opt, i) == ZERO_OK);
  }
  if (own.saved != NULL) {
    blob[0] = zero_comm_rank(comm), blob[1] = r->until;
    zero_checkpoints* const saved = own.saved;
    zero_optimizer* const opt = own.opt;
    REQUIRE(zero_checkpoint_save(saved, opt, NULL, 8) == ZERO_INVALID_ARGUMENT);
    REQUIRE(zero_checkpoint_save(saved, NULL, NULL, 0) == ZERO_INVALID_ARGUMENT);
    REQUIRE(zero_checkpoint_save(saved, opt, blob, sizeof(blob)) == ZERO_OK);
    REQUIRE(zero_checkpoint_save((zero_checkpoints*)opt, opt, NULL, 0) == ZERO_INVALID_ARGUMENT);
    REQUIRE(zero_checkpoint_save(saved, (zero_optimizer*)saved, NULL, 0) == ZERO_INVALID_ARGUMENT);
    REQUIRE(zero_checkpoints_close(saved) == ZERO_OK);
    REQUIRE(zero_checkpoints_close(saved) == ZERO_INVALID_ARGUMENT);
    REQUIRE(zero_checkpoint_blob(saved, blob, 8, &bytes) == ZERO_INVALID_ARGUMENT);
  }
  void const* all = NULL;
  REQUIRE(zero_full_parameters(own.opt, &all, 1) == ZERO_OK);
  if (zero_comm_rank(comm) == 0) memcpy(r->result, all, sizeof(r->result));
  return ZERO_OK;
}

/// Without bytes of the ranks, which a load reads before it changes anything.
static int32_t save_alone(zero_comm* comm, void* user) {
  worker own;
  REQUIRE(begin(comm, ZERO_POS, user, &own) == ZERO_OK);
  REQUIRE(zero_load(own.opt, fill, NULL) == ZERO_OK);
  REQUIRE(zero_checkpoint_save(own.saved, own.opt, NULL, 0) == ZERO_OK);
  return zero_checkpoints_close(own.saved);
}

/// A load of damaged files, and what becomes of the optimizer.
typedef struct damage {
  char const* directory;
  int32_t in_data;  ///< which are read when all else has been found to be sound
} damage;

static int32_t load_damaged(zero_comm* comm, void* user) {
  damage const* const d = user;
  worker own;
  REQUIRE(begin(comm, ZERO_POS, d->directory, &own) == ZERO_OK);
  REQUIRE(zero_load(own.opt, fill, NULL) == ZERO_OK);
  zero_load_options careful = zero_load_options_of();
  for (careful.verify_first = 1; careful.verify_first >= 0; --careful.verify_first) {
    int32_t const code = zero_checkpoint_load_with(own.saved, own.opt, &careful, NULL, &own.step);
    REQUIRE(code == ZERO_DATA);
    void const* all = NULL;
    REQUIRE(zero_full_parameters(own.opt, &all, 1) == ZERO_OK);
    for (int k = 0; k < elements && (careful.verify_first || !d->in_data); ++k) {
      REQUIRE(((float const*)all)[k] == (float)k / 64);
    }
    REQUIRE(zero_release_full(own.opt) == ZERO_OK);
    if (careful.verify_first) REQUIRE(step(comm, own.opt, 0) == ZERO_OK);
    if (careful.verify_first) REQUIRE(zero_load(own.opt, fill, NULL) == ZERO_OK);
  }
  if (d->in_data) {
    REQUIRE(zero_checkpoint_save(own.saved, own.opt, NULL, 0) == ZERO_INVALID_ARGUMENT);
    REQUIRE(strstr(zero_message(comm), "of tensor 'w' are neither the old nor the new") != NULL);
    REQUIRE(zero_step(own.opt, NULL, NULL) == ZERO_INVALID_ARGUMENT);
  } else {
    REQUIRE(step(comm, own.opt, 0) == ZERO_OK);
  }
  return zero_checkpoints_close(own.saved);
}

/// A damaged checkpoint with a sound one before it, of step 5: that is loaded.
static int32_t fall_back(zero_comm* comm, void* user) {
  worker own;
  REQUIRE(begin(comm, ZERO_POS_G_P, user, &own) == ZERO_OK);
  REQUIRE(zero_checkpoint_load(own.saved, own.opt, &own.step) == ZERO_OK);
  REQUIRE(own.step == 5);
  REQUIRE(strstr(zero_message(comm), "zero: passed over: ") != NULL);
  REQUIRE(strstr(zero_message(comm), "000003-step-9") != NULL);
  REQUIRE(step(comm, own.opt, 5) == ZERO_OK);
  return zero_checkpoints_close(own.saved);
}

/// Saved while training goes on, by an optimizer that is gone before its save has ended.
static int32_t save_aside(zero_comm* comm, void* user) {
  worker own;
  zero_checkpoints* second = NULL;
  int64_t bytes = 0, done = 0;
  int32_t pending = 7;
  int32_t const blob = 100 + zero_comm_rank(comm);
  REQUIRE(begin(comm, ZERO_POS, user, &own) == ZERO_OK);
  REQUIRE(zero_load(own.opt, fill, NULL) == ZERO_OK);
  REQUIRE(step(comm, own.opt, 0) == ZERO_OK);

  zero_checkpoints_options options = zero_checkpoints_options_of();
  REQUIRE(zero_checkpoint_save_async(own.saved, own.opt, NULL, 0) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(zero_message(comm), "save_async() needs") != NULL);
  REQUIRE(zero_checkpoints_close(own.saved) == ZERO_OK);
  REQUIRE(zero_checkpoint_plan(own.opt, -1, &bytes) == ZERO_INVALID_ARGUMENT);
  REQUIRE(zero_checkpoint_plan(own.opt, sizeof(blob), &bytes) == ZERO_OK);
  REQUIRE(bytes >= 3 * 4 * elements / zero_comm_size(comm));
  options.snapshot_bytes = -1;
  REQUIRE(zero_checkpoints_open_with(comm, user, &options, &second) == ZERO_INVALID_ARGUMENT);
  options.snapshot_bytes = bytes;
  options.lock = 2;
  REQUIRE(zero_checkpoints_open_with(comm, user, &options, &second) == ZERO_INVALID_ARGUMENT);
  options.lock = 1;
  options.file_deadline_s = -1;
  REQUIRE(zero_checkpoints_open_with(comm, user, &options, &second) == ZERO_INVALID_ARGUMENT);
  options.file_deadline_s = 60;
  REQUIRE(zero_checkpoints_open_with(comm, user, &options, &own.saved) == ZERO_OK);

  REQUIRE(zero_checkpoint_poll(own.saved, &done) == ZERO_OK && done == -1);
  REQUIRE(zero_checkpoint_save_async(own.saved, own.opt, &blob, sizeof(blob)) == ZERO_OK);
  REQUIRE(zero_checkpoint_pending(own.saved, &pending) == ZERO_OK && pending == 1);
  for (done = -1; done == -1;) REQUIRE(zero_checkpoint_poll(own.saved, &done) == ZERO_OK);
  REQUIRE(done == 1);
  REQUIRE(zero_checkpoint_pending(own.saved, &pending) == ZERO_OK && pending == 0);
  REQUIRE(zero_checkpoint_finish(own.saved, &done) == ZERO_OK && done == -1);

  // Nobody else may save there, unless nobody asks.
  for (options.lock = 1; options.lock >= 0; --options.lock) {
    REQUIRE(zero_checkpoints_open_with(comm, user, &options, &second) == ZERO_OK);
    int32_t const code = zero_checkpoint_save(second, own.opt, NULL, 0);
    REQUIRE(code == (options.lock ? ZERO_RESOURCE : ZERO_OK));
    REQUIRE(zero_checkpoints_close(second) == ZERO_OK);
  }

  REQUIRE(step(comm, own.opt, 1) == ZERO_OK);
  REQUIRE(zero_checkpoint_save_async(own.saved, own.opt, &blob, sizeof(blob)) == ZERO_OK);
  // What changes from now on is not saved.
  REQUIRE(step(comm, own.opt, 5) == ZERO_OK);
  REQUIRE(zero_destroy(own.opt) == ZERO_OK);
  REQUIRE(zero_checkpoint_finish(own.saved, &done) == ZERO_OK && done == 2);
  return zero_checkpoints_close(own.saved);
}

/// Given up while it is under way: it is no checkpoint.
static int32_t give_up(zero_comm* comm, void* user) {
  worker own;
  zero_checkpoints_options options = zero_checkpoints_options_of();
  REQUIRE(begin(comm, ZERO_POS, NULL, &own) == ZERO_OK);
  REQUIRE(zero_checkpoint_plan(own.opt, 0, &options.snapshot_bytes) == ZERO_OK);
  REQUIRE(zero_checkpoints_open_with(comm, user, &options, &own.saved) == ZERO_OK);
  REQUIRE(zero_load(own.opt, fill, NULL) == ZERO_OK);
  REQUIRE(zero_checkpoint_save_async(own.saved, own.opt, NULL, 0) == ZERO_OK);
  if (zero_comm_rank(comm) == 0) REQUIRE(zero_destroy(own.opt) == ZERO_OK);
  return zero_checkpoints_close(own.saved);
}

/// Goes on from there in both ways.
static int32_t load_parts(zero_comm* comm, void* user) {
  worker own;
  zero_optimizer* sgd = NULL;
  zero_tensor const model[2] = {ZERO_TENSOR("v", 0, 5, elements / 5), ZERO_TENSOR("new", 1, 3)};
  zero_options const made = zero_options_of(ZERO_POS, ZERO_FP32, ZERO_SGD);
  zero_load_options options = zero_load_options_of();
  zero_differences found = zero_differences_of();
  int64_t bytes = 0, steps[2] = {7, 7};
  float scale = 0;
  int32_t streak = 0, blob = 0;
  void const* all[2] = {NULL, NULL};
  float wanted[elements];
  REQUIRE(begin(comm, ZERO_POS_G_P, user, &own) == ZERO_OK);
  REQUIRE(zero_checkpoint_load(own.saved, own.opt, &own.step) == ZERO_OK && own.step == 2);
  REQUIRE(zero_checkpoint_blob(own.saved, &blob, sizeof(blob), &bytes) == ZERO_OK);
  REQUIRE(bytes == sizeof(blob) && blob == 100 + zero_comm_rank(comm));
  REQUIRE(zero_full_parameters(own.opt, all, 1) == ZERO_OK);
  memcpy(wanted, all[0], sizeof(wanted));
  REQUIRE(zero_get_counters(own.opt, steps, 1, &scale, &streak) == ZERO_OK && steps[0] == 2);

  REQUIRE(zero_create(comm, &made, model, 1, &sgd) == ZERO_OK);
  char const* const names[2] = {"w", "v"};
  options.names = names;
  options.names_count = 1;
  options.verify_first = 1;
  REQUIRE(zero_checkpoint_load_with(own.saved, sgd, NULL, NULL, &own.step) == ZERO_DATA);
  REQUIRE(strstr(zero_message(comm), "not in the checkpoint: 'v'") != NULL);
  REQUIRE(zero_checkpoint_load_with(own.saved, sgd, &options, &found, &own.step) == ZERO_DATA);
  REQUIRE(strstr(zero_message(comm), "rule") != NULL && own.step == -1);
  options.parameters_only = 1;
  REQUIRE(zero_checkpoint_load_with(own.saved, sgd, &options, &found, &own.step) == ZERO_OK);
  REQUIRE(own.step == 2 && found.missing == 0 && found.unexpected == 0 && found.unfit == 0);
  REQUIRE(zero_full_parameters(sgd, all, 1) == ZERO_OK);
  REQUIRE(memcmp(all[0], wanted, sizeof(wanted)) == 0);
  REQUIRE(zero_get_counters(sgd, steps, 1, &scale, &streak) == ZERO_OK && steps[0] == 0);
  REQUIRE(zero_destroy(sgd) == ZERO_OK);

  // What is not there keeps its values, and is counted.
  REQUIRE(zero_create(comm, &made, model, 2, &sgd) == ZERO_OK);
  REQUIRE(zero_load(sgd, fill, NULL) == ZERO_OK);
  options.strict = 0;
  REQUIRE(zero_checkpoint_load_with(own.saved, sgd, &options, &found, &own.step) == ZERO_OK);
  REQUIRE(found.missing == 1 && found.unexpected == 0 && found.unfit == 0);
  REQUIRE(strstr(zero_message(comm), "zero: left out: not in the checkpoint: 'new'") != NULL);
  REQUIRE(zero_full_parameters(sgd, all, 2) == ZERO_OK);
  REQUIRE(memcmp(all[0], wanted, sizeof(wanted)) == 0 && ((float const*)all[1])[1] == 1.f / 64);
  REQUIRE(zero_release_full(sgd) == ZERO_OK);

  options.strict = 2;
  REQUIRE(zero_checkpoint_load_with(own.saved, sgd, &options, NULL, &own.step) ==
          ZERO_INVALID_ARGUMENT);
  options.strict = 1;
  options.reserved = 1;
  REQUIRE(zero_checkpoint_load_with(own.saved, sgd, &options, NULL, &own.step) ==
          ZERO_INVALID_ARGUMENT);
  found.size = 0;
  REQUIRE(zero_checkpoint_load_with(own.saved, sgd, NULL, &found, &own.step) ==
          ZERO_INVALID_ARGUMENT);
  return zero_checkpoints_close(own.saved);
}

/// States in full become states of 8 bits where that is asked for.
static int32_t convert(zero_comm* comm, void* user) {
  zero_tensor const model[1] = {ZERO_TENSOR("w", 0, 4096)};
  zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, ZERO_ADAMW);
  zero_load_options load = zero_load_options_of();
  zero_optimizer *full = NULL, *coded = NULL;
  zero_checkpoints* saved = NULL;
  int64_t found = -1, steps = 0;
  float scale = 0;
  int32_t streak = 0;
  void* g = NULL;
  REQUIRE(zero_create(comm, &options, model, 1, &full) == ZERO_OK);
  REQUIRE(zero_load(full, fill, NULL) == ZERO_OK);
  REQUIRE(zero_gradients(full, 0, ZERO_OVERWRITE, &g, 1) == ZERO_OK);
  for (int i = 0; i < 4096; ++i) ((float*)g)[i] = 1;
  REQUIRE(zero_reduce(full, 0) == ZERO_OK && zero_step(full, NULL, NULL) == ZERO_OK);
  REQUIRE(zero_checkpoints_open(comm, user, 1, &saved) == ZERO_OK);
  REQUIRE(zero_checkpoint_save(saved, full, NULL, 0) == ZERO_OK);
  options.rule = zero_rule_of(ZERO_ADAMW8BIT);
  REQUIRE(zero_create(comm, &options, model, 1, &coded) == ZERO_OK);
  REQUIRE(zero_checkpoint_load_with(saved, coded, &load, NULL, &found) == ZERO_DATA);
  REQUIRE(strstr(zero_message(comm), "convert them") != NULL);
  load.convert_states = 2;
  REQUIRE(zero_checkpoint_load_with(saved, coded, &load, NULL, &found) == ZERO_INVALID_ARGUMENT);
  load.convert_states = 1;
  REQUIRE(zero_checkpoint_load_with(saved, coded, &load, NULL, &found) == ZERO_OK && found == 1);
  REQUIRE(zero_get_counters(coded, &steps, 1, &scale, &streak) == ZERO_OK && steps == 1);
  load.reserved_2 = 1;
  REQUIRE(zero_checkpoint_load_with(saved, coded, &load, NULL, &found) == ZERO_INVALID_ARGUMENT);
  return zero_checkpoints_close(saved);
}

/// Flips a bit of a file. Returns 0 if it could not.
static int flip(char const* path, long at, int from) {
  FILE* const file = fopen(path, "r+b");
  if (file == NULL) return 0;
  fseek(file, at, from);
  int const byte = fgetc(file);
  fseek(file, -1, SEEK_CUR);
  fputc(byte ^ 1, file);
  return byte != EOF && fclose(file) == 0;
}

int main(int argc, char** argv) {
  char message[500] = "";
  if (argc != 2 || every_function(0) == NULL) return 1;
  run whole = {NULL, ZERO_POS, 9, 0, {0}};
  run parts[3] = {{argv[1], ZERO_POS, 3, 0, {0}},
                  {argv[1], ZERO_POS_G_P, 5, 3, {0}},
                  {argv[1], ZERO_POS_G_P, 9, 5, {0}}};
  int32_t const ranks[3] = {2, 2, 4};
  int32_t failed = zero_run_ranks(2, train, &whole, message, sizeof(message));
  for (int i = 0; i < 3 && failed == ZERO_OK; ++i) {
    failed = zero_run_ranks(ranks[i], train, &parts[i], message, sizeof(message));
  }
  if (failed != ZERO_OK) fprintf(stderr, "%s\n", message);
  if (failed != ZERO_OK) return 1;
  if (memcmp(whole.result, parts[1].result, sizeof(whole.result)) == 0) return 1;
  if (memcmp(whole.result, parts[2].result, sizeof(whole.result)) != 0) return 1;

  char alone[900], file[2000];
  snprintf(alone, sizeof(alone), "%s/alone", argv[1]);
  failed = zero_run_ranks(2, save_alone, alone, message, sizeof(message));
  for (int i = 0; i < 8 && failed == ZERO_OK; ++i) {
    damage d = {alone, i % 2};
    int const falls = i >= 6;
    char const* const name = falls ? "000003-step-9" : "alone/000001-step-0";
    snprintf(file, sizeof(file), "%s/%s/rank-00000.safetensors", argv[1], name);
    long const at = d.in_data ? -1 : 40;
    int const from = d.in_data ? SEEK_END : SEEK_SET;
    if (!flip(file, at, from)) return 1;
    failed = falls ? zero_run_ranks(2, fall_back, argv[1], message, sizeof(message))
                   : zero_run_ranks(1 + i / 2, load_damaged, &d, message, sizeof(message));
    if (!flip(file, at, from)) return 1;
  }
  char aside[900];
  snprintf(aside, sizeof(aside), "%s/aside", argv[1]);
  if (failed == ZERO_OK) failed = zero_run_ranks(2, save_aside, aside, message, sizeof(message));
  if (failed == ZERO_OK) failed = zero_run_ranks(2, give_up, aside, message, sizeof(message));
  if (failed == ZERO_OK) failed = zero_run_ranks(2, load_parts, aside, message, sizeof(message));
  snprintf(aside, sizeof(aside), "%s/converted", argv[1]);
  if (failed == ZERO_OK) failed = zero_run_ranks(2, convert, aside, message, sizeof(message));
  if (failed != ZERO_OK) fprintf(stderr, "%s\n", message);
  return failed == ZERO_OK ? 0 : 1;
}
