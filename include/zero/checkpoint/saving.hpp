/// @file
/// One save: from the arrays of an optimizer, or of several, to files of all ranks, and to the
/// manifest that makes them a checkpoint.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/base/hash.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/directory.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/named_optimizer.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/rank_file.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/parts.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// How a directory of checkpoints is kept.
struct CheckpointOptions {
  /// So many of the newest stay when another one is saved; 0: all. Each rank reads back what it has
  /// written before it counts. Older ones are removed after that, while training goes on; what is
  /// asked of the object next waits for it. If one cannot be removed, the next save is an error,
  /// once its own checkpoint is there.
  int keep = 0;
  /// Memory for `save_async`, allocated at construction: `Checkpoints::plan(opt)` says how much.
  std::uint64_t snapshot_bytes = 0;
  /// Make sure that nobody else writes to the directory.
  bool lock = true;
  /// Seconds that one operation of the file system may take, such as a sync of all that a rank has
  /// written. Then a save or load ends with an error (resource) on every rank that names rank and
  /// file; the rank itself tells it as soon as the operation has ended.
  double file_deadline_s = detail::LongWork::default_deadline_s;
};

/// What a trainer adds to a checkpoint.
struct SaveOptions {
  nlohmann::json user = nlohmann::json::object();  ///< anything; that of the first rank is saved
  std::span<std::byte const> rank_blob{};  ///< this rank's own: random state, place in the data
  /// Which tensors are parts of larger ones: over a grid, all that are partitioned.
  std::vector<TensorPart> parts{};
  /// Save the values of frozen tensors; the same on all ranks. Without them, whoever loads the
  /// checkpoint gives frozen tensors their values by other calls.
  bool frozen = true;
};

/// What a save did.
struct SaveReport {
  std::string path{};       ///< the checkpoint's directory
  long step = 0;            ///< updates applied
  std::uint64_t bytes = 0;  ///< of all ranks' files
  bool waited = false;      ///< a save before was still under way, and was finished first
};

