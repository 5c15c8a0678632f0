/// @file
/// Whole models in files that other tools write: one safetensors file, or several with an index.
/// Plain data and operations on files; no ranks.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/text.hpp"
#include "zero/kernel/host_conversion.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// One tensor of a model on disk.
struct StoredTensor {
  safetensors::Entry entry{};  ///< offsets are from the beginning of the file
  std::size_t file = 0;        ///< which of `StoredModel::files`
};

/// What a model on disk consists of.
struct StoredModel {
  std::vector<std::string> files{};               ///< paths
  std::vector<StoredTensor> tensors{};            ///< by name, ascending
  std::map<std::string, std::string> metadata{};  ///< of all files

  /// The tensor of that name, or null.
  [[nodiscard]] StoredTensor const* find(std::string_view name) const noexcept {
    auto const at = std::partition_point(tensors.begin(), tensors.end(), [&](auto const& tensor) {
      return tensor.entry.name < name;
    });
    return at != tensors.end() && at->entry.name == name ? &*at : nullptr;
  }
};

namespace detail {

/// Takes the weight map of an index, and skips whatever else there is. Holds what it keeps alone.
class IndexReader : public TextPieces {
 public:
  /// Tensors in the order of the text, and the names of their files.
  std::vector<std::pair<std::string, std::string>> map{};
  bool found = false;

  bool string(string_t& text) override {
    if (!in_map_ || depth_ != 2) return !in_map_;
    map.back().second = std::move(text);
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      return !in_map_ || !std::exchange(found, true);
    }
    if (in_map_) map.emplace_back(std::move(name), std::string());
    return true;
  }
  bool start_object(std::size_t /*count*/) override { return !(in_map_ && depth_ == 2) && open(); }
  bool start_array(std::size_t /*count*/) override { return !in_map_ && open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

 private:
  bool other(std::string const& /*what*/) override { return !in_map_; }
  bool open() {
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::size_t depth_ = 0;
  bool in_map_ = false;  ///< what is being read is the value of "weight_map"
};

/// Tensors and their files, by name.
/// @throws Error (data) for a text that is no index, or names a file elsewhere
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> parse_index(
    std::string const& path, std::string_view text) {
  auto const refuse = [&](Message const& why) {
    refuse_file(path, {"is no index of safetensors files: ", why});
  };
  IndexReader reader;
  if (!parse_pieces(text, reader) || !reader.found) {
    refuse("it needs a weight_map, once, from names to names");
  }
  auto& map = reader.map;
  std::sort(map.begin(), map.end());
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (!is_plain_name(map[i].second)) {
      refuse({"tensor '", map[i].first, "' would lie in '", map[i].second.substr(0, 64), "'"});
    }
    if (i > 0 && map[i].first == map[i - 1].first) {
      refuse({"it has tensor '", map[i].first, "' twice"});
    }
  }
  return std::move(map);
}

/// Reads a header and adds what it says.
inline void add_file(FileOperations& files, StoredModel& model, std::string path) {
  File const file(files, path, FileMode::read);
  safetensors::Header header = read_header(file);
  // Data reach to the end of the file.
  std::uint64_t const before = file.size() - header.data_bytes();
  for (safetensors::Entry& entry : header.entries) {
    entry.begin += before;
    entry.end += before;
    model.tensors.push_back({std::move(entry), model.files.size()});
  }
  for (auto& [name, text] : header.metadata) model.metadata.insert_or_assign(name, text);
  model.files.push_back(std::move(path));
}

/// The file of a directory that a model begins with.
/// @throws Error (data) if there is none, or more than one
[[nodiscard]] inline std::string model_in(std::string const& directory,
                                          std::vector<std::string> const& names) {
  for (std::string_view const suffix : {safetensors::index_suffix, safetensors::file_suffix}) {
    auto const fits = [&](std::string const& name) { return name.ends_with(suffix); };
    auto const count = std::count_if(names.begin(), names.end(), fits);
    if (count == 0) continue;
    if (count == 1) return directory + "/" + *std::find_if(names.begin(), names.end(), fits);
    refuse_file(directory, {"has ", count, " files that end in ", suffix, ": name one of them"});
  }
  refuse_file(directory, {"has no file that ends in ", safetensors::file_suffix});
}

inline void sort_by_name(std::vector<StoredTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](StoredTensor const& a, StoredTensor const& b) {
    return a.entry.name < b.entry.name;
  });
}

