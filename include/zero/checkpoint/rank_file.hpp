/// @file
/// One rank's file of a checkpoint, written by a thread of its own.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/together.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <span>
#include <string>
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
  // Names that it cannot hold are found before anything is written.
  static_cast<void>(safetensors::format(header));
  return header;
}

/// Bytes of data between two checksums.
inline constexpr std::size_t piece_bytes = std::size_t{1} << 18;

/// What a rank has to save, in the order of its file, from where it lies.
class RankData {
 public:
  /// Bytes that follow each other in memory.
  struct Part {
    std::byte const* memory = nullptr;
    std::uint64_t bytes = 0;
    bool here = true;  ///< the host can read them
  };

  /// @param fetch  brings bytes to the host that it cannot read
  RankData(std::vector<Part> parts, std::function<void(void*, void const*, std::size_t)> fetch)
      : parts_(std::move(parts)), fetch_(std::move(fetch)) {}

  /// The next piece, until the one after; the last one is shorter, and none empty.
  [[nodiscard]] std::span<std::byte const> next() {
    if (at_ < parts_.size() && parts_[at_].here && parts_[at_].bytes >= piece_bytes) {
      return {take(piece_bytes), piece_bytes};
    }
    buffer_.resize(piece_bytes);
    std::size_t held = 0;
    while (held < piece_bytes && at_ < parts_.size()) {
      Part const part = parts_[at_];
      auto const count =
          static_cast<std::size_t>((std::min)(part.bytes, std::uint64_t{piece_bytes - held}));
      if (part.here) {
        if (count > 0) std::memcpy(buffer_.data() + held, part.memory, count);
      } else {
        fetch_(buffer_.data() + held, part.memory, count);
      }
      take(count);
      held += count;
    }
    return std::span(buffer_).first(held);
  }

 private:
  std::byte const* take(std::size_t count) {
    Part& part = parts_[at_];
    std::byte const* const taken = part.memory;
    part.memory += count;
    part.bytes -= count;
    if (part.bytes == 0) ++at_;
    return taken;
  }

  std::vector<Part> parts_;
  std::size_t at_ = 0;
  std::function<void(void*, void const*, std::size_t)> fetch_;
  std::vector<std::byte> buffer_;
};

/// Writes a rank's file: data, then the header with their checksums; makes it durable and gives it
/// its name. All in a thread of its own, which the destructor stops.
class RankFileWriter {
 public:
  /// @param saved       its name, and whose it is
  /// @param reads_back  whether to make sure that the file can be read, before it has its name
  RankFileWriter(FileOperations& files,
                 std::string directory,
                 SavedFile saved,
                 safetensors::Header header,
                 RankData data,
                 bool reads_back)
      : files_(&files),
        directory_(std::move(directory)),
        saved_(std::move(saved)),
        header_(std::move(header)),
        data_(std::move(data)),
        reads_back_(reads_back),
        written_(std::async(std::launch::async,
                            [this] { failure_ = attempt_alone([this] { write(); }); })) {}
  RankFileWriter(RankFileWriter const&) = delete;
  RankFileWriter& operator=(RankFileWriter const&) = delete;
  ~RankFileWriter() { stopped_ = true; }

  /// Waits for the file, so long at most.
  [[nodiscard]] bool finished(std::chrono::milliseconds patience) const {
    return written_.wait_for(patience) == std::future_status::ready;
  }
  /// Once finished: why there is no file, if there is none.
  [[nodiscard]] RankFailure const& failure() const noexcept { return failure_; }
  /// Once finished: what the manifest is to say of it.
  [[nodiscard]] SavedFile const& saved() const noexcept { return saved_; }

 private:
  void write() {
    std::string const name = saved_.name;
    saved_.name = temporary(name);
    File file(*files_, directory_ + "/" + saved_.name, FileMode::create);
    // Checksums are as long as what stands for them now.
    std::string& sums = header_.metadata[sums_key];
    sums.resize(
        static_cast<std::size_t>(ceil_div(header_.data_bytes(), std::uint64_t{piece_bytes})) *
            checksum_digits,
        '0');
    std::uint64_t const before = safetensors::format(header_).size();
    sums.clear();
    std::uint64_t done = 0;
    for (auto piece = data_.next(); !piece.empty(); piece = data_.next()) {
      require_going_on();
      sums += checksum_text(checksum(piece.data(), piece.size()));
      file.write(piece.data(), piece.size(), before + done);
      done += piece.size();
    }
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
    if (!stopped_) return;
    fail(ErrorKind::resource, {"'", directory_, "/", saved_.name, "' was given up"});
  }

  FileOperations* files_;
  std::string directory_;
  SavedFile saved_;
  safetensors::Header header_;
  RankData data_;
  bool reads_back_;
  std::atomic<bool> stopped_{false};
  RankFailure failure_{};
  std::future<void> written_;  ///< waits for the thread before the rest goes
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
