/// @file
/// Save and resume: checkpoints that survive crashes and load on any number of ranks.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/directory.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/import.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/named_optimizer.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/restoring.hpp"
#include "zero/checkpoint/saving.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/make_tables.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// A directory that holds the checkpoints of a run. Each rank makes one, of the same path.
///
///     zero::Checkpoints run{"run", {.keep = 3}};
///     run.resume(opt);
///     ...
///     run.save(opt, {.user = my_json, .rank_blob = random_state});
///
/// A checkpoint is one directory with a safetensors file for each rank and a manifest, which is
/// written last. What was saved loads on any number of ranks, under any stage, bucket, memory and
/// communicator, over any grid, with the same bits. The directory has to be seen by all ranks.
///
/// Files are synced and renamed, then their directory is synced; a machine that dies at any time
/// leaves the checkpoint before or the new one. One process writes to a directory at a time.
///
/// An optimizer, and its communicator, must outlive a save of it that is under way. All calls come
/// from the thread that calls the optimizer.
class Checkpoints {
 public:
  /// Touches no file. Allocates memory for `save_async`, if the options have any.
  /// @param directory  of all checkpoints of a run; made by the first save
  /// @param options    how many are kept, and what a save in the background needs
  /// @param files      how files are written and read; outlive this
  /// @throws Error (invalid_argument) for options that make no sense
  explicit Checkpoints(std::string directory,
                       CheckpointOptions const& options = {},
                       FileOperations& files = disk())
      : options_(options), directory_(files, std::move(directory)) {
    if (directory_.path().empty()) {
      fail(ErrorKind::invalid_argument, "checkpoints need the name of a directory");
    }
    if (options.keep < 0) {
      fail(ErrorKind::invalid_argument,
           {"CheckpointOptions::keep is ", options.keep, ", but must be at least 0 (all)"});
    }
    if (!(options.file_deadline_s > 0.)) {
      fail(ErrorKind::invalid_argument,
           {"CheckpointOptions::file_deadline_s is ",
            options.file_deadline_s,
            ", but must be greater than 0"});
    }
    // Written now, or the first snapshot would pay for its pages.
    snapshot_.resize(static_cast<std::size_t>(
        round_up(options.snapshot_bytes, std::uint64_t{detail::piece_bytes})));
  }
  Checkpoints(Checkpoints const&) = delete;
  Checkpoints& operator=(Checkpoints const&) = delete;
  /// Gives up a save that is under way: its directory stays without a manifest, and the next save
  /// removes it. Waits for an operation of the file system, and for no other rank.
  ~Checkpoints() = default;

  /// Bytes of memory that `save_async` needs on this rank.
  /// @param optimizer   that is saved
  /// @param blob_bytes  of the trainer's own bytes of a rank
  /// @param frozen      as `SaveOptions::frozen`
  template <detail::OneOptimizer Optimizer>
  [[nodiscard]] static std::uint64_t plan(Optimizer& optimizer,
                                          std::uint64_t blob_bytes = 0,
                                          bool frozen = true) {
    return plan({{"", &optimizer}}, blob_bytes, frozen);
  }
  /// The same for several that are saved together.
  [[nodiscard]] static std::uint64_t plan(std::vector<NamedOptimizer> const& optimizers,
                                          std::uint64_t blob_bytes = 0,
                                          bool frozen = true) {
    std::uint64_t bytes = blob_bytes;
    for (NamedOptimizer const& each : optimizers) {
      for (detail::ArrayRun const& run : detail::array_runs(each.engine().parts(), true, frozen)) {
        bytes += run.bytes();
      }
    }
    return round_up(bytes, std::uint64_t{detail::piece_bytes});
  }
  /// Bytes of memory that this object holds for `save_async`.
  [[nodiscard]] std::uint64_t held() const noexcept { return snapshot_.size(); }

