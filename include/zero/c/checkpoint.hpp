/// @file
/// Defines zero/c_checkpoint.h. To be included where zero/c/define.hpp is.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c/handles.hpp"
#include "zero/c/optimizer.hpp"
#include "zero/c/structs.hpp"
#include "zero/c_checkpoint.h"
#include "zero/checkpoint.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// May be in the list of ZERO_C_DEFINE, as it had to be before: optimizers can be saved wherever
/// this is included.
struct Checkpoints {
  /// Says that this is no policy.
  using IsExtension = void;
};

/// What the trainer knows as a `zero_checkpoints`: a directory, over its rank.
struct CheckpointsObject {
  /// What its handles are.
  static constexpr HandleKind kind = HandleKind::checkpoints;
  Comm* comm;                     ///< whose
  zero::Checkpoints run;          ///< that saves and loads
  std::vector<std::byte> blob{};  ///< of this rank, as it was loaded
};

/// Does the work with a directory, and an optimizer.
template <class Work>
std::int32_t with(zero_checkpoints* handle, zero_optimizer* optimizer, Work const& work) noexcept {
  auto* const checkpoints = object_of<CheckpointsObject>(handle);
  if (checkpoints == nullptr) return ZERO_INVALID_ARGUMENT;
  return checkpoints->comm->attempt([&] {
    require(optimizer, "optimizer");
    auto* const object = object_of<OptimizerObject>(optimizer);
    if (object == nullptr) {
      fail(ErrorKind::invalid_argument, "the optimizer has ended, or was never one");
    }
    if (object->comm != checkpoints->comm) {
      fail(ErrorKind::invalid_argument, "the optimizer is one of another communicator");
    }
    work(*checkpoints, *object->inner);
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::c

extern "C" {

int32_t zero_checkpoints_open(zero_comm* comm,
                              char const* directory,
                              int32_t keep,
                              zero_checkpoints** checkpoints) {
  return zero::c::with(comm, [&](zero::c::Comm& open) {
    zero::c::require(directory, "directory");
    zero::c::require(checkpoints, "checkpoints");
    std::shared_ptr<zero::c::CheckpointsObject> made(
        new zero::c::CheckpointsObject{&open, zero::Checkpoints(directory, {.keep = keep})});
    *checkpoints = static_cast<zero_checkpoints*>(open.own(std::move(made)));
  });
}
int32_t zero_checkpoints_close(zero_checkpoints* checkpoints) {
  return zero::c::end<zero::c::CheckpointsObject>(checkpoints);
}
int32_t zero_checkpoint_save(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             void const* blob,
                             int64_t blob_bytes) {
  return zero::c::with(
      checkpoints, optimizer, [&](zero::c::CheckpointsObject& open, zero::c::Optimizer& inner) {
        std::size_t const bytes = zero::c::unsigned_of(blob_bytes, "blob_bytes");
        if (bytes > 0) zero::c::require(blob, "blob");
        zero::SaveOptions options;
        options.rank_blob = {static_cast<std::byte const*>(blob), bytes};
        open.run.save(inner, options);
      });
}
int32_t zero_checkpoint_latest(zero_checkpoints* checkpoints,
                               zero_optimizer* optimizer,
                               int64_t* step) {
  return zero::c::with(
      checkpoints, optimizer, [&](zero::c::CheckpointsObject& open, zero::c::Optimizer& inner) {
        zero::c::require(step, "step");
        auto const found = open.run.latest(inner);
        *step = found ? found->step : -1;
      });
}
int32_t zero_checkpoint_load(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             int64_t* step) {
  return zero::c::with(
      checkpoints, optimizer, [&](zero::c::CheckpointsObject& open, zero::c::Optimizer& inner) {
        zero::c::require(step, "step");
        *step = -1;
        auto const report = open.run.resume(inner);
        if (!report) return;
        zero::c::Rank& rank = *open.comm->rank;
        auto const* const blob = report->own_blob(rank.number(), rank.ranks());
        open.blob.clear();
        if (blob != nullptr) open.blob = blob->bytes;
        std::string words;
        for (std::string const& each : report->skipped)
          words += "zero: passed over: " + each + "\n";
        if (!words.empty()) open.comm->say(words.c_str());
        *step = report->step;
      });
}
int32_t zero_checkpoint_blob(zero_checkpoints* checkpoints,
                             void* blob,
                             int64_t capacity,
                             int64_t* bytes) {
  auto* const open = zero::c::object_of<zero::c::CheckpointsObject>(checkpoints);
  if (open == nullptr) return ZERO_INVALID_ARGUMENT;
  return open->comm->attempt([&] {
    zero::c::require(bytes, "bytes");
    std::size_t const room = zero::c::unsigned_of(capacity, "capacity");
    std::size_t const copied = (std::min)(room, open->blob.size());
    if (copied > 0) {
      zero::c::require(blob, "blob");
      std::memcpy(blob, open->blob.data(), copied);
    }
    *bytes = static_cast<int64_t>(open->blob.size());
  });
}

}  // extern "C"
