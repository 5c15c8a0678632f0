/// @file
/// Whole models as files that other tools read: one safetensors file, or several with an index.
/// Plain data and operations on files; no ranks.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/safetensors.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Where a model that is to be written will lie: a function of names, shapes and types alone, so
/// that ranks which write parts of it need not tell each other.
struct ModelLayout {
  /// One file, which has its name only when all is done.
  struct OutputFile {
    std::string path{};
    std::string header{};  ///< its first bytes
  };
  /// Where a tensor begins.
  struct Spot {
    std::size_t file = 0;
    std::uint64_t offset = 0;  ///< bytes from the file's beginning
  };
  std::string path{};  ///< what the model is called: its only file, or the one it would be
  std::vector<OutputFile> files{};
  std::vector<Spot> spots{};  ///< by tensor, as they were given
  std::string index{};        ///< text of the index; empty for a single file
  std::uint64_t bytes = 0;    ///< of all files, the index included

  /// Where the index lies, if there is one.
  [[nodiscard]] std::string index_path() const {
    return stem() + std::string(safetensors::index_suffix);
  }
  /// The file that a reader is to be given.
  [[nodiscard]] std::string begin() const { return index.empty() ? path : index_path(); }

  /// What the names of several files begin with.
  [[nodiscard]] std::string stem() const {
    bool const has = path.ends_with(safetensors::file_suffix);
    return path.substr(0, path.size() - (has ? safetensors::file_suffix.size() : 0));
  }
};

/// @param path            of the model, whose directory is there
/// @param entries         names, types and shapes, in the order in which they are to lie
/// @param metadata        for the header of every file
/// @param max_file_bytes  of data in a file, but for a tensor that alone has more
/// @throws Error (invalid_argument) for entries that the format cannot hold, or more of them than
///   readers take
[[nodiscard]] inline ModelLayout lay_out_model(std::string path,
                                               std::vector<safetensors::Entry> entries,
                                               std::map<std::string, std::string> const& metadata,
                                               std::uint64_t max_file_bytes) {
  ModelLayout layout;
  layout.path = std::move(path);
  std::vector<safetensors::Header> headers(1);
  headers[0].metadata = metadata;
  std::uint64_t total = 0;
  std::uint64_t here = 0;
  for (safetensors::Entry& entry : entries) {
    auto const count = safetensors::detail::count_of(entry.shape);
    if (!count) {
      fail(ErrorKind::invalid_argument, {"tensor '", entry.name, "' has too many elements"});
    }
    std::uint64_t const bytes = checked_mul(*count, safetensors::element_bytes(entry.dtype));
    if (!headers.back().entries.empty() &&
        bytes > max_file_bytes - (std::min)(max_file_bytes, here)) {
      headers.push_back({.metadata = metadata});
      here = 0;
    }
    total = checked_add(total, bytes);
    here = checked_add(here, bytes);
    layout.spots.push_back({headers.size() - 1, 0});
    headers.back().entries.push_back(std::move(entry));
  }
  auto const require_readable = [](std::uint64_t index) {
    if (index <= safetensors::longest_text) return;
    fail(ErrorKind::invalid_argument,
         {"the index of a model's files would have ",
          index,
          " bytes or more, and no reader takes more than ",
          safetensors::longest_text,
          ": the model has to have fewer tensors, or shorter names"});
  };
  std::uint64_t names = 0;
  for (safetensors::Header const& header : headers) {
    for (safetensors::Entry const& entry : header.entries) names += entry.name.size();
  }
  if (headers.size() > 1) require_readable(names);
  std::size_t tensor = 0;
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t file = 0; file < headers.size(); ++file) {
    char number[48] = "";
    if (headers.size() > 1) {
      std::snprintf(number, sizeof(number), "-%05zu-of-%05zu", file + 1, headers.size());
    }
    std::string const name = headers.size() == 1
                                 ? layout.path
                                 : layout.stem() + number + std::string(safetensors::file_suffix);
    layout.files.push_back({name, safetensors::format(headers[file])});
    std::uint64_t const data = layout.files.back().header.size();
    layout.bytes = checked_add(layout.bytes, data);
    for (safetensors::Entry const& entry : headers[file].entries) {
      layout.spots[tensor++].offset = data + entry.begin;
      if (headers.size() > 1) map[entry.name] = name.substr(name.rfind('/') + 1);
    }
  }
  if (headers.size() > 1) {
    layout.index =
        nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
    require_readable(layout.index.size());
  }
  layout.bytes = checked_add(checked_add(layout.bytes, total), layout.index.size());
  return layout;
}

