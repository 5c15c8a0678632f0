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
#include "zero/optimizer/engine_access.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  Comm* comm;                           ///< whose
  std::shared_ptr<COptimizer> saved{};  ///< of the save that is under way; ends after it
  zero::Checkpoints run;                ///< that saves and loads
  bool frozen = true;                   ///< whether saves have frozen tensors
  std::vector<std::byte> blob{};        ///< of this rank, as it was loaded
};

/// Does the work with a directory.
template <class Work>
std::int32_t with(zero_checkpoints* handle, Work const& work) noexcept {
  auto* const open = object_of<CheckpointsObject>(handle);
  if (open == nullptr) return ZERO_INVALID_ARGUMENT;
  std::int32_t const code = open->comm->attempt([&] { work(*open); });
  if (!open->run.pending()) open->saved.reset();
  return code;
}
/// Does the work with a directory, and an optimizer.
template <class Work>
std::int32_t with(zero_checkpoints* handle, zero_optimizer* optimizer, Work const& work) noexcept {
  return with(handle, [&](CheckpointsObject& open) {
    require(optimizer, "optimizer");
    auto* const object = object_of<OptimizerObject>(optimizer);
    if (object == nullptr) {
      fail(ErrorKind::invalid_argument, "the optimizer has ended, or was never one");
    }
    if (object->comm != open.comm) {
      fail(ErrorKind::invalid_argument, "the optimizer is one of another communicator");
    }
    work(open, *object);
  });
}
/// Does the work with an optimizer and its communicator.
template <class Work>
std::int32_t with_comm(zero_optimizer* handle, Work const& work) noexcept {
  auto* const object = object_of<OptimizerObject>(handle);
  if (object == nullptr) return ZERO_INVALID_ARGUMENT;
  return object->comm->attempt([&] { work(*object->comm, *object->inner); });
}

/// Pairs of texts.
/// @param texts  twice as many as there are pairs
/// @param pairs  how many
/// @param name   what messages call them
/// @throws Error (invalid_argument) for null, or one that is there twice
[[nodiscard]] inline std::map<std::string, std::string> pairs_of(char const* const* texts,
                                                                 std::int64_t pairs,
                                                                 std::string_view name) {
  std::size_t const count = unsigned_of(pairs, name);
  if (count > 0) require(texts, name);
  std::map<std::string, std::string> result;
  for (std::size_t i = 0; i < count; ++i) {
    char const* const* const pair = texts + 2 * i;
    if (pair[0] == nullptr || pair[1] == nullptr) {
      fail(ErrorKind::invalid_argument, {name, ": a text of pair ", i, " is null"});
    }
    if (result.emplace(pair[0], pair[1]).second) continue;
    fail(ErrorKind::invalid_argument, {name, " have '", pair[0], "' twice"});
  }
  return result;
}

/// Options of a directory.
[[nodiscard]] inline CheckpointOptions options_of(zero_checkpoints_options const& from) {
  require_flag(from.lock, "lock");
  require_flag(from.without_frozen, "without_frozen");
  require_reserved(from.reserved, "zero_checkpoints_options");
  CheckpointOptions options{.keep = from.keep,
                            .snapshot_bytes = unsigned_of(from.snapshot_bytes, "snapshot_bytes"),
                            .lock = from.lock != 0};
  if (from.file_deadline_s != 0.) options.file_deadline_s = from.file_deadline_s;
  return options;
}
/// Options of a load.
[[nodiscard]] inline LoadOptions options_of(zero_load_options const& from) {
  require_flag(from.strict, "strict");
  require_flag(from.parameters_only, "parameters_only");
  require_flag(from.verify_first, "verify_first");
  require_flag(from.without_frozen, "without_frozen");
  require_flag(from.convert_states, "convert_states");
  return {.strict = from.strict != 0,
          .parameters_only = from.parameters_only != 0,
          .verify_first = from.verify_first != 0,
          .names = pairs_of(from.names, from.names_count, "names"),
          .overflow = overflow_of(from, "zero_load_options"),
          .frozen = from.without_frozen == 0,
          .convert_states = from.convert_states != 0};
}
/// Options of an import.
[[nodiscard]] inline ImportOptions options_of(zero_import_options const& from) {
  require_flag(from.strict, "strict");
  return {.strict = from.strict != 0,
          .names = pairs_of(from.names, from.names_count, "names"),
          .overflow = overflow_of(from, "zero_import_options")};
}
/// Options of an export.
[[nodiscard]] inline ExportOptions options_of(zero_export_options const& from) {
  if (from.dtype != ZERO_EXPORT_PARAMETER && from.dtype != ZERO_EXPORT_MASTER) {
    fail(ErrorKind::invalid_argument, {"there is no dtype ", from.dtype, " of an export"});
  }
  require_flag(from.without_frozen, "without_frozen");
  ExportOptions options{.metadata = pairs_of(from.metadata, from.metadata_count, "metadata"),
                        .overflow = overflow_of(from, "zero_export_options"),
                        .frozen = from.without_frozen == 0};
  if (from.dtype == ZERO_EXPORT_MASTER) options.dtype = ExportDType::master;
  if (from.max_file_bytes != 0) {
    options.max_file_bytes = unsigned_of(from.max_file_bytes, "max_file_bytes");
  }
  return options;
}

