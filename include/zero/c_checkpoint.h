/// @file
/// Checkpoints and model files, for zero/c.h. Defined by zero/c/checkpoint.hpp. What calls mean,
/// cost and refuse is said in full where C++ has them: zero/checkpoint.hpp,
/// zero/checkpoint/export.hpp and zero/checkpoint/import.hpp.
#pragma once

#include "zero/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A directory that holds the checkpoints of a run, as one rank has it.
typedef struct zero_checkpoints zero_checkpoints;

/// How a directory is kept; the same on all ranks, but for `snapshot_bytes`.
typedef struct zero_checkpoints_options {
  int64_t size;            ///< of this struct
  int64_t snapshot_bytes;  ///< memory for saves in the background: `zero_checkpoint_plan` says it
  double file_deadline_s;  ///< seconds that one operation on files may take; 0: 600
  int32_t keep;            ///< so many of the newest stay; 0: all
  int32_t lock;            ///< 1: make sure that nobody else writes to the directory
  int32_t without_frozen;  ///< 1: saves leave out the values of frozen tensors
  int32_t reserved;        ///< 0
} zero_checkpoints_options;

/// What a load takes; the same on all ranks.
typedef struct zero_load_options {
  int64_t size;              ///< of this struct
  char const* const* names;  ///< pairs: what the checkpoint calls a tensor, what it is called here
  int64_t names_count;       ///< pairs; the array has twice as many texts
  int32_t strict;            ///< 1: tensors that are missing, unexpected or do not fit are an error
  int32_t parameters_only;   ///< 1: states and counters stay: for another rule, or fine-tuning
  int32_t verify_first;      ///< 1: read twice, and change nothing unless all is as it was saved
  int32_t reserved;          ///< 0
  int32_t overflow;          ///< of `zero_overflow`
  int32_t without_frozen;    ///< 1: frozen tensors keep their values
  int32_t convert_states;    ///< 1: states of 8 bits are made of those in full, and back
  int32_t reserved_2;        ///< 0
} zero_load_options;

/// How a model file is read; the same on all ranks.
typedef struct zero_import_options {
  int64_t size;              ///< of this struct
  char const* const* names;  ///< pairs: what the file calls a tensor, what it is called here
  int64_t names_count;       ///< pairs; the array has twice as many texts
  int32_t strict;            ///< 1: tensors that are missing, unexpected or do not fit are an error
  int32_t reserved;          ///< 0
  int32_t overflow;          ///< of `zero_overflow`
  int32_t reserved_2;        ///< 0
} zero_import_options;

/// How many tensors a load has left out. Which and why, `zero_message` says.
typedef struct zero_differences {
  int64_t size;        ///< of this struct
  int64_t missing;     ///< tensors here that the file does not have
  int64_t unexpected;  ///< tensors of the file that are not here
  int64_t unfit;       ///< tensors of both that do not fit
} zero_differences;

/// Which copy of the weights a model file has.
enum zero_export_dtype {
  ZERO_EXPORT_PARAMETER = 0,  ///< what forward and backward read: 16 bits in mixed precision
  ZERO_EXPORT_MASTER = 1      ///< what the update works on
};

/// How a model file is written; the same on all ranks.
typedef struct zero_export_options {
  int64_t size;                 ///< of this struct
  char const* const* metadata;  ///< pairs for the header: name, text
  int64_t metadata_count;       ///< pairs; the array has twice as many texts
  int64_t max_file_bytes;       ///< more go into several files, with an index; 0: 5e9
  int32_t dtype;                ///< of `zero_export_dtype`
  int32_t reserved;             ///< 0
  int32_t overflow;             ///< of `zero_overflow`
  int32_t without_frozen;       ///< 1: trained tensors alone, such as adapters
} zero_export_options;