/// Creates the files under temporary names, with their headers. One rank does this, before others
/// write.
inline void begin_model(FileOperations& files, ModelLayout const& layout) {
  for (ModelLayout::OutputFile const& output : layout.files) {
    File file(files, temporary(output.path), FileMode::create);
    file.write(output.header.data(), output.header.size(), 0);
    file.sync();
    file.close();
  }
}

/// Writes ranges of tensors into the files that `begin_model` created, in ascending order of their
/// files where possible: one is open at a time, and is synced when it is left.
class ModelWriter {
 public:
  /// What is written before it is synced, so that no sync takes long.
  static constexpr std::uint64_t between_syncs = std::uint64_t{64} << 20;

  /// @param files  both outlive this
  /// @param layout  of the model that is written
  ModelWriter(FileOperations& files, ModelLayout const& layout)
      : files_(&files), layout_(&layout) {}

  /// Bytes [offset, offset + bytes) of a tensor.
  void write(std::size_t tensor, std::uint64_t offset, void const* from, std::size_t bytes) {
    if (bytes == 0) return;
    ModelLayout::Spot const& spot = layout_->spots[tensor];
    if (!file_ || open_ != spot.file) {
      end();
      file_.emplace(*files_, temporary(layout_->files[spot.file].path), FileMode::write);
      open_ = spot.file;
    }
    file_->write(from, bytes, spot.offset + offset);
    written_ += bytes;
    if (written_ < between_syncs) return;
    file_->sync();
    written_ = 0;
  }
  /// All that was written is durable.
  void end() {
    if (!file_) return;
    File file = std::move(*file_);
    file_.reset();
    file.sync();
    file.close();
    written_ = 0;
  }

 private:
  FileOperations* files_;
  ModelLayout const* layout_;
  std::optional<File> file_{};
  std::size_t open_ = 0;
  std::uint64_t written_ = 0;
};

/// Takes back what `begin_model` created, as far as it can.
inline void abandon_model(FileOperations& files, ModelLayout const& layout) noexcept {
  for (ModelLayout::OutputFile const& file : layout.files) {
    static_cast<void>(files.remove(temporary(file.path)));
  }
}

/// Removes a file that may not be there.
inline void remove_if_there(FileOperations& files, std::string const& path) {
  FileAnswer const answer = files.remove(path);
  if (answer != -ENOENT) require_answer(answer, "remove", path);
}

/// Gives all files their names, once everything in them is durable: at every moment there is the
/// old model, or the new one, or neither. A model of the same name in the other form is removed.
inline void commit_model(FileOperations& files, ModelLayout const& layout) {
  std::string const directory = directory_of(layout.path);
  // An index must not lead to files that are being replaced.
  if (!layout.index.empty()) {
    remove_if_there(files, layout.index_path());
    require_answer(files.sync_directory(directory), "sync", directory);
  }
  std::size_t named = 0;
  try {
    for (ModelLayout::OutputFile const& file : layout.files) {
      require_answer(
          files.rename(temporary(file.path), file.path), "rename what becomes", file.path);
      ++named;
    }
    require_answer(files.sync_directory(directory), "sync", directory);
    if (!layout.index.empty()) {
      std::string const path = layout.index_path();
      write_file(files, directory, path.substr(path.rfind('/') + 1), layout.index);
    }
  } catch (...) {
    for (std::size_t i = 0; i < named; ++i) {
      static_cast<void>(files.remove(layout.files[i].path));
    }
    if (!layout.index.empty()) {
      static_cast<void>(files.remove(layout.index_path()));
      static_cast<void>(files.remove(temporary(layout.index_path())));
    }
    abandon_model(files, layout);
    throw;
  }
  remove_if_there(files, layout.index.empty() ? layout.index_path() : layout.path);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
