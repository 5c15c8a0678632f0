/// @file
/// Checkpoints, for zero/c.h. Defined by zero/c/checkpoint.hpp.
#pragma once

#include "zero/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A directory that holds the checkpoints of a run, as one rank has it.
typedef struct zero_checkpoints zero_checkpoints;

/// Names the directory, which all ranks see; touches no file. `keep` of the newest checkpoints stay,
/// all of them for 0. Ends with the communicator at the latest. Local.
int32_t zero_checkpoints_open(zero_comm* comm,
                              char const* directory,
                              int32_t keep,
                              zero_checkpoints** checkpoints);
/// Ends it; nothing for null. Local.
int32_t zero_checkpoints_close(zero_checkpoints* checkpoints);
/// Saves masters, states and counters, durably, and this rank's own bytes, such as a random state.
/// Loads on any number of ranks, under any stage, with the same bits. Collective.
int32_t zero_checkpoint_save(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             void const* blob,
                             int64_t blob_bytes);
/// The step of the newest complete checkpoint; -1 if there is none. Collective.
int32_t zero_checkpoint_latest(zero_checkpoints* checkpoints,
                               zero_optimizer* optimizer,
                               int64_t* step);
/// Loads it, or if it is damaged the newest that is not, which `zero_message` then says; `step` is
/// -1 if there is none, and nothing has changed. Collective.
int32_t zero_checkpoint_load(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             int64_t* step);
/// This rank's own bytes of what was loaded last, if as many ranks had saved it: copies those that
/// `blob` [capacity] has room for; `bytes` is how many there are. Local.
int32_t zero_checkpoint_blob(zero_checkpoints* checkpoints,
                             void* blob,
                             int64_t capacity,
                             int64_t* bytes);

#ifdef __cplusplus
}  // extern "C"
#endif