/// What a trainer adds to a checkpoint.
/// @param open        the checkpoints
/// @param blob        the trainer's own bytes, or null
/// @param blob_bytes  how many
[[nodiscard]] inline SaveOptions save_options_of(CheckpointsObject const& open,
                                                 void const* blob,
                                                 std::int64_t blob_bytes) {
  std::size_t const bytes = unsigned_of(blob_bytes, "blob_bytes");
  if (bytes > 0) require(blob, "blob");
  SaveOptions options{.frozen = open.frozen};
  options.rank_blob = {static_cast<std::byte const*>(blob), bytes};
  return options;
}

/// The step of what was found, or -1.
template <class Report>
[[nodiscard]] std::int64_t step_of(std::optional<Report> const& found) {
  return found ? found->step : -1;
}

/// Counts what a load has left out.
/// @param there        what has the other tensors
/// @param missing      tensors that are not there
/// @param unexpected   tensors that are not here
/// @param unfit        tensors that are not the same
/// @param differences  null, or where they are counted
/// @returns words for it; empty if there is nothing
[[nodiscard]] inline std::string left_out(std::string_view there,
                                          std::vector<std::string> const& missing,
                                          std::vector<std::string> const& unexpected,
                                          std::vector<std::string> const& unfit,
                                          zero_differences* differences) {
  if (differences != nullptr) {
    differences->missing = std::ssize(missing);
    differences->unexpected = std::ssize(unexpected);
    differences->unfit = std::ssize(unfit);
  }
  std::string const text = zero::detail::misfits(there, missing, unexpected, unfit, {});
  return text.empty() ? text : "zero: left out: " + text + "\n";
}

/// Loads the newest checkpoint that is not damaged.
/// @param open         the checkpoints
/// @param optimizer    that is loaded
/// @param options      what of it, and how
/// @param differences  null, or where they are counted
/// @returns words for what was passed over, or left out; and the step, or -1
[[nodiscard]] inline std::pair<std::string, std::int64_t> load(CheckpointsObject& open,
                                                               OptimizerObject& optimizer,
                                                               LoadOptions const& options,
                                                               zero_differences* differences) {
  auto const report = open.run.resume(*optimizer.inner, options);
  if (!report) return {"", -1};
  AnyRank& rank = *open.comm->rank;
  auto const* const blob = report->own_blob(rank.number(), rank.ranks());
  open.blob.clear();
  if (blob != nullptr) open.blob = blob->bytes;
  std::string words;
  for (std::string const& each : report->skipped) words += "zero: passed over: " + each + "\n";
  words += left_out("checkpoint", report->missing, report->unexpected, report->unfit, differences);
  if (!report->left_out.empty()) {
    words += "zero: frozen and not loaded: " + zero::detail::quoted(report->left_out) + "\n";
  }
  return {words, report->step};
}

}  // namespace zero::inline ZERO_NAMESPACE::c

