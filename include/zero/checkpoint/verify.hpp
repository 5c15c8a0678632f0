/// @file
/// Reading all of a checkpoint, to see whether it is as it was saved.
#pragma once

#include "zero/base/config.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/together.hpp"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// Reads the data of one file.
/// @param alive  called between pieces
/// @throws Error (data), naming file, tensor and rank, if a piece is not what was saved
inline void verify_data(FileOperations& files,
                        Catalog const& catalog,
                        std::size_t file,
                        std::function<void()> const& alive) {
  SavedFile const& saved = catalog.manifest.files[file];
  stream(files, catalog, {all_of(file, 0, saved.bytes - saved.header_bytes)}, {}, false, alive);
}

/// Reads one file of a checkpoint, header and data.
/// @param path   the checkpoint's directory
/// @param alive  called between pieces
/// @throws Error (data) if it is not as it was saved
inline void verify_file(FileOperations& files,
                        std::string const& path,
                        SavedFile const& saved,
                        std::function<void()> const& alive) {
  Catalog alone{.path = path};
  alone.manifest.files = {saved};
  CatalogBuilder(alone).read(files, 0);
  verify_data(files, alone, 0, alive);
}

}  // namespace detail

/// Reads a whole checkpoint.
/// @param path   its directory
/// @param files  through which
/// @returns what is wrong, a sentence for each file at most; empty if all is as it was saved
/// @par Cost  every byte is read once, on this rank
[[nodiscard]] inline std::vector<std::string> verify_checkpoint(std::string const& path,
                                                                FileOperations& files = disk()) {
  std::vector<std::string> problems;
  auto const look = [&](auto const& work) {
    detail::RankFailure const failure = detail::attempt_alone(work);
    if (failure.failed) problems.push_back(failure.text);
    return !failure.failed;
  };
  Catalog catalog{.path = path};
  if (!look([&] { catalog.manifest = detail::read_manifest(files, path); })) return problems;
  // Each file by itself, so that all that are damaged are named.
  detail::CatalogBuilder builder(catalog);
  for (std::size_t file = 0; file < catalog.manifest.files.size(); ++file) {
    if (!look([&] { builder.read(files, file); })) catalog.files.resize(file + 1);
  }
  if (!problems.empty()) return problems;
  if (!look([&] { builder.finish(); })) return problems;
  for (std::size_t file = 0; file < catalog.files.size(); ++file) {
    look([&] { detail::verify_data(files, catalog, file, [] {}); });
  }
  return problems;
}

}  // namespace zero::inline ZERO_NAMESPACE