namespace detail {

/// One save, until it is a checkpoint or is given up. Its functions are collective over the ranks
/// that save together, but for those marked local.
class Saving {
 public:
  /// Agrees on what is saved where, and begins this rank's file.
  /// @param comm      of all ranks that save together
  /// @param snapshot  memory for all of this rank's data; null to write it from where it lies
  Saving(CheckpointDirectory& directory,
         CheckpointOptions const& checkpoint_options,
         std::span<NamedOptimizer const> optimizers,
         SaveOptions const& options,
         CommunicatorRef comm,
         std::vector<std::byte>* snapshot)
      : directory_(&directory),
        checkpoint_options_(checkpoint_options),
        operation_(snapshot == nullptr ? "save" : "save_async"),
        ranks_(comm),
        control_(ranks_, optimizers.front().engine().parts().arena) {
    std::vector<OwnFile> own(optimizers.size());
    std::uint64_t number = 0;
    // No rank touches a file before all know that each has something that can be read again.
    together(control_, operation_, [&] {
      require_distinct(optimizers, options.parts);
      std::uint64_t bytes = 0;
      for (std::size_t i = 0; i < own.size(); ++i) {
        names_.push_back(optimizers[i].name());
        Engine& engine = optimizers[i].engine();
        engine.require_bound();
        engine.require_between_steps(operation_);
        engine.require_values();
        own[i].parts = &engine.parts();
        std::vector<ArrayRun> const runs = array_runs(engine.parts(), true, options.frozen);
        own[i].data = data_of(runs, engine.parts().space().host_accessible());
        own[i].header = describe(engine, names_[i], runs, options);
        coded_ = coded_ || has_codes(engine.parts());
        bytes += own[i].header.data_bytes();
      }
      if (snapshot != nullptr && snapshot->size() < bytes) {
        fail(ErrorKind::invalid_argument,
             {"save_async() needs ",
              bytes,
              " bytes on this rank, and CheckpointOptions::snapshot_bytes gave ",
              snapshot->size()});
      }
      if (control_.rank() != 0) return;
      user_ = options.user;
      Manifest whole = promised();
      whole.user = user_;
      static_cast<void>(manifest_text(whole));
    });
    LongWork work(control_, operation_, &directory_->files(), checkpoint_options_.file_deadline_s);
    work.run([&] {
      // What is to be copied is, while the disk is waited for.
      auto const copy = [&] {
        if (snapshot == nullptr) return;
        std::byte* to = snapshot->data();
        for (OwnFile const& each : own) {
          fill(to, each.data, each.parts->space(), work);
          to += each.header.data_bytes();
        }
      };
      if (control_.rank() != 0) return copy();
      work.run_in_thread(
          [&](Alive const&) {
            number = directory.begin(checkpoint_options.lock, promised());
            removes_ = checkpoint_options.keep > 0 &&
                       std::ssize(directory.list()) >= checkpoint_options.keep;
          },
          copy);
    });
    Parts& first = *own.front().parts;
    place(number, options.frozen, {first.comm(), first.arena});
    // The first file has the trainer's own bytes.
    std::span<std::byte const> const blob = options.rank_blob;
    std::byte* copied = snapshot != nullptr ? snapshot->data() : nullptr;
    for (std::size_t i = 0; i < own.size(); ++i) {
      OwnFile& file = own[i];
      std::span<std::byte const> const last = i == 0 ? blob : blob.first(0);
      if (snapshot != nullptr) {
        std::uint64_t const bytes = file.header.data_bytes();
        std::copy(last.begin(), last.end(), copied + (bytes - last.size()));
        file.data = {RankData::bytes_at(copied, bytes)};
        copied += bytes;
      } else {
        file.data.push_back(RankData::bytes_at(last.data(), last.size()));
      }
      file.saved = {.name = file_name(control_.rank(), names_[i]),
                    .leader = leader_ * static_cast<int>(own.size()) + static_cast<int>(i),
                    .rank = file.parts->comm().rank(),
                    .world_size = file.parts->comm().size()};
    }
    auto write = [this, own = std::move(own)]() mutable {
      FloatMode::reset();
      try {
        std::vector<SavedFile> written;
        for (OwnFile& file : own) {
          written.push_back(write_rank_file(directory_->files(),
                                            report_.path,
                                            std::move(file.saved),
                                            std::move(file.header),
                                            RankData(std::move(file.data), file.parts->space()),
                                            removes_,
                                            [this] { require_going_on(); }));
        }
        return written;
      } catch (...) {
        failed_ = true;
        throw;
      }
    };
    written_ = std::async(std::launch::async, std::move(write));
  }
  Saving(Saving const&) = delete;
  Saving& operator=(Saving const&) = delete;
  ~Saving() { stopped_ = true; }

  [[nodiscard]] RankWords const& control() const noexcept { return control_; }
  [[nodiscard]] SaveReport const& report() const noexcept { return report_; }

  /// Has this rank's file been written, or failed? Local.
  [[nodiscard]] bool finished(std::chrono::milliseconds patience = {}) const {
    return written_.wait_for(patience) == std::future_status::ready;
  }
  /// Did it fail? Local; once finished.
  [[nodiscard]] bool failed() const noexcept { return failed_; }

