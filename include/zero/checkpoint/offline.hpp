/// @file
/// Checkpoints without an optimizer: to look at, compare and convert.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/model_layout.hpp"
#include "zero/checkpoint/safetensors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// Reads elements of a checkpoint's arrays, and checks what it reads.
class CheckpointReader {
 public:
  /// @param files    through which; outlives this
  /// @param catalog  of the checkpoint; outlives this
  CheckpointReader(FileOperations& files, Catalog const& catalog)
      : files_(&files), catalog_(&catalog) {}

  /// Elements [first, first + count) of an array of a whole tensor.
  /// @param array  of the catalog
  /// @param first  in the whole tensor
  /// @param count  elements
  /// @param to     type in which they are wanted
  /// @param out    [count of that type]
  /// @throws Error (data) for elements that are not there, or whose piece of the file is damaged;
  ///   (resource) for files that cannot be read
  /// @par Cost  memory for a piece of each file that it reads of, at most 16 at a time
  void read(
      SavedArray const& array, std::uint64_t first, std::uint64_t count, DType to, std::byte* out) {
    auto run = std::partition_point(array.runs.begin(), array.runs.end(), [&](SavedRun const& r) {
      return r.first + r.count <= first;
    });
    std::size_t const width = size_of(array.dtype);
    while (count > 0) {
      if (run == array.runs.end() || run->first > first) {
        fail(ErrorKind::data, {"element ", first, " of an array is not in '", catalog_->path, "'"});
      }
      std::uint64_t const before = first - run->first;
      std::span<std::byte const> const piece = pieces(run->file).at(run->offset + before * width);
      auto const here = static_cast<std::size_t>(
          (std::min)({count, run->count - before, std::uint64_t{piece.size() / width}}));
      if (here == 0) fail(ErrorKind::data, "a checkpoint has pieces that cut its elements");
      detail::convert_elements(to, out, array.dtype, piece.data(), here);
      out += here * size_of(to);
      first += here;
      count -= here;
      if (first == run->first + run->count) ++run;
    }
  }

 private:
  static constexpr std::size_t most_open = 16;

  detail::PieceReader& pieces(std::size_t file) {
    auto const found = open_.find(file);
    if (found != open_.end()) return found->second;
    if (open_.size() == most_open) open_.clear();
    return open_.try_emplace(file, *files_, *catalog_, file).first->second;
  }

  FileOperations* files_;
  Catalog const* catalog_;
  std::map<std::size_t, detail::PieceReader> open_;
};

namespace detail {

/// The type in which a saved optimizer held its parameters.
[[nodiscard]] inline std::optional<DType> saved_parameter_type(SavedOptimizer const& saved) {
  auto const precision = saved.policies.find("precision");
  if (precision == saved.policies.end() || !precision->is_object()) return std::nullopt;
  auto const parameter = precision->find("parameter");
  if (parameter == precision->end() || !parameter->is_string()) return std::nullopt;
  for (DType const type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    if (name(type) == parameter->template get_ref<std::string const&>()) return type;
  }
  return std::nullopt;
}

}  // namespace detail