/// What there is of a model: reads headers alone.
/// @param path  a safetensors file, an index, or a directory with one of either
/// @throws Error (resource) for what cannot be read; (data), naming file and tensor, for files that
///   are not what they should be
/// @par Cost  memory of a few times the headers
[[nodiscard]] inline StoredModel open_model(FileOperations& files, std::string const& path) {
  std::vector<std::string> names;
  std::string const begin = files.list(path, names) >= 0 ? model_in(path, names) : path;
  StoredModel model;
  if (!begin.ends_with(".json")) {
    add_file(files, model, begin);
    sort_by_name(model.tensors);
  } else {
    auto const map = parse_index(begin, read_file(files, begin, safetensors::longest_text));
    std::vector<std::string> parts;
    for (auto const& [name, file] : map) parts.push_back(file);
    std::sort(parts.begin(), parts.end());
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    std::string const directory = directory_of(begin);
    for (std::string const& part : parts) add_file(files, model, directory + "/" + part);
    sort_by_name(model.tensors);
    auto const twice = std::adjacent_find(
        model.tensors.begin(), model.tensors.end(), [](auto const& a, auto const& b) {
          return a.entry.name == b.entry.name;
        });
    if (twice != model.tensors.end()) {
      fail(ErrorKind::data,
           {"tensor '",
            twice->entry.name,
            "' lies in '",
            model.files[twice->file],
            "' and in '",
            model.files[std::next(twice)->file],
            "'"});
    }
    for (auto const& [name, file] : map) {
      StoredTensor const* const tensor = model.find(name);
      if (tensor != nullptr && model.files[tensor->file] == directory + "/" + file) continue;
      refuse_file(begin, {"says that '", file, "' has tensor '", name, "'"});
    }
  }
  return model;
}

/// Can elements of that type be read as floats, without rounding?
[[nodiscard]] constexpr bool readable_as(DType value, std::string_view dtype) noexcept {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16" ||
         (value == DType::f64 && dtype == "F64");
}

/// Can a tensor of that type be one of opaque bytes, as they are?
[[nodiscard]] constexpr bool opaque_as(DType value, std::string_view dtype) noexcept {
  return is_integral(value) && !readable_as(DType::f64, dtype) &&
         safetensors::element_bytes(dtype) == size_of(value);
}

/// Reads ranges of tensors, and nothing else. Keeps the file open that it read last.
class ModelReader {
 public:
  /// @param files  both outlive this
  /// @param model  what to read of
  ModelReader(FileOperations& files, StoredModel const& model) : files_(&files), model_(&model) {}

  /// Elements [first, first + count) of a tensor, whose type is `readable_as` the wanted one; or
  /// bytes as they are, of a type as wide as that is.
  /// @throws Error (resource) for what cannot be read; (data) if the file has become shorter
  void read(
      StoredTensor const& tensor, std::uint64_t first, DType to, void* out, std::size_t count) {
    if (count == 0) return;
    if (!file_ || open_ != tensor.file) {
      file_.reset();
      file_.emplace(*files_, model_->files[tensor.file], FileMode::read);
      open_ = tensor.file;
    }
    DType const own = safetensors::dtype_named(tensor.entry.dtype).value_or(to);
    DType const from = is_integral(to) ? to : own;
    std::size_t const bytes = count * size_of(from);
    if (from != to) narrow_.resize(bytes);
    file_->read(
        from == to ? out : narrow_.data(), bytes, tensor.entry.begin + first * size_of(from));
    if (from != to) kernel::convert_on_host(to, out, from, narrow_.data(), count);
  }

 private:
  FileOperations* files_;
  StoredModel const* model_;
  std::optional<File> file_{};
  std::size_t open_ = 0;
  std::vector<std::byte> narrow_{};
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
