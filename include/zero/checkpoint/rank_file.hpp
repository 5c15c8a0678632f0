/// @file
/// One rank's file of a checkpoint, written by a thread of its own.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/checkpoint/array_runs.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/pipe.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/checkpoint/verify.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a run of elements is called in a rank's file.
[[nodiscard]] inline std::string entry_name(std::string const& tensor, ArrayRun const& run) {
  return tensor + ":" + std::string(run.array) + ":" + std::to_string(run.first);
}

/// The header of a rank's file but for checksums: entries lie in the order of the runs.
/// @param blob_bytes  of the trainer's own, behind them
[[nodiscard]] inline safetensors::Header header_of(std::vector<ArrayRun> const& runs,
                                                   std::vector<Tensor> const& tensors,
                                                   std::uint64_t blob_bytes,
                                                   nlohmann::json const& about) {
  safetensors::Header header;
  for (ArrayRun const& run : runs) {
    header.entries.push_back({.name = entry_name(tensors[run.tensor].name, run),
                              .dtype = std::string(safetensors::spelled(run.dtype)),
                              .shape = {run.count}});
  }
  if (blob_bytes > 0) {
    header.entries.push_back(
        {.name = std::string(blob_entry), .dtype = "U8", .shape = {blob_bytes}});
  }
  header.metadata[about_key] = about.dump();
  return header;
}

/// Bytes of a file's data.
[[nodiscard]] inline std::uint64_t data_bytes(safetensors::Header const& header) noexcept {
  std::uint64_t bytes = 0;
  for (safetensors::Entry const& entry : header.entries) {
    bytes += volume(entry.shape) * safetensors::element_bytes(entry.dtype);
  }
  return bytes;
}

/// Writes a rank's file: what comes through the pipe, then the header with its checksums; makes it
/// durable and gives it its name. All in a thread of its own, which the destructor stops.
class RankFileWriter {
 public:
  /// @param saved       its name, and whose it is
  /// @param reads_back  whether to make sure that the file can be read, before it has its name
  /// @param memory, there  of the pipe
  RankFileWriter(FileOperations& files,
                 std::string directory,
                 SavedFile saved,
                 safetensors::Header header,
                 bool reads_back,
                 std::span<std::byte> memory,
                 std::optional<std::uint64_t> there)
      : files_(&files),
        directory_(std::move(directory)),
        saved_(std::move(saved)),
        header_(std::move(header)),
        reads_back_(reads_back),
        pipe_(memory, there),
        thread_([this] { work(); }) {}
  RankFileWriter(RankFileWriter const&) = delete;
  RankFileWriter& operator=(RankFileWriter const&) = delete;
  ~RankFileWriter() {
    pipe_.stop();
    thread_.join();
  }

  [[nodiscard]] Pipe& pipe() noexcept { return pipe_; }
  /// Waits for the file, so long at most.
  [[nodiscard]] bool finished(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [this] { return finished_; });
  }
  /// Once finished: why there is no file, if there is none.
  [[nodiscard]] RankFailure const& failure() const noexcept { return failure_; }
  /// Once finished: what the manifest is to say of it.
  [[nodiscard]] SavedFile const& saved() const noexcept { return saved_; }

 private:
  void work() {
    RankFailure failure = attempt_alone([this] { write(); });
    std::lock_guard const lock(mutex_);
    failure_ = std::move(failure);
    finished_ = true;
    // Nobody is left to take what is put.
    if (failure_.failed) pipe_.stop();
    changed_.notify_all();
  }
  void write() {
    std::string const name = saved_.name;
    saved_.name = temporary(name);
    File file(*files_, directory_ + "/" + saved_.name, FileMode::create);
    std::uint64_t const bytes = data_bytes(header_);
    std::string sums(
        static_cast<std::size_t>(ceil_div(bytes, std::uint64_t{Pipe::piece})) * checksum_digits,
        '0');
    header_.metadata[sums_key] = sums;
    // Checksums are as long as what stands for them now.
    std::uint64_t const before = safetensors::format(header_).size();
    std::uint64_t done = 0;
    std::size_t digit = 0;
    for (auto piece = pipe_.next(); !piece.bytes.empty(); piece = pipe_.next()) {
      sums.replace(digit, checksum_digits, checksum_text(piece.sum));
      file.write(piece.bytes.data(), piece.bytes.size(), before + done);
      done += piece.bytes.size();
      digit += checksum_digits;
      pipe_.took(piece.bytes.size());
    }
    require_going_on();
    header_.metadata[sums_key] = std::move(sums);
    std::string const text = safetensors::format(header_);
    file.write(text.data(), text.size(), 0);
    saved_.bytes = before + done;
    saved_.header_bytes = before;
    saved_.header_sum = checksum(text.data(), text.size());
    std::future<void> read;
    if (reads_back_) {
      // While the disk is waited for.
      read = std::async(std::launch::async, [this] {
        verify_file(*files_, directory_, saved_, [this] { require_going_on(); });
      });
    }
    file.sync();
    if (reads_back_) read.get();
    name_file(*files_, file, directory_, name);
    saved_.name = name;
  }
  void require_going_on() const {
    if (!pipe_.stopped()) return;
    fail(ErrorKind::resource, {"'", directory_, "/", saved_.name, "' was given up"});
  }

  FileOperations* files_;
  std::string directory_;
  SavedFile saved_;
  safetensors::Header header_;
  bool reads_back_;
  Pipe pipe_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  RankFailure failure_{};
  std::thread thread_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