  /// Waits for all ranks' files, and writes the manifest.
  void commit() {
    LongWork work(control_, operation_, &directory_->files(), checkpoint_options_.file_deadline_s);
    std::vector<std::int64_t> words;
    work.run([&] {
      while (!finished(std::chrono::milliseconds(20))) work.alive();
      for (SavedFile const& own : written_.get()) {
        words.insert(words.end(),
                     {static_cast<std::int64_t>(own.bytes),
                      static_cast<std::int64_t>(own.header_bytes),
                      std::bit_cast<std::int64_t>(own.header_sum),
                      own.leader,
                      own.rank,
                      own.world_size});
      }
    });
    std::vector<std::int64_t> const all = control_.gather(words);
    std::size_t const each = words.size() / names_.size();
    Manifest manifest{.step = report_.step, .user = user_, .files = {}, .coded = coded_};
    for (std::size_t at = 0; at < all.size(); at += each) {
      int const saver = static_cast<int>(at / words.size());
      std::string const& optimizer = names_[at / each % names_.size()];
      manifest.files.push_back({.name = file_name(saver, optimizer),
                                .bytes = static_cast<std::uint64_t>(all[at]),
                                .header_bytes = static_cast<std::uint64_t>(all[at + 1]),
                                .header_sum = std::bit_cast<std::uint64_t>(all[at + 2]),
                                .leader = static_cast<int>(all[at + 3]),
                                .rank = static_cast<int>(all[at + 4]),
                                .world_size = static_cast<int>(all[at + 5]),
                                .optimizer = optimizer});
      report_.bytes += manifest.files.back().bytes;
    }
    LongWork seal(control_, operation_, &directory_->files(), checkpoint_options_.file_deadline_s);
    seal.run([&] {
      if (control_.rank() != 0) return;
      seal.run_in_thread([&](Alive const&) {
        write_file(
            directory_->files(), report_.path, std::string(manifest_name), manifest_text(manifest));
      });
      // All ranks have read back what they wrote.
      if (removes_) directory_->keep_newest(checkpoint_options_.keep);
    });
  }

 private:
  /// This rank's file of one optimizer.
  struct OwnFile {
    Parts* parts = nullptr;
    safetensors::Header header{};
    std::vector<RankData::MemoryRun> data{};
    SavedFile saved{};
  };

  /// Its header.
  [[nodiscard]] safetensors::Header describe(Engine& engine,
                                             std::string const& name,
                                             std::vector<ArrayRun> const& runs,
                                             SaveOptions const& options) {
    Parts& parts = engine.parts();
    Counters const counters = engine.counters();
    bool const first = name == names_.front();
    if (first) report_.step = counters.step;
    nlohmann::json about = {{"rank", parts.comm().rank()},
                            {"world_size", parts.comm().size()},
                            {"piece_bytes", piece_bytes}};
    if (parts.comm().rank() == 0) {
      std::vector<SavedTensor> tensors =
          described(parts, parts_of(name, options.parts), counters, parts.divided());
      for (SavedTensor& tensor : tensors) {
        tensor.left_out = tensor.frozen && !options.frozen;
        // No reader would take it.
        std::string problem = problem_of_boxes(tensor.shape, tensor.boxes);
        auto const t = static_cast<std::size_t>(&tensor - tensors.data());
        if (problem.empty() && parts.types[parts.partition.place(t).kind].coded() &&
            cuts_groups(tensor.shape, tensor.boxes)) {
          problem =
              "has a part that cuts the groups of 32 elements in which its states are coded; have "
              "them in full (Tensor::full_states)";
        }
        if (problem.empty()) continue;
        fail(ErrorKind::invalid_argument, {"tensor '", tensor.name, "' ", problem});
      }
      about["optimizer"] = json_of(SavedOptimizer{.tensors = std::move(tensors),
                                                  .policies = policies_of(parts),
                                                  .loss_scale = counters.loss_scale,
                                                  .loss_scale_streak = counters.loss_scale_streak,
                                                  .step = name.empty() ? -1 : counters.step});
    }
    return header_of(runs, parts.tensors, first ? options.rank_blob.size() : 0, about);
  }
  /// Where runs lie, most of which lie one behind the other.
  [[nodiscard]] static std::vector<RankData::MemoryRun> data_of(std::vector<ArrayRun> const& runs,
                                                                bool here) {
    std::vector<RankData::MemoryRun> data;
    for (ArrayRun const& run : runs) {
      // What lies as it is saved lies in few pieces.
      RankData::MemoryRun next{run.values, run.bytes(), false};
      if (run.values.plain()) next = RankData::bytes_at(run.values.array.first, run.bytes(), here);
      bool const goes_on = !data.empty() && run.values.plain() &&
                           data.back().values.go_on(data.back().bytes, next.values);
      if (goes_on) {
        data.back().bytes += run.bytes();
      } else {
        data.push_back(next);
      }
    }
    return data;
  }
  /// Copies arrays to memory.
  static void fill(std::byte* to,
                   std::vector<RankData::MemoryRun> const& data,
                   AnySpace const& space,
                   LongWork& work) {
    // At once: more than caches hold, and not for long.
    constexpr std::uint64_t stretch = std::uint64_t{32} << 20;
    for (RankData::MemoryRun const& run : data) {
      for (std::uint64_t done = 0; done < run.bytes; work.alive()) {
        auto const count = static_cast<std::size_t>((std::min)(run.bytes - done, stretch));
        if (run.here) {
          std::memcpy(to, run.first() + done, count);
        } else {
          RankData::MemoryRun{run.behind(done), count, false}.fetch(space, to, count);
        }
        to += count;
        done += count;
      }
    }
  }
  void require_going_on() const {
    if (stopped_) fail(ErrorKind::resource, {"the save to '", report_.path, "' was given up"});
  }
  /// The files that this save is going to write.
  [[nodiscard]] Manifest promised() const {
    Manifest files{.step = report_.step};
    for (int saver = 0; saver < control_.size(); ++saver) {
      for (std::string const& optimizer : names_) {
        files.files.push_back({.name = file_name(saver, optimizer), .optimizer = optimizer});
        files.files.back().leader = static_cast<int>(files.files.size()) - 1;
      }
    }
    return files;
  }
  [[nodiscard]] static std::string file_name(int saver, std::string const& optimizer) {
    std::string digits = std::to_string(saver);
    if (digits.size() < 5) digits.insert(0, 5 - digits.size(), '0');
    return "rank-" + digits + (optimizer.empty() ? "" : "." + optimizer) + ".safetensors";
  }

