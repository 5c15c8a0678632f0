/// @file
/// Reading a checkpoint's data piece by piece, and holding them against their checksums.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/side_by_side.hpp"
#include "zero/checkpoint/together.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// The pieces of one file's data, one at a time. What it hands out has its checksum.
template <FileOperations Files>
class PieceReader {
 public:
  /// @param file  index into the catalog's files
  PieceReader(Files& files, Catalog const& catalog, std::size_t file)
      : catalog_(&catalog),
        index_(file),
        file_(files, catalog.path + "/" + catalog.manifest.files[file].name, FileMode::read) {}

  [[nodiscard]] std::uint64_t data_bytes() const noexcept {
    SavedFile const& saved = catalog_->manifest.files[index_];
    return saved.bytes - saved.header_bytes;
  }
  /// The data from `offset` on, to the end of the piece that it lies in.
  /// @throws Error (data), naming file, tensor and rank, if the piece is not what was saved
  [[nodiscard]] std::span<std::byte const> at(std::uint64_t offset) {
    std::uint64_t const piece = offset / described().piece_bytes;
    if (bytes_.empty() || piece != piece_) {
      bytes_.resize(static_cast<std::size_t>(bytes_of(piece)));
      load(piece, bytes_);
      piece_ = piece;
    }
    return std::span<std::byte const>(bytes_).subspan(
        static_cast<std::size_t>(offset - piece * described().piece_bytes));
  }

  /// Reads the piece that begins at `offset` to where it belongs, if `room` holds all of it.
  /// @returns its bytes; 0 if it does not begin there, or is larger
  [[nodiscard]] std::size_t read_to(std::byte* to, std::uint64_t offset, std::uint64_t room) {
    std::uint64_t const piece = offset / described().piece_bytes;
    std::uint64_t const bytes = bytes_of(piece);
    if (offset % described().piece_bytes != 0 || bytes > room) return 0;
    load(piece, {to, static_cast<std::size_t>(bytes)});
    return static_cast<std::size_t>(bytes);
  }

 private:
  [[nodiscard]] CatalogFile const& described() const noexcept { return catalog_->files[index_]; }

  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t piece) const noexcept {
    std::uint64_t const first = piece * described().piece_bytes;
    return (std::min)(described().piece_bytes, data_bytes() - first);
  }
  void load(std::uint64_t piece, std::span<std::byte> to) {
    SavedFile const& saved = catalog_->manifest.files[index_];
    std::uint64_t const first = piece * described().piece_bytes;
    file_.read(to.data(), to.size(), saved.header_bytes + first);
    std::string_view const sum =
        std::string_view(described().sums)
            .substr(static_cast<std::size_t>(piece) * checksum_digits, checksum_digits);
    if (checksum_text(checksum(to.data(), to.size())) == sum) return;
    fail(ErrorKind::data,
         {"'",
          file_.path(),
          "' of rank ",
          saved.rank,
          " is damaged between bytes ",
          saved.header_bytes + first,
          " and ",
          saved.header_bytes + first + to.size(),
          ", ",
          concerned(first, first + to.size())});
  }
  /// Whose bytes these are.
  [[nodiscard]] std::string concerned(std::uint64_t first, std::uint64_t last) const {
    auto const& entries = described().entries;
    auto const begin = std::partition_point(
        entries.begin(), entries.end(), [&](auto const& entry) { return entry.end <= first; });
    bool const several = begin + 1 < entries.end() && begin[1].begin < last;
    return several ? "in entries from '" + begin->name + "' on" : "in '" + begin->name + "'";
  }

  Catalog const* catalog_;
  std::size_t index_;
  File<Files> file_;
  std::vector<std::byte> bytes_;
  std::uint64_t piece_ = 0;
};

/// Reads the data of one file.
/// @param alive  called between pieces
/// @throws Error (data), naming file, tensor and rank, if a piece is not what was saved
template <FileOperations Files, class Alive>
void verify_data(Files& files, Catalog const& catalog, std::size_t file, Alive const& alive) {
  auto const read = [&](std::uint64_t from, std::uint64_t to) {
    return [&files, &catalog, file, from, to](auto const& between) {
      PieceReader<Files> pieces(files, catalog, file);
      for (std::uint64_t at = from; at < to; between()) at += pieces.at(at).size();
    };
  };
  SavedFile const& saved = catalog.manifest.files[file];
  std::uint64_t const bytes = saved.bytes - saved.header_bytes;
  if (bytes < bytes_for_two_threads) return read(0, bytes)(alive);
  std::uint64_t const piece = catalog.files[file].piece_bytes;
  std::uint64_t const half = bytes / 2 / piece * piece;
  side_by_side(read(0, half), read(half, bytes), alive);
}

/// Reads one file of a checkpoint, header and data.
/// @param path   the checkpoint's directory
/// @param alive  called between pieces
/// @throws Error (data) if it is not as it was saved
template <FileOperations Files, class Alive>
void verify_file(Files& files,
                 std::string const& path,
                 SavedFile const& saved,
                 Alive const& alive) {
  Catalog alone{.path = path};
  alone.manifest.files = {saved};
  CatalogBuilder(alone).add(0, read_header(files, path + "/" + saved.name, saved));
  verify_data(files, alone, 0, alive);
}

}  // namespace detail

/// Reads a whole checkpoint.
/// @param path   its directory
/// @param files  through which
/// @returns what is wrong, a sentence for each file at most; empty if all is as it was saved
/// @par Cost  every byte is read once, on this rank
template <FileOperations Files = DiskFiles>
[[nodiscard]] std::vector<std::string> verify_checkpoint(std::string const& path,
                                                         Files files = Files{}) {
  std::vector<std::string> problems;
  auto const look = [&](auto const& work) {
    detail::RankFailure const failure = detail::attempt_alone(work);
    if (failure.failed) problems.push_back(failure.text);
    return !failure.failed;
  };
  Catalog catalog{.path = path};
  std::string const manifest = path + "/" + std::string(detail::manifest_name);
  bool const listed = look([&] {
    catalog.manifest = detail::parse_manifest(
        manifest, detail::read_file(files, manifest, detail::longest_manifest));
  });
  if (!listed) return problems;
  // Each file by itself, so that all that are damaged are named.
  detail::CatalogBuilder builder(catalog);
  for (std::size_t file = 0; file < catalog.manifest.files.size(); ++file) {
    SavedFile const& saved = catalog.manifest.files[file];
    std::size_t const before = catalog.files.size();
    look([&] { builder.add(file, detail::read_header(files, path + "/" + saved.name, saved)); });
    if (catalog.files.size() == before) catalog.files.emplace_back();
  }
  if (!problems.empty()) return problems;
  if (!look([&] { builder.finish(); })) return problems;
  for (std::size_t file = 0; file < catalog.files.size(); ++file) {
    look([&] { detail::verify_data(files, catalog, file, [] {}); });
  }
  return problems;
}

}  // namespace zero::inline ZERO_NAMESPACE
