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
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/model_layout.hpp"
#include "zero/checkpoint/named_optimizer.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/precision/mixed.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
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
      : catalog_(&catalog), pieces_(files, catalog) {}

  /// Elements [first, first + count) of an array of a whole tensor.
  /// @param array  of the catalog
  /// @param first  in the whole tensor
  /// @param count  elements
  /// @param to     type in which they are wanted
  /// @param out    [count of that type]
  /// @param overflow  what becomes of elements that this type cannot hold
  /// @param tensor    what messages call the array
  /// @param form      how it becomes bf16; null: to nearest even
  /// @throws Error (data) for elements that are not there, or whose piece of the file is damaged;
  ///   (resource) for files that cannot be read; (invalid_argument) for elements that do not fit
  /// @par Cost  memory for a piece of a file, and some 60 bytes for each run of elements
  void read(SavedArray const& array,
            std::uint64_t first,
            std::uint64_t count,
            DType to,
            std::byte* out,
            Overflow overflow = Overflow::refuse,
            std::string_view tensor = {},
            MasterForm const* form = nullptr) {
    std::uint64_t next = first;
    detail::Narrowed const narrowed{.overflow = overflow, .tensor = tensor, .form = form};
    std::vector<detail::Wanted> wanted;
    detail::for_each_piece(array, first, count, [&](SavedRun const& run, std::uint64_t before) {
      if (run.first == next) next += run.count;
      std::byte* const memory = out + before * size_of(to);
      wanted.push_back(
          {run.file, run.offset, run.count, array.dtype, to, memory, &narrowed, run.first});
    });
    if (next != first + count) {
      fail(ErrorKind::data, {"element ", next, " of an array is not in '", catalog_->path, "'"});
    }
    detail::stream_in_order(pieces_, wanted, detail::copy_values, true, [] {});
  }

 private:
  Catalog const* catalog_;
  detail::PieceReader pieces_;
};

namespace detail {

/// The type in which a saved optimizer held its parameters.
[[nodiscard]] inline std::optional<DType> saved_parameter_type(SavedOptimizer const& saved) {
  std::string const parameter = text_at(saved.policies, "/precision/parameter");
  for (DType const type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    if (name(type) == parameter) return type;
  }
  return std::nullopt;
}

/// How it rounded bf16 parameters from what it saved of masters; null: to nearest even.
[[nodiscard]] inline MasterForm const* saved_form(CatalogTensor const& tensor) {
  static constexpr MasterForm away{HalfAway::split, nullptr};
  for (std::string_view const each : {HalfAway::name, Rest16::name, Rest8::name}) {
    if (tensor.precision.find(each) != std::string::npos) return &away;
  }
  return nullptr;
}

}  // namespace detail

/// Writes the model of a checkpoint as `export_model` would have written the optimizer's, without
/// one: for a tool, in one process.
/// @param path     the checkpoint's directory
/// @param out      of the file to be written; of several as for `export_model`
/// @param options  as for `export_model`
/// @param files    the operations on files
/// @throws Error (data) for a checkpoint that is damaged, or has not all of a tensor, or a tied one
///   of a name that metadata have, or not the optimizer that the options name; if they name none,
///   for one of several; (resource) for files that cannot be read or written; no file is
///   left then
/// @par Cost  reads master weights and frozen parameters once, through a few megabytes of memory
inline ExportReport export_checkpoint(std::string const& path,
                                      std::string const& out,
                                      ExportOptions const& options = {},
                                      FileOperations& files = disk()) {
  Manifest const manifest = detail::read_manifest(files, path);
  std::vector<std::string> const names = manifest.optimizers();
  if (std::find(names.begin(), names.end(), options.optimizer) == names.end()) {
    if (!options.optimizer.empty()) {
      detail::refuse_file(path, {"has no optimizer '", options.optimizer, "'"});
    }
    detail::refuse_file(
        path, {"is of several optimizers, of which one is written: ", detail::quoted(names)});
  }
  Catalog const catalog = detail::read_headers(files, path, manifest.of(options.optimizer));
  bool const masters = options.dtype == ExportDType::master;
  std::string const whose = "'" + path + "'";
  auto const values_of = [&](SavedTensor const& tensor) {
    auto const& arrays = catalog.tensors.at(tensor.name).arrays;
    auto const found =
        arrays.find(std::string(tensor.frozen ? detail::parameter_array : detail::master_array));
    return found == arrays.end() ? nullptr : &found->second;
  };
  std::vector<SavedTensor> tensors;
  std::vector<DType> types;  // of each in the file
  std::set<std::string_view> seen;
  // The type of tensors that say nothing, frozen ones included: that of the optimizer.
  std::optional<DType> type;
  for (SavedOptimizer const& optimizer : catalog.optimizers) {
    if (!masters) type = detail::saved_parameter_type(optimizer);
    for (SavedTensor const& tensor : optimizer.tensors) {
      if (!seen.insert(tensor.name).second) continue;
      tensors.push_back(tensor);
      if (!tensor.tied_to.empty()) continue;
      SavedArray const* const values = values_of(tensor);
      bool const written = options.frozen || !tensor.frozen;
      if (written && values == nullptr && detail::volume(tensor.shape) > 0) {
        Message const why{tensor.left_out ? ", which is frozen and was left out" : ""};
        fail(ErrorKind::data, {whose, " does not have the values of '", tensor.name, "'", why});
      }
      if (!type && values != nullptr && !tensor.frozen) type = values->dtype;
    }
  }
  for (SavedTensor const& tensor : tensors) {
    DType const usual = type.value_or(DType::f32);
    SavedArray const* const values = values_of(tensor);
    DType const saved = values != nullptr ? values->dtype : usual;
    DType const own = masters ? saved : tensor.dtype.value_or(usual);
    bool const widened =
        masters && tensor.frozen && !is_integral(own) && size_of(own) < size_of(usual);
    types.push_back(widened ? usual : own);
    if (values == nullptr || is_integral(values->dtype) == is_integral(types.back())) continue;
    fail(ErrorKind::data, {whose, " has '", tensor.name, "' in another type than it says"});
  }
  detail::ModelEntries const model =
      detail::model_entries(tensors, types, options, whose, ErrorKind::data);
  detail::ModelLayout const layout =
      detail::lay_out_model(out, model.entries, model.metadata, options.max_file_bytes);
  try {
    detail::begin_model(files, layout);
    CheckpointReader reader(files, catalog);
    detail::ModelWriter writer(files, layout);
    constexpr std::uint64_t most = std::uint64_t{1} << 18;
    std::vector<std::byte> elements;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].tied_to.empty() || (tensors[t].frozen && !options.frozen)) continue;
      detail::ModelEntries::EntryPosition const& place = model.places[t];
      DType const to = types[t];
      elements.resize(static_cast<std::size_t>(most) * size_of(to));
      std::uint64_t const count = detail::volume(tensors[t].shape);
      for (std::uint64_t done = 0; done < count;) {
        auto const here = static_cast<std::size_t>((std::min)(most, count - done));
        reader.read(*values_of(tensors[t]),
                    done,
                    here,
                    to,
                    elements.data(),
                    options.overflow,
                    tensors[t].name,
                    detail::saved_form(catalog.tensors.at(tensors[t].name)));
        writer.write(
            place.entry, (place.first + done) * size_of(to), elements.data(), here * size_of(to));
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