  /// Saves master weights, states, counters and, unless the options leave them out, frozen
  /// parameters.
  ///
  /// The same directory, step and kind of save on all ranks. A save that is under way is finished
  /// first. Over a grid, `options.parts` says which part of a whole tensor this rank has; the whole
  /// is saved, and what a model axis has alike once.
  /// @par Collective  yes, over the optimizer's communicator or all ranks of its grid; blocks until
  ///   it is durable
  /// @par Cost  no tensor travels; a rank writes each element that it owns once, through
  ///   256 KiB of memory of the host beside the plan. How long it takes does not count towards
  ///   deadlines of the communicator; each operation of the file system has one of its own
  ///   (`file_deadline_s`)
  /// @throws Error, on every rank the same: (invalid_argument) in the middle of a step, without
  ///   values to save, or for parts that do not fit; (resource), naming rank, file and reason, if
  ///   the file system refuses; (data) where a link or a pipe has the name of a file to be written,
  ///   or the directory has the largest number that there is. The checkpoints before stay as they
  ///   are
  template <detail::OneOptimizer Optimizer>
  SaveReport save(Optimizer& optimizer, SaveOptions const& options = {}) {
    return save({{"", &optimizer}}, options);
  }
  /// Several optimizers of each rank as one checkpoint, which has all of them or is none:
  ///
  ///     run.save({{"generator", &generator}, {"critic", &critic}});
  ///
  /// The checkpoint's step is the first one's; each goes on from its own. Their names are the same
  /// on all ranks, in the same order. `options.parts` calls tensors 'generator/w'.
  /// @param optimizers  over one communicator, or grid
  /// @param options     as above
  SaveReport save(std::vector<NamedOptimizer> const& optimizers, SaveOptions const& options = {}) {
    return save_now(optimizers, options, ranks_of(optimizers).ref());
  }
  /// The same for several optimizers, each over ranks of its own, that are saved as one checkpoint.
  /// @param optimizer  that this rank is one of
  /// @param options    as above
  /// @param comm       of all ranks that save together
  template <class Optimizer, Communicator C>
  SaveReport save(Optimizer& optimizer, SaveOptions const& options, C& comm) {
    NamedOptimizer const alone("", &optimizer);
    return save_now({&alone, 1}, options, detail::ref(comm));
  }

  /// Copies what `save` would write to memory, and writes it while training goes on. `poll`, once a
  /// step, or `finish` makes it a checkpoint.
  /// @par Collective  yes, as `save`; blocks for the copy, and for a save that is under way
  /// @par Cost  one copy of what this rank owns, into memory that the constructor allocated
  /// @throws Error, on every rank, as `save`; (invalid_argument) if the memory is too small
  /// @returns true if a save before was still under way, and was finished first
  template <detail::OneOptimizer Optimizer>
  bool save_async(Optimizer& optimizer, SaveOptions const& options = {}) {
    return save_async({{"", &optimizer}}, options);
  }
  /// @overload
  bool save_async(std::vector<NamedOptimizer> const& optimizers, SaveOptions const& options = {}) {
    return begin_save(optimizers, options, ranks_of(optimizers).ref(), &snapshot_);
  }
  /// @overload
  template <class Optimizer, Communicator C>
  bool save_async(Optimizer& optimizer, SaveOptions const& options, C& comm) {
    NamedOptimizer const alone("", &optimizer);
    return begin_save({&alone, 1}, options, detail::ref(comm), &snapshot_);
  }
  /// Is a save under way?
  [[nodiscard]] bool pending() const noexcept { return pending_ != nullptr; }
  /// Has the save under way been written by all ranks? Then it becomes a checkpoint.
  /// @par Collective  yes, while a save is under way; blocks for an exchange of 16 bytes
  /// @returns what the save did, once; nothing while it is under way, or if there is none
  /// @throws Error, on every rank, as `save`
  std::optional<SaveReport> poll() {
    if (pending_ == nullptr) return std::nullopt;
    bool const finished = pending_->finished();
    std::array<std::int64_t, 2> words{finished ? 0 : 1, finished && pending_->failed() ? 1 : 0};
    pending_->control().sum(words);
    if (words[0] != 0 && words[1] == 0) return std::nullopt;
    return finish();
  }
  /// Waits for the save under way, if there is one.
  /// @par Collective  yes; blocks
  /// @throws Error, on every rank, as `save`
  std::optional<SaveReport> finish() {
    if (pending_ == nullptr) return std::nullopt;
    // After an error no save is under way.
    std::unique_ptr<detail::Saving> const saving = std::move(pending_);
    saving->commit();
    return saving->report();
  }