extern "C" {

int32_t zero_checkpoints_open_with(zero_comm* comm,
                                   char const* directory,
                                   zero_checkpoints_options const* options,
                                   zero_checkpoints** checkpoints) {
  using namespace zero;
  return c::with(comm, [&](c::Comm& open) {
    c::require(directory, "directory");
    c::require(checkpoints, "checkpoints");
    zero_checkpoints_options const from =
        c::struct_or(options, zero_checkpoints_options_of(), "zero_checkpoints_options");
    std::shared_ptr<c::CheckpointsObject> made(
        new c::CheckpointsObject{.comm = &open,
                                 .run = Checkpoints(directory, c::options_of(from)),
                                 .frozen = from.without_frozen == 0});
    *checkpoints = static_cast<zero_checkpoints*>(open.own(std::move(made)));
  });
}
int32_t zero_checkpoints_open(zero_comm* comm,
                              char const* directory,
                              int32_t keep,
                              zero_checkpoints** checkpoints) {
  zero_checkpoints_options options = zero_checkpoints_options_of();
  options.keep = keep;
  return zero_checkpoints_open_with(comm, directory, &options, checkpoints);
}
int32_t zero_checkpoints_close(zero_checkpoints* checkpoints) {
  return zero::c::end<zero::c::CheckpointsObject>(checkpoints);
}
int32_t zero_checkpoint_save(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             void const* blob,
                             int64_t blob_bytes) {
  using namespace zero;
  return c::with(
      checkpoints, optimizer, [&](c::CheckpointsObject& open, c::OptimizerObject& object) {
        open.run.save(*object.inner, c::save_options_of(open, blob, blob_bytes));
      });
}
int32_t zero_checkpoint_plan(zero_optimizer* optimizer, int64_t blob_bytes, int64_t* bytes) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require(bytes, "bytes");
    std::size_t const blob = zero::c::unsigned_of(blob_bytes, "blob_bytes");
    *bytes = static_cast<int64_t>(zero::Checkpoints::plan(inner, blob));
  });
}
int32_t zero_checkpoint_save_async(zero_checkpoints* checkpoints,
                                   zero_optimizer* optimizer,
                                   void const* blob,
                                   int64_t blob_bytes) {
  using namespace zero;
  return c::with(
      checkpoints, optimizer, [&](c::CheckpointsObject& open, c::OptimizerObject& object) {
        open.run.save_async(*object.inner, c::save_options_of(open, blob, blob_bytes));
        open.saved = object.inner;
      });
}
int32_t zero_checkpoint_pending(zero_checkpoints* checkpoints, int32_t* pending) {
  return zero::c::with(checkpoints, [&](zero::c::CheckpointsObject& open) {
    zero::c::require(pending, "pending");
    *pending = open.run.pending() ? 1 : 0;
  });
}
int32_t zero_checkpoint_poll(zero_checkpoints* checkpoints, int64_t* step) {
  return zero::c::with(checkpoints, [&](zero::c::CheckpointsObject& open) {
    zero::c::require(step, "step");
    *step = zero::c::step_of(open.run.poll());
  });
}
int32_t zero_checkpoint_finish(zero_checkpoints* checkpoints, int64_t* step) {
  return zero::c::with(checkpoints, [&](zero::c::CheckpointsObject& open) {
    zero::c::require(step, "step");
    *step = zero::c::step_of(open.run.finish());
  });
}
int32_t zero_checkpoint_latest(zero_checkpoints* checkpoints,
                               zero_optimizer* optimizer,
                               int64_t* step) {
  using namespace zero;
  return c::with(
      checkpoints, optimizer, [&](c::CheckpointsObject& open, c::OptimizerObject& object) {
        c::require(step, "step");
        *step = c::step_of(open.run.latest(*object.inner));
      });
}
int32_t zero_checkpoint_load_with(zero_checkpoints* checkpoints,
                                  zero_optimizer* optimizer,
                                  zero_load_options const* options,
                                  zero_differences* differences,
                                  int64_t* step) {
  using namespace zero;
  return c::with(
      checkpoints, optimizer, [&](c::CheckpointsObject& open, c::OptimizerObject& object) {
        c::require(step, "step");
        *step = -1;
        if (differences != nullptr) c::require_struct(differences, "zero_differences");
        LoadOptions const inner =
            c::options_of(c::struct_or(options, zero_load_options_of(), "zero_load_options"));
        auto const [words, found] = c::load(open, object, inner, differences);
        if (!words.empty()) open.comm->say(words.c_str());
        *step = found;
      });
}
int32_t zero_checkpoint_load(zero_checkpoints* checkpoints,
                             zero_optimizer* optimizer,
                             int64_t* step) {
  return zero_checkpoint_load_with(checkpoints, optimizer, nullptr, nullptr, step);
}
int32_t zero_checkpoint_blob(zero_checkpoints* checkpoints,
                             void* blob,
                             int64_t capacity,
                             int64_t* bytes) {
  return zero::c::with(checkpoints, [&](zero::c::CheckpointsObject& open) {
    zero::c::require(bytes, "bytes");
    std::size_t const room = zero::c::unsigned_of(capacity, "capacity");
    std::size_t const copied = (std::min)(room, open.blob.size());
    if (copied > 0) {
      zero::c::require(blob, "blob");
      std::memcpy(blob, open.blob.data(), copied);
    }
    *bytes = static_cast<int64_t>(open.blob.size());
  });
}

int32_t zero_export_model(zero_optimizer* optimizer,
                          char const* path,
                          zero_export_options const* options,
                          char* written,
                          int64_t size,
                          int64_t* bytes) {
  using namespace zero;
  return c::with(optimizer, [&](c::COptimizer& inner) {
    c::require(path, "path");
    ExportOptions const export_options =
        c::options_of(c::struct_or(options, zero_export_options_of(), "zero_export_options"));
    ExportReport const report =
        detail::export_engine(detail::EngineAccess::engine(inner), path, export_options, disk());
    c::Words{written, size}.write(report.path.c_str());
    if (bytes != nullptr) *bytes = static_cast<int64_t>(report.bytes);
  });
}
int32_t zero_import_model(zero_optimizer* optimizer,
                          char const* path,
                          zero_import_options const* options,
                          zero_differences* differences) {
  using namespace zero;
  return c::with_comm(optimizer, [&](c::Comm& comm, c::COptimizer& inner) {
    c::require(path, "path");
    if (differences != nullptr) c::require_struct(differences, "zero_differences");
    ImportOptions const import_options =
        c::options_of(c::struct_or(options, zero_import_options_of(), "zero_import_options"));
    ImportReport const report =
        detail::import_engine(detail::EngineAccess::engine(inner), path, import_options, disk());
    std::string const words =
        c::left_out("file", report.missing, report.unexpected, report.misfits, differences);
    if (!words.empty()) comm.say(words.c_str());
  });
}

}  // extern "C"