/// Writes the model of a checkpoint as `export_model` would have written the optimizer's, without
/// one: for a tool, in one process.
/// @param path     the checkpoint's directory
/// @param out      of the file to be written; of several as for `export_model`
/// @param options  as for `export_model`
/// @param files    the operations on files
/// @throws Error (data) for a checkpoint that is damaged or has not all of a tensor; (resource) for
///   files that cannot be read or written; no file is left then
/// @par Cost  reads master weights and frozen parameters once, through a few megabytes of memory
inline ExportReport export_checkpoint(std::string const& path,
                                      std::string const& out,
                                      ExportOptions const& options = {},
                                      FileOperations& files = disk()) {
  Catalog const catalog = read_catalog(files, path);
  bool const masters = options.dtype == ExportDType::master;
  auto metadata = options.metadata;
  metadata.try_emplace("format", "pt");
  std::vector<safetensors::Entry> entries;
  // By entry: of a stacked tensor one array for each layer, null without elements.
  std::vector<std::vector<SavedArray const*>> arrays;
  std::set<std::string_view> seen;
  std::map<std::string_view, std::size_t> stacks;  // entries of stacked tensors
  auto const sources = detail::sources_of(catalog);
  // What a model file calls a tensor.
  auto const whole_name = [](SavedTensor const& tensor) {
    return tensor.layers > 0 ? detail::layer_name(tensor.name)->whole
                             : std::string_view(tensor.name);
  };
  std::uint64_t tied_bytes = 0;
  // The type of all tensors, frozen ones included: that of the optimizer.
  std::optional<DType> type;
  for (SavedOptimizer const& optimizer : catalog.optimizers) {
    if (!masters) type = detail::saved_parameter_type(optimizer);
    for (SavedTensor const& tensor : optimizer.tensors) {
      if (!seen.insert(tensor.name).second) continue;
      if (!tensor.tied_to.empty()) {
        std::string_view const target = whole_name(sources.at(tensor.name)->about);
        // A long name that many are tied to would be written as often.
        if ((tied_bytes += target.size()) > safetensors::longest_text) {
          fail(ErrorKind::data, {"'", path, "' has more ties than the header of a file can hold"});
        }
        metadata.insert_or_assign(std::string(whole_name(tensor)), std::string(target));
        continue;
      }
      auto const& saved = catalog.tensors.at(tensor.name);
      auto const array = saved.arrays.find(
          std::string(tensor.frozen ? detail::parameter_array : detail::master_array));
      bool const empty = detail::volume(tensor.shape) == 0;
      if (array == saved.arrays.end() && !empty) {
        fail(ErrorKind::data, {"'", path, "' does not have the values of '", tensor.name, "'"});
      }
      if (!type && array != saved.arrays.end() && !tensor.frozen) type = array->second.dtype;
      SavedArray const* const values = empty ? nullptr : &array->second;
      if (tensor.layers == 0) {
        arrays.push_back({values});
        entries.push_back({.name = tensor.name, .shape = tensor.shape});
        continue;
      }
      auto const [stack, first] = stacks.emplace(whole_name(tensor), entries.size());
      if (first) {
        arrays.emplace_back();
        entries.push_back({.name = std::string(stack->first), .shape = tensor.shape});
        entries.back().shape.insert(entries.back().shape.begin(), tensor.layers);
      }
      auto const& shape = entries[stack->second].shape;
      auto& layers = arrays[stack->second];
      if (detail::layer_name(tensor.name)->layer != layers.size() || tensor.layers != shape[0] ||
          !std::equal(shape.begin() + 1, shape.end(), tensor.shape.begin(), tensor.shape.end())) {
        fail(ErrorKind::data, {"'", path, "' has '", tensor.name, "' where it does not belong"});
      }
      layers.push_back(values);
    }
  }
  for (auto const& [name, entry] : stacks) {
    if (arrays[entry].size() == entries[entry].shape[0]) continue;
    fail(ErrorKind::data, {"'", path, "' does not have all layers of '", name, "'"});
  }
  DType const to = type.value_or(DType::f32);
  for (safetensors::Entry& entry : entries) entry.dtype = std::string(safetensors::spelled(to));
  detail::ModelLayout const layout =
      detail::lay_out_model(out, entries, metadata, options.max_file_bytes);
  try {
    detail::begin_model(files, layout);
    CheckpointReader reader(files, catalog);
    detail::ModelWriter writer(files, layout);
    constexpr std::uint64_t most = std::uint64_t{1} << 18;
    std::vector<std::byte> elements(static_cast<std::size_t>(most) * size_of(to));
    for (std::size_t t = 0; t < entries.size(); ++t) {
      std::uint64_t const count = detail::volume(entries[t].shape) / arrays[t].size();
      for (std::uint64_t done = 0; done < count * arrays[t].size();) {
        std::uint64_t const first = done % count;
        std::uint64_t const here = (std::min)(most, count - first);
        reader.read(*arrays[t][done / count], first, here, to, elements.data());
        writer.write(
            t, done * size_of(to), elements.data(), static_cast<std::size_t>(here) * size_of(to));
        done += here;
      }
    }
    writer.end();
  } catch (...) {
    detail::abandon_model(files, layout);
    throw;
  }
  detail::commit_model(files, layout);
  return {layout.begin(), layout.bytes};
}

}  // namespace zero::inline ZERO_NAMESPACE