  /// Complete checkpoints, oldest first: those with a sound manifest whose files are there. Local.
  [[nodiscard]] std::vector<FoundCheckpoint> list() { return directory_.list(); }
  /// The newest of them whose headers are sound, and which newer ones are damaged. Local.
  /// @throws Error (data) if there are checkpoints, and all are damaged
  [[nodiscard]] std::optional<FoundCheckpoint> latest() { return newest(any_number); }
  /// The same, as the first rank sees it: others may see names of a shared file system late.
  /// @par Collective  yes, over the optimizer's communicator or all ranks of its grid; blocks
  template <class Optimizer>
  [[nodiscard]] std::optional<FoundCheckpoint> latest(Optimizer& optimizer) {
    NamedOptimizer const alone("", &optimizer);
    return newest({&alone, 1}, any_number);
  }

  /// Goes on from the newest checkpoint that is not damaged: `latest` and `load` in one, and if the
  /// load finds damage, the one before. What does not fit this optimizer is an error, as in `load`.
  /// @par Collective  yes, over the optimizer's communicator or all ranks of its grid; blocks
  /// @returns what `load` reports, with those that were passed over; nothing if there is none
  /// @throws Error as `load`; (data) if there are checkpoints, and all are damaged
  template <detail::OneOptimizer Optimizer>
  std::optional<LoadReport> resume(Optimizer& optimizer, LoadOptions const& options = {}) {
    return resume({{"", &optimizer}}, options);
  }
  /// The same for several that were saved together, by their names.
  std::optional<LoadReport> resume(std::vector<NamedOptimizer> const& optimizers,
                                   LoadOptions const& options = {}) {
    return resume_into(optimizers, options);
  }

  /// Loads a checkpoint, whatever ranks, grid, stage, bucket, memory policy, communicator or
  /// precision it was saved with. Master weights of another type are converted.
  ///
  /// What the files say is checked, and agreed on by all ranks, before anything is changed: an
  /// error until then leaves the optimizer as it was. Then data are read once, checked piece by
  /// piece; an error from there on leaves an optimizer that refuses every step until loads have
  /// replaced all that this one was to.
  /// @param optimizer  that is to go on from there
  /// @param found      the same on all ranks
  /// @param options    the same on all ranks, but for `parts`
  /// @par Collective  yes, over the optimizer's communicator or all ranks of its grid; blocks
  /// @par Cost  a rank reads the pieces of files that have what it holds, in two threads if these
  ///   are 4 MiB or more, and one refresh of all parameters. Memory of the host beside the plan:
  ///   the headers of all files, and a piece of 256 KiB for each thread, twice where types are
  ///   converted. How long reading takes does not count towards deadlines
  /// @throws Error, on every rank the same: (invalid_argument) in the middle of a step, or for a
  ///   finite value that its type here cannot hold, unless the options say `saturate`; (data)
  ///   for a checkpoint that does not fit, naming all tensors; whose states another rule has left,
  ///   naming it; or that is damaged, naming file, tensor and rank; (resource) if the file system
  ///   refuses, or an operation of it meets its deadline
  template <detail::OneOptimizer Optimizer>
  LoadReport load(Optimizer& optimizer,
                  FoundCheckpoint const& found,
                  LoadOptions const& options = {}) {
    return load({{"", &optimizer}}, found, options);
  }
  /// The same for several that were saved together, by their names. All of them are checked before
  /// one is changed. Those in `options` are 'generator/w'; so they are in the report, which tells
  /// of all. Without `strict` some of the checkpoint may be left out.
  LoadReport load(std::vector<NamedOptimizer> const& optimizers,
                  FoundCheckpoint const& found,
                  LoadOptions const& options = {}) {
    return load_into(optimizers, found, options);
  }

 private:
  using Optimizers = std::span<NamedOptimizer const>;  // one without a name, or several

