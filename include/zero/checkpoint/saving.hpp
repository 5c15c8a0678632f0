/// @file
/// One save: from an optimizer's arrays to files of all ranks, and to the manifest that makes them
/// a checkpoint.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/checkpoint/array_runs.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/directory.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/long_work.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/pipe.hpp"
#include "zero/checkpoint/rank_file.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/optimizer/setup/rank_agreement.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
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
  static constexpr auto patience = std::chrono::milliseconds(20);
  /// What is copied to a snapshot at once: more than caches hold, and not for long.
  static constexpr std::uint64_t stretch = std::uint64_t{32} << 20;
  /// Memory of a save that is waited for.
  static constexpr std::size_t pipe_bytes = 4 * Pipe::piece;

  /// Agrees on what is saved where, and begins this rank's file.
  /// @param control   of all ranks that save together
  /// @param snapshot  memory for all of this rank's data; null to write while it is filled
  Saving(CheckpointDirectory& directory,
         CheckpointOptions const& kept,
         OptimizerView const& optimizer,
         SaveOptions const& options,
         ControlWords control,
         std::vector<std::byte>* snapshot)
      : directory_(&directory),
        kept_(kept),
        operation_(snapshot == nullptr ? "save" : "save_async"),
        control_(std::move(control)) {
    safetensors::Header header;
    std::uint64_t number = 0;
    LongWork work(control_, operation_, &directory_->files().watch(), kept_.file_deadline_s);
    work.run([&] {
      optimizer.require_ready(operation_, false);
      optimizer.require_values();
      header = describe(optimizer, options);
      if (snapshot != nullptr && snapshot->size() < data_bytes(header)) {
        fail(ErrorKind::invalid_argument,
             {"save_async() needs ",
              data_bytes(header),
              " bytes on this rank, and CheckpointOptions::snapshot_bytes gave ",
              snapshot->size()});
      }
      // What is to be copied is, while the disk is waited for.
      auto const copy = [&] {
        if (snapshot != nullptr) fill(*snapshot, optimizer, options, work);
      };
      if (control_.rank != 0) return copy();
      user_ = options.user;
      work.aside(
          [&] {
            number = directory.begin(kept.lock, promised());
            removes_ = kept.keep > 0 && std::ssize(directory.list()) >= kept.keep;
          },
          copy);
    });
    place(number, optimizer.data);
    SavedFile saved{.name = file_name(control_.rank),
                    .leader = leader_,
                    .rank = optimizer.data.rank,
                    .world_size = optimizer.data.size};
    std::optional<std::uint64_t> there;
    if (snapshot == nullptr) {
      memory_.resize(pipe_bytes);
    } else {
      there = data_bytes(header);
    }
    writer_ = std::make_unique<RankFileWriter>(
        directory.files(),
        report_.path,
        std::move(saved),
        std::move(header),
        removes_,
        std::span<std::byte>(snapshot == nullptr ? memory_ : *snapshot),
        there);
    if (snapshot == nullptr) pour(optimizer, options);
  }

  [[nodiscard]] ControlWords const& control() const noexcept { return control_; }
  [[nodiscard]] SaveReport const& report() const noexcept { return report_; }

  /// Has this rank's file been written, or failed? Local.
  [[nodiscard]] bool finished() { return writer_->finished(std::chrono::milliseconds(0)); }
  /// Did it fail? Local; once finished.
  [[nodiscard]] bool failed() const noexcept { return writer_->failure().failed; }

  /// Waits for all ranks' files, and writes the manifest.
  void commit() {
    LongWork work(control_, operation_, &directory_->files().watch(), kept_.file_deadline_s);
    work.run([&] {
      while (!writer_->finished(patience)) work.alive();
      if (failed()) fail(writer_->failure().kind, writer_->failure().text);
    });
    SavedFile const& own = writer_->saved();
    std::array<std::int64_t, 6> const words{static_cast<std::int64_t>(own.bytes),
                                            static_cast<std::int64_t>(own.header_bytes),
                                            std::bit_cast<std::int64_t>(own.header_sum),
                                            own.leader,
                                            own.rank,
                                            own.world_size};
    std::vector<std::int64_t> const all = control_.gather(words);
    Manifest manifest{.step = report_.step, .user = user_};
    for (std::size_t at = 0; at < all.size(); at += words.size()) {
      int const saver = static_cast<int>(at / words.size());
      manifest.files.push_back({.name = file_name(saver),
                                .bytes = static_cast<std::uint64_t>(all[at]),
                                .header_bytes = static_cast<std::uint64_t>(all[at + 1]),
                                .header_sum = std::bit_cast<std::uint64_t>(all[at + 2]),
                                .leader = static_cast<int>(all[at + 3]),
                                .rank = static_cast<int>(all[at + 4]),
                                .world_size = static_cast<int>(all[at + 5])});
      report_.bytes += manifest.files.back().bytes;
    }
    LongWork seal(control_, operation_, &directory_->files().watch(), kept_.file_deadline_s);
    seal.run([&] {
      if (control_.rank != 0) return;
      seal.aside([&] {
        write_file(
            directory_->files(), report_.path, std::string(manifest_name), manifest_text(manifest));
      });
      // All ranks have read back what they wrote.
      if (removes_) directory_->keep_newest(kept_.keep);
    });
  }

 private:
  /// What this rank has to save, and the header of its file.
  [[nodiscard]] safetensors::Header describe(OptimizerView const& optimizer,
                                             SaveOptions const& options) {
    Counters const counters = optimizer.counters();
    report_.step = counters.step;
    runs_ = optimizer.runs(true);
    nlohmann::json about = {{"rank", optimizer.data.rank},
                            {"world_size", optimizer.data.size},
                            {"piece_bytes", Pipe::piece}};
    if (optimizer.data.rank == 0) {
      about["optimizer"] = json_of(SavedOptimizer{
          .tensors = described(*optimizer.model, options.parts, counters, optimizer.divided),
          .policies = json_of(optimizer.facts),
          .loss_scale = counters.loss_scale,
          .loss_scale_streak = counters.loss_scale_streak});
    }
    safetensors::Header header =
        header_of(runs_, optimizer.model->tensors, options.rank_blob.size(), about);
    // Names that it cannot hold are found before anything is written.
    safetensors::Header copy = header;
    static_cast<void>(safetensors::format(copy));
    return header;
  }
  /// Copies this rank's data to memory, all of it.
  void fill(std::span<std::byte> memory,
            OptimizerView const& optimizer,
            SaveOptions const& options,
            LongWork& work) {
    std::byte* to = memory.data();
    for (std::size_t i = 0; i < runs_.size();) {
      std::byte const* from = runs_[i].memory;
      std::uint64_t bytes = 0;
      // Most runs lie one behind the other.
      for (; i < runs_.size() && runs_[i].memory == from + bytes; ++i) bytes += runs_[i].bytes();
      for (std::uint64_t done = 0; done < bytes; work.alive()) {
        auto const count = static_cast<std::size_t>((std::min)(bytes - done, stretch));
        optimizer.download(to, from + done, count);
        to += count;
        done += count;
      }
    }
    std::copy(options.rank_blob.begin(), options.rank_blob.end(), to);
  }
  /// Puts this rank's data into the pipe, all of it.
  void pour(OptimizerView const& optimizer, SaveOptions const& options) {
    LongWork work(control_, operation_, &directory_->files().watch(), kept_.file_deadline_s);
    work.run([&] {
      for (ArrayRun const& run : runs_) put(run.memory, run.bytes(), optimizer.download, work);
      put(
          options.rank_blob.data(),
          options.rank_blob.size(),
          [](void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); },
          work);
      writer_->pipe().end();
    });
  }
  /// The files that this save is going to write.
  [[nodiscard]] Manifest promised() const {
    Manifest files{.step = report_.step};
    for (int saver = 0; saver < control_.size; ++saver) {
      files.files.push_back({.name = file_name(saver)});
    }
    return files;
  }
  [[nodiscard]] static std::string file_name(int saver) {
    std::string digits = std::to_string(saver);
    if (digits.size() < 5) digits.insert(0, 5 - digits.size(), '0');
    return "rank-" + digits + ".safetensors";
  }

  /// Where the checkpoint lies, who describes this rank's optimizer, and whether others are removed
  /// when it is there.
  /// @param number  as the first rank has it
  /// @param own     of the ranks that have the same part of the model
  void place(std::uint64_t number, ControlWords const& own) {
    Hash hash;
    hash.add(directory_->path());
    hash.add(static_cast<std::uint64_t>(report_.step));
    hash.add(operation_);
    hash.add(static_cast<std::uint64_t>(kept_.keep));
    std::array<std::int64_t, 2 + Unanimity::word_count> words{};
    if (control_.rank == 0) words = {static_cast<std::int64_t>(number), removes_ ? 1 : 0};
    Unanimity::write(hash.value(), words.data() + 2);
    control_.sum(words);
    removes_ = words[1] != 0;
    if (!Unanimity::holds(words.data() + 2, control_.size)) {
      fail(ErrorKind::invalid_argument,
           {"ranks save to different directories, at different steps, in different ways or with "
            "different CheckpointOptions::keep; here '",
            directory_->path(),
            "' at step ",
            report_.step,
            ", keep = ",
            kept_.keep},
           {.rank = control_.rank, .operation = std::string(operation_)});
    }
    report_.path = directory_->path_of(static_cast<std::uint64_t>(words[0]), report_.step);
    std::int64_t leader = own.rank == 0 ? control_.rank : 0;
    own.sum({&leader, 1});
    leader_ = static_cast<int>(leader);
  }

  /// @param fetch  `fetch(to, from, bytes)` brings bytes to memory of the host
  template <class Fetch>
  void put(std::byte const* from, std::uint64_t bytes, Fetch const& fetch, LongWork& work) {
    Pipe& pipe = writer_->pipe();
    for (std::uint64_t done = 0; done < bytes;) {
      std::span<std::byte> const room = pipe.room(patience);
      work.alive();
      // A file that failed takes no more: why is told when it is waited for.
      if (room.empty() && pipe.stopped()) return;
      // In pieces, so that what is copied is written while it lies in the cache.
      auto const count = static_cast<std::size_t>((std::min)(
          bytes - done, std::uint64_t{(std::min)(room.size(), std::size_t{Pipe::piece})}));
      if (count == 0) continue;
      fetch(room.data(), from + done, count);
      pipe.put(count);
      done += count;
    }
  }

  CheckpointDirectory* directory_;
  CheckpointOptions kept_;
  std::string_view operation_;
  ControlWords control_;
  int leader_ = 0;
  bool removes_ = false;
  nlohmann::json user_ = nlohmann::json::object();
  SaveReport report_{};
  std::vector<ArrayRun> runs_;
  std::vector<std::byte> memory_;
  std::unique_ptr<RankFileWriter> writer_;  ///< stops before the rest goes
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