/// Options as `zero_checkpoints_open` has them for keep = 0.
static inline zero_checkpoints_options zero_checkpoints_options_of(void) {
  zero_checkpoints_options const options = {sizeof(zero_checkpoints_options), 0, 0, 0, 1, 0, 0};
  return options;
}
/// Options as `zero_checkpoint_load` has them: strict, all of it.
static inline zero_load_options zero_load_options_of(void) {
  zero_load_options const options = {sizeof(zero_load_options), 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
  return options;
}
/// Options of a strict import.
static inline zero_import_options zero_import_options_of(void) {
  zero_import_options const options = {sizeof(zero_import_options), 0, 0, 1, 0, 0, 0};
  return options;
}
/// Differences to be written.
static inline zero_differences zero_differences_of(void) {
  zero_differences const differences = {sizeof(zero_differences), 0, 0, 0};
  return differences;
}
/// Options of an export of the parameters.
static inline zero_export_options zero_export_options_of(void) {
  zero_export_options const options = {sizeof(zero_export_options), 0, 0, 0, 0, 0, 0, 0};
  return options;
}

/// Names the directory, which all ranks see; touches no file. `keep` of the newest checkpoints
/// stay, all of them for 0. Ends with the communicator at the latest. Local.
int32_t zero_checkpoints_open(zero_comm* comm,
                              char const* directory,
                              int32_t keep,
                              zero_checkpoints** checkpoints);
/// The same with options; null: those by default. Allocates the memory for saves in the background.
int32_t zero_checkpoints_open_with(zero_comm* comm,
                                   char const* directory,
                                   zero_checkpoints_options const* options,
                                   zero_checkpoints** checkpoints);
/// Ends it; nothing for null. A save that is under way is given up: the checkpoints before stay.
/// Local.
int32_t zero_checkpoints_close(zero_checkpoints* checkpoints);
/// Saves masters, states and counters, durably, and this rank's own bytes, such as a random state.
/// Loads on any number of ranks, under any stage, with the same bits. Collective.
int32_t zero_checkpoint_save(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             void const* blob,
                             int64_t blob_bytes);
/// Bytes of memory that `zero_checkpoint_save_async` needs on this rank; with `without_frozen` it
/// needs fewer. Local.
int32_t zero_checkpoint_plan(zero_optimizer* optimizer, int64_t blob_bytes, int64_t* bytes);
/// Copies what `zero_checkpoint_save` would write to memory, and writes it while training goes on.
/// `zero_checkpoint_poll`, once a step, or `zero_checkpoint_finish` makes it a checkpoint. A save
/// before is finished first. An optimizer that is destroyed keeps its memory until its save has
/// ended. Collective.
int32_t zero_checkpoint_save_async(zero_checkpoints* checkpoints,
                                   zero_optimizer* optimizer,
                                   void const* blob,
                                   int64_t blob_bytes);
/// Writes 1 if a save is under way, else 0. Local.
int32_t zero_checkpoint_pending(zero_checkpoints* checkpoints, int32_t* pending);
/// Has the save under way been written by all ranks? Then it becomes a checkpoint, and `step` is
/// its step, once; else it is -1. What went wrong in the background is an error here. Collective
/// while a save is under way; blocks for an exchange of 16 bytes.
int32_t zero_checkpoint_poll(zero_checkpoints* checkpoints, int64_t* step);
/// Waits for the save under way; `step` is -1 if there is none. Collective.
int32_t zero_checkpoint_finish(zero_checkpoints* checkpoints, int64_t* step);
/// The step of the newest complete checkpoint; -1 if there is none. Collective.
int32_t zero_checkpoint_latest(zero_checkpoints* checkpoints,
                               zero_optimizer* optimizer,
                               int64_t* step);
/// Loads it, or if it is damaged the newest that is not, which `zero_message` then says; `step` is
/// -1 if there is none, and nothing has changed. Collective.
int32_t zero_checkpoint_load(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             int64_t* step);
/// The same with options, such as `parameters_only`; null: those by default. `differences` may be
/// null; where it is not strict `zero_message` says them, too. Collective.
int32_t zero_checkpoint_load_with(zero_checkpoints* checkpoints,
                                  zero_optimizer* optimizer,
                                  zero_load_options const* options,
                                  zero_differences* differences,
                                  int64_t* step);
/// This rank's own bytes of what was loaded last, if as many ranks had saved it: copies those that
/// `blob` [capacity] has room for; `bytes` is how many there are. Local.
int32_t zero_checkpoint_blob(zero_checkpoints* checkpoints,
                             void* blob,
                             int64_t capacity,
                             int64_t* bytes);

/// Writes the whole model to a safetensors file, or to several with an index, which all ranks see.
/// Each rank writes what it owns. Files get their names when all is durable.
/// @param optimizer  whose parameters or master weights
/// @param path       of the file; its directory is there
/// @param options    or null: those by default
/// @param written    what to give to a reader, the file or the index, cut off at its size; or null
/// @param size       of the memory of `written`
/// @param bytes      of all files together; or null
/// Collective.
int32_t zero_export_model(zero_optimizer* optimizer,
                          char const* path,
                          zero_export_options const* options,
                          char* written,
                          int64_t size,
                          int64_t* bytes);
/// Sets parameters and master weights from safetensors files of fp32, fp16 or bf16, whoever wrote
/// them, and of fp64 where masters are double. States and counters stay. Where it is not strict,
/// what is missing or does not fit keeps its values, and `zero_message` says so, too.
/// @param optimizer    that gets them
/// @param path         a safetensors file, an index of several, or a directory with one of either
/// @param options      or null: strict
/// @param differences  where they are counted, or null
/// Collective.
int32_t zero_import_model(zero_optimizer* optimizer,
                          char const* path,
                          zero_import_options const* options,
                          zero_differences* differences);

#ifdef __cplusplus
}  // extern "C"
#endif