  /// The optimizers' communicator, or all ranks of their grid.
  static detail::Ranks& ranks_of(Optimizers optimizers) {
    if (optimizers.empty()) fail(ErrorKind::invalid_argument, "no optimizer is given");
    return optimizers.front().engine().parts().groups.world();
  }
  /// @param snapshot  null if the save is waited for
  /// @returns whether one before was finished first
  bool begin_save(Optimizers optimizers,
                  SaveOptions const& options,
                  detail::CommunicatorRef comm,
                  std::vector<std::byte>* snapshot) {
    bool const waited = finish().has_value();
    pending_ =
        std::make_unique<detail::Saving>(directory_, options_, optimizers, options, comm, snapshot);
    return waited;
  }
  SaveReport save_now(Optimizers optimizers,
                      SaveOptions const& options,
                      detail::CommunicatorRef comm) {
    bool const waited = begin_save(optimizers, options, comm, nullptr);
    SaveReport report = *finish();
    report.waited = waited;
    return report;
  }
  std::optional<LoadReport> resume_into(Optimizers optimizers, LoadOptions const& options) {
    std::vector<std::string> skipped;
    std::uint64_t below = any_number;
    while (auto const found = newest(optimizers, below)) {
      below = found->number;
      skipped.insert(skipped.end(), found->skipped.begin(), found->skipped.end());
      detail::Restores restores(directory_.files(), optimizers, options, options_.file_deadline_s);
      LoadReport report;
      std::string damage = detail::damage_found([&] { restores.read(found->path); });
      if (damage.empty()) {
        restores.match();
        damage = detail::damage_found([&] { restores.compare(); });
      }
      if (damage.empty()) {
        restores.fit();
        damage = detail::damage_found([&] { report = restores.apply(); });
      }
      if (damage.empty()) {
        report.skipped = std::move(skipped);
        return report;
      }
      skipped.push_back(std::move(damage));
    }
    if (skipped.empty()) return std::nullopt;
    refuse_all(skipped.front());
  }
  LoadReport load_into(Optimizers optimizers,
                       FoundCheckpoint const& found,
                       LoadOptions const& options) {
    static_cast<void>(ranks_of(optimizers));
    detail::Restores restores(directory_.files(), optimizers, options, options_.file_deadline_s);
    restores.read(found.path);
    restores.match();
    restores.compare();
    restores.fit();
    return restores.apply();
  }
  /// A run that began anew would in the end remove them.
  [[noreturn]] void refuse_all(std::string const& newest) const {
    fail(ErrorKind::data,
         {"no checkpoint in '", directory_.path(), "' is complete; the newest: ", newest});
  }
  static constexpr std::uint64_t any_number = (std::numeric_limits<std::uint64_t>::max)();
  /// The newest with a number below that. Local.
  /// @throws Error (data) if there are some of any number, and all are damaged
  std::optional<FoundCheckpoint> newest(std::uint64_t below) {
    std::vector<FoundCheckpoint> all = directory_.list(true);
    std::ranges::reverse(all);
    std::vector<std::string> skipped;
    for (FoundCheckpoint& each : all) {
      if (below != any_number && each.number >= below) continue;
      // What is known to be damaged says why.
      auto const look = [&] { static_cast<void>(read_catalog(directory_.files(), each.path)); };
      std::string reason = each.skipped.empty() ? detail::damage_found(look) : each.skipped.front();
      if (reason.empty()) {
        each.skipped = std::move(skipped);
        return std::move(each);
      }
      skipped.push_back(std::move(reason));
    }
    if (!skipped.empty() && below == any_number) refuse_all(skipped.front());
    return std::nullopt;
  }
  /// The same, as the first rank sees it. Collective; blocks.
  std::optional<FoundCheckpoint> newest(Optimizers optimizers, std::uint64_t below) {
    detail::RankWords const control{ranks_of(optimizers),
                                    optimizers.front().engine().parts().arena};
    std::optional<FoundCheckpoint> found;
    detail::LongWork work(control, "latest", &directory_.files(), options_.file_deadline_s);
    work.run([&] {
      if (control.rank() == 0)
        work.run_in_thread([&](detail::Alive const&) { found = newest(below); });
    });
    // Its name may be another one than a save gives: it is told, not made anew.
    std::array<std::int64_t, 3> words{};
    if (found) {
      words = {static_cast<std::int64_t>(found->number),
               found->step,
               1 + static_cast<std::int64_t>(found->skipped.size())};
    }
    control.sum(words);
    if (words[2] == 0) return std::nullopt;
    if (!found) found.emplace();
    found->number = static_cast<std::uint64_t>(words[0]);
    found->step = static_cast<long>(words[1]);
    std::string const name =
        control.rank() == 0 ? found->path.substr(directory_.path().size()) : std::string();
    found->path = directory_.path() + detail::broadcast_text(0, control, name);
    found->skipped.resize(static_cast<std::size_t>(words[2] - 1));
    for (std::string& each : found->skipped)
      each = detail::broadcast_text(0, control, std::move(each));
    return found;
  }

  CheckpointOptions options_;
  detail::CheckpointDirectory directory_;
  std::vector<std::byte> snapshot_;
  std::unique_ptr<detail::Saving> pending_;
};

}  // namespace zero::inline ZERO_NAMESPACE