  /// Where the checkpoint lies, who describes this rank's optimizer, and whether others are removed
  /// when it is there.
  /// @param number  as the first rank has it; others have 0
  /// @param frozen  whether frozen tensors are saved
  /// @param own     of the ranks that have the same part of the model
  void place(std::uint64_t number, bool frozen, RankWords const& own) {
    Hash hash;
    hash.add(directory_->path());
    hash.add(static_cast<std::uint64_t>(report_.step));
    hash.add(operation_);
    hash.add(static_cast<std::uint64_t>(checkpoint_options_.keep));
    hash.add(static_cast<std::uint64_t>(frozen));
    for (std::string const& name : names_) hash.add(name);
    if (!control_.unanimous(hash.value())) {
      fail(ErrorKind::invalid_argument,
           {"ranks save to different directories, at different steps, in different ways, of "
            "different optimizers or with different CheckpointOptions::keep or "
            "SaveOptions::frozen; here ",
            names_.front().empty() ? "" : quoted(names_) + " to ",
            "'",
            directory_->path(),
            "' at step ",
            report_.step,
            ", keep = ",
            checkpoint_options_.keep,
            frozen ? "" : ", without frozen tensors"},
           {.rank = control_.rank(), .operation = std::string(operation_)});
    }
    std::array<std::int64_t, 2> words{static_cast<std::int64_t>(number), removes_ ? 1 : 0};
    control_.sum(words);
    removes_ = words[1] != 0;
    report_.path = directory_->path_of(static_cast<std::uint64_t>(words[0]), report_.step);
    std::int64_t leader = own.rank() == 0 ? control_.rank() : 0;
    own.sum({&leader, 1});
    leader_ = static_cast<int>(leader);
  }

  CheckpointDirectory* directory_;
  CheckpointOptions checkpoint_options_;
  std::string_view operation_;
  Ranks ranks_;
  RankWords control_;
  std::vector<std::string> names_{};  ///< of optimizers; empty: of one without
  int leader_ = 0;
  bool removes_ = false;
  bool coded_ = false;  ///< some states are codes
  nlohmann::json user_ = nlohmann::json::object();
  SaveReport report_{};
  std::atomic<bool> stopped_{false};
  std::atomic<bool> failed_{false};
  std::future<std::vector<SavedFile>> written_;  ///< waits for its thread before the rest goes
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
