/// @file
/// One rank's file of a checkpoint, written by a thread of its own.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
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
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a run of elements is called in a rank's file; numbers of scales are those of groups.
[[nodiscard]] inline std::string entry_name(std::string const& tensor, ArrayRun const& run) {
  std::uint64_t const first = entries_of(run.coding, run.first);
  return tensor + ":" + run.saved_name() + ":" + std::to_string(first);
}

/// Bytes of data between two checksums.
inline constexpr std::size_t piece_bytes = std::size_t{1} << 18;

/// The header of a rank's file, with room for its checksums: entries lie in the order of the runs.
/// @param blob_bytes  of the trainer's own, behind them
/// @throws Error (invalid_argument) for what the format cannot hold, or no reader would take, from
///   this save or from a later one
[[nodiscard]] inline safetensors::Header header_of(std::vector<ArrayRun> const& runs,
                                                   std::vector<Tensor> const& tensors,
                                                   std::uint64_t blob_bytes,
                                                   nlohmann::json const& about) {
  safetensors::Header header;
  for (ArrayRun const& run : runs) {
    if (run.array.find(':') != std::string_view::npos) {
      fail(ErrorKind::invalid_argument,
           {"a file cannot hold the state '", run.array, "': its name has a colon"});
    }
    header.entries.push_back({.name = entry_name(tensors[run.tensor].name, run),
                              .dtype = run.coding == Coding::root
                                           ? std::string(signed_codes)
                                           : std::string(safetensors::spelled(run.dtype())),
                              .shape = {entries_of(run.coding, run.count)}});
  }
  if (blob_bytes > 0) {
    header.entries.push_back(
        {.name = std::string(blob_entry), .dtype = "U8", .shape = {blob_bytes}});
  }
  header.metadata[about_key] = about.dump();
  std::uint64_t bytes = blob_bytes;
  for (ArrayRun const& run : runs) bytes += run.bytes();
  header.metadata[sums_key].resize(
      static_cast<std::size_t>(ceil_div(bytes, std::uint64_t{piece_bytes})) * checksum_digits, '0');
  // What it cannot hold is found before anything is written, and at the first save: later ones
  // count further, and know of other rates and groups.
  static_cast<void>(safetensors::format(
      header, (std::uint64_t{1} << 20) + tensors.size() * std::to_string(most_steps).size()));
  return header;
}

/// What a rank has to save, in the order of its file, from where it lies.
class RankData {
 public:
  /// Values that follow each other in memory; such that lie there as they are, as bytes.
  struct MemoryRun {
    HeldValues values{};
    std::uint64_t bytes = 0;  ///< as they are saved
    bool here = true;         ///< the host can read them where they lie

    /// The first of these bytes, where they lie as they are.
    [[nodiscard]] std::byte const* first() const noexcept { return values.array.first; }
    /// Those behind the first `done`, which are whole values.
    [[nodiscard]] HeldValues behind(std::uint64_t done) const noexcept {
      return values.from(done / size_of(values.array.dtype));
    }
    /// Brings the first `count` of them to the host.
    void fetch(AnySpace const& space, std::byte* to, std::size_t count) const {
      read_values(space, values, count / size_of(values.array.dtype), to);
    }
  };
  /// Bytes in memory of the host, or of a space.
  [[nodiscard]] static MemoryRun bytes_at(std::byte const* first,
                                          std::uint64_t bytes,
                                          bool here = true) {
    return {{{const_cast<std::byte*>(first), DType::u8}}, bytes, here};
  }

  /// @param space  where they lie, unless they are here
  RankData(std::vector<MemoryRun> runs, AnySpace const& space)
      : runs_(std::move(runs)), space_(&space) {}

  /// The next piece, until the one after; the last one is shorter, and none empty.
  [[nodiscard]] std::span<std::byte const> next() {
    if (at_ < runs_.size() && runs_[at_].here && runs_[at_].bytes >= piece_bytes) {
      return {take(piece_bytes), piece_bytes};
    }
    buffer_.resize(piece_bytes);
    std::size_t held = 0;
    while (held < piece_bytes && at_ < runs_.size()) {
      MemoryRun const run = runs_[at_];
      auto const count =
          static_cast<std::size_t>((std::min)(run.bytes, std::uint64_t{piece_bytes - held}));
      if (run.here) {
        if (count > 0) std::memcpy(buffer_.data() + held, run.first(), count);
      } else {
        run.fetch(*space_, buffer_.data() + held, count);
      }
      take(count);
      held += count;
    }
    return std::span(buffer_).first(held);
  }

 private:
  std::byte const* take(std::size_t count) {
    MemoryRun& run = runs_[at_];
    std::byte const* const taken = run.first();
    run.values = run.behind(count);
    run.bytes -= count;
    if (run.bytes == 0) ++at_;
    return taken;
  }

  std::vector<MemoryRun> runs_;
  std::size_t at_ = 0;
  AnySpace const* space_;
  std::vector<std::byte> buffer_;
};

/// Writes a rank's file: data, then the header with their checksums; makes it durable and gives it
/// its name.
/// @param saved       its name, and whose it is
/// @param header      of `header_of`
/// @param reads_back  whether to make sure that the file can be read, before it has its name
/// @param alive       called between pieces, also in another thread
/// @returns what the manifest is to say of it
[[nodiscard]] inline SavedFile write_rank_file(FileOperations& files,
                                               std::string const& directory,
                                               SavedFile saved,
                                               safetensors::Header header,
                                               RankData data,
                                               bool reads_back,
                                               Alive const& alive) {
  std::string const name = saved.name;
  saved.name = temporary(name);
  File file(files, directory + "/" + saved.name, FileMode::create);
  saved.header_bytes = saved.bytes = safetensors::format(header).size();
  // Checksums are as long as what stands for them now.
  std::string& sums = header.metadata[sums_key];
  sums.clear();
  for (auto piece = data.next(); !piece.empty(); piece = data.next()) {
    alive();
    sums += checksum_text(checksum(piece.data(), piece.size()));
    file.write(piece.data(), piece.size(), saved.bytes);
    saved.bytes += piece.size();
  }
  std::string const text = safetensors::format(header);
  file.write(text.data(), text.size(), 0);
  saved.header_sum = checksum(text.data(), text.size());
  std::future<void> read;
  if (reads_back) {
    // While the disk is waited for.
    read = std::async(std::launch::async, [&] { verify_file(files, directory, saved, alive); });
  }
  file.sync();
  if (reads_back) read.get();
  name_file(files, file, directory, name);
  saved.name = name;
  return saved;
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
