/// @file
/// What lies where in a checkpoint: its manifest and the headers of all files, checked.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// Elements of a whole tensor that lie one after the other in a file.
struct SavedRun {
  std::uint64_t first = 0;   ///< in the whole tensor
  std::uint64_t count = 0;   ///< elements
  std::size_t file = 0;      ///< index into `Manifest::files`
  std::uint64_t offset = 0;  ///< bytes before them in the file's data

  friend bool operator==(SavedRun const&, SavedRun const&) = default;
};

/// One array of a tensor: master weights, a state, or a frozen tensor's parameters.
struct SavedArray {
  DType dtype = DType::f32;        ///< of its elements
  std::vector<SavedRun> runs{};    ///< ascending; they do not overlap
  Coding coding = Coding::values;  ///< codes of a state, or scales: bytes
  bool cut = false;                ///< groups of codes are no groups of the whole tensor

  /// Bytes of so many elements; of scales, of whole groups.
  [[nodiscard]] std::uint64_t bytes(std::uint64_t elements) const noexcept {
    return entries_of(coding, elements) * size_of(dtype);
  }
  friend bool operator==(SavedArray const&, SavedArray const&) = default;
};

/// A tensor and its arrays by name.
struct CatalogTensor {
  SavedTensor about{};      ///< as the optimizer described it that has it first
  std::string rule{};       ///< of that optimizer, by name; empty if unknown
  std::string in_full{};    ///< the rule that it computes, where states are codes
  std::string parameter{};  ///< type of its parameters, likewise
  std::string precision{};  ///< what that optimizer says of its own, likewise
  std::map<std::string, SavedArray> arrays{};  ///< "master", states, or "parameter"

  /// All that is said of it, without its arrays.
  [[nodiscard]] CatalogTensor without_arrays() const {
    return {about, rule, in_full, parameter, precision, {}};
  }
};

/// One file of a checkpoint, as its header describes it.
struct CatalogFile {
  std::uint64_t piece_bytes = 1;              ///< data between two checksums
  std::string sums{};                         ///< their texts, one after the other
  std::vector<safetensors::Entry> entries{};  ///< in the order of their bytes
};

/// All that a checkpoint says before its data are read.
struct Catalog {
  std::string path{};                              ///< the checkpoint's directory
  Manifest manifest{};                             ///< which files there are
  std::vector<CatalogFile> files{};                ///< as the manifest has them
  std::vector<SavedOptimizer> optimizers{};        ///< that were saved together
  std::map<std::string, CatalogTensor> tensors{};  ///< by name; tied ones have no arrays
};

namespace detail {

/// The type, in files, of codes of numbers with a sign.
inline constexpr std::string_view signed_codes = "I8";

/// What is added to a catalog file by file.
class CatalogBuilder {
 public:
  explicit CatalogBuilder(Catalog& catalog) : catalog_(&catalog) {}

  /// Reads the header of a file, and adds what it says.
  /// @param file  its index in the manifest: those before it have been read
  void read(FileOperations& files, std::size_t file) {
    SavedFile const& saved = catalog_->manifest.files[file];
    std::string const path = catalog_->path + "/" + saved.name;
    safetensors::Header header = read_header(File(files, path, FileMode::read), &saved);
    auto const text = [&](char const* key) -> std::string const& {
      auto const found = header.metadata.find(key);
      if (found == header.metadata.end()) {
        refuse_file(path, {"is no file of a checkpoint: it has no '", key, "'"});
      }
      return found->second;
    };
    nlohmann::json const about = parse_text(path, text(about_key));
    Fields const fields(path, about);
    CatalogFile described{.piece_bytes = fields.count("piece_bytes"), .sums = text(sums_key)};
    if (described.piece_bytes == 0 || described.piece_bytes > most_piece_bytes ||
        described.sums.size() !=
            ceil_div(header.data_bytes(), described.piece_bytes) * checksum_digits) {
      refuse_file(path, "does not have one checksum for each piece of its data");
    }
    if (fields.has("optimizer")) {
      leaders_.emplace_back(file, catalog_->optimizers.size());
      SavedOptimizer optimizer = parse_optimizer(path, fields.at("optimizer"));
      optimizer.name = saved.optimizer;
      for (SavedTensor& tensor : optimizer.tensors) {
        tensor.name = name_in(saved, tensor.name);
        if (!tensor.tied_to.empty()) tensor.tied_to = name_in(saved, tensor.tied_to);
      }
      catalog_->optimizers.push_back(std::move(optimizer));
    }
    for (safetensors::Entry const& entry : header.entries) {
      if (described.piece_bytes % safetensors::element_bytes(entry.dtype) == 0) continue;
      Message const of{" bytes, which cut elements of '", entry.name, "'"};
      refuse_file(path, {"has pieces of ", described.piece_bytes, of});
    }
    described.entries = std::move(header.entries);
    catalog_->files.push_back(std::move(described));
  }

  /// All files were added: puts them together.
  /// @throws Error (data) for elements that are saved twice, or of no tensor; for optimizers that
  ///   were not at the same place
  void finish() {
    if (leaders_.empty()) refuse_file(catalog_->path, "has no optimizer");
    for (auto const& [file, optimizer] : leaders_) describe(file, catalog_->optimizers[optimizer]);
    for (std::size_t file = 0; file < catalog_->files.size(); ++file) place(file);
    for (auto& [name, tensor] : catalog_->tensors) {
      for (auto& [array, saved] : tensor.arrays) sort(name, array, saved);
    }
  }

 private:
  // More would have readers hold more than they say.
  static constexpr std::uint64_t most_piece_bytes = std::uint64_t{1} << 26;

  /// What an optimizer has of a tensor.
  struct TensorBoxes {
    CatalogTensor* tensor = nullptr;
    std::vector<Box> boxes{};           ///< those that have elements
    std::vector<std::uint64_t> ends{};  ///< elements up to the end of each
  };

  /// What the catalog calls a tensor of a file: those of several optimizers are told apart.
  [[nodiscard]] static std::string name_in(SavedFile const& file, std::string const& tensor) {
    return file.optimizer.empty() ? tensor : file.optimizer + "/" + tensor;
  }
  void describe(std::size_t file, SavedOptimizer const& optimizer) {
    std::string const& name = catalog_->manifest.files[file].name;
    SavedOptimizer const& first = *std::find_if(
        catalog_->optimizers.begin(), catalog_->optimizers.end(), [&](SavedOptimizer const& each) {
          return each.name == optimizer.name;
        });
    if (optimizer.loss_scale != first.loss_scale ||
        optimizer.loss_scale_streak != first.loss_scale_streak) {
      refuse_file(name, "has another loss scale than a file before");
    }
    if (optimizer.step != first.step) refuse_file(name, "has another step than a file before");
    long const step = optimizer.step >= 0 ? optimizer.step : catalog_->manifest.step;
    std::string const rule = text_at(optimizer.policies, "/rule/name");
    std::string const in_full = text_at(optimizer.policies, "/rule/in_full");
    std::string const parameter = text_at(optimizer.policies, "/precision/parameter");
    for (SavedTensor const& tensor : optimizer.tensors) {
      std::string problem = problem_of_boxes(tensor.shape, tensor.boxes);
      auto const [at, added] = catalog_->tensors.try_emplace(tensor.name);
      if (added) {
        at->second.about = tensor;
        at->second.rule = rule;
        at->second.precision = text_at(optimizer.policies, "/precision/name");
        at->second.in_full = in_full;
        at->second.parameter = tensor.dtype ? std::string(zero::name(*tensor.dtype)) : parameter;
      } else if (at->second.about.shape != tensor.shape ||
                 at->second.about.frozen != tensor.frozen) {
        problem = "has another shape than in a file before, or is frozen in one of them";
      } else if (at->second.about.dtype != tensor.dtype) {
        problem = "has another type than in a file before";
      } else if (at->second.about.steps != tensor.steps) {
        problem = "has another number of steps than in a file before";
      }
      auto const layer = layer_name(tensor.name);
      if (tensor.layers > 0 && (!layer || layer->layer >= tensor.layers)) {
        problem = "is no layer of " + std::to_string(tensor.layers);
      }
      if (tensor.steps > step) {
        problem =
            "has " + std::to_string(tensor.steps) + " steps of a run of " + std::to_string(step);
      }
      if (!tensor.tied_to.empty() && parts_.count({file, tensor.tied_to}) == 0) {
        // Ties to tensors before cannot make a circle.
        problem = "is tied to '" + tensor.tied_to + "', which is not described before it";
      }
      TensorBoxes part{.tensor = &at->second};
      std::uint64_t elements = 0;
      for (Box const& box : tensor.boxes) {
        if (!problem.empty()) break;
        std::uint64_t const more = volume(box.extent);
        if (more == 0) continue;
        if (more > (std::numeric_limits<std::uint64_t>::max)() - elements) {
          problem = "has boxes of more elements than can be counted";
        }
        part.boxes.push_back(box);
        part.ends.push_back(elements += more);
      }
      if (!parts_.try_emplace({file, tensor.name}, std::move(part)).second) {
        problem = "is described twice";
      }
      if (!problem.empty()) {
        fail(ErrorKind::data, {"'", name, "': tensor '", tensor.name, "' ", problem});
      }
    }
  }
  void place(std::size_t file) {
    SavedFile const& saved = catalog_->manifest.files[file];
    for (safetensors::Entry const& entry : catalog_->files[file].entries) {
      if (entry.name == blob_entry) continue;
      auto const refuse = [&](Message const& why) {
        refuse_file(saved.name, {"of rank ", saved.rank, ": '", entry.name, "' ", why});
      };
      auto const second = entry.name.rfind(':');
      auto const first = second == std::string::npos || second == 0
                             ? std::string::npos
                             : entry.name.rfind(':', second - 1);
      auto const number = number_of(std::string_view(entry.name).substr(second + 1));
      if (first == std::string::npos || !number) refuse("is no run of a tensor");
      std::string const tensor = name_in(saved, entry.name.substr(0, first));
      auto dtype = safetensors::dtype_named(entry.dtype);
      auto const found = parts_.find({static_cast<std::size_t>(saved.leader), tensor});
      if (found == parts_.end()) refuse("is of a tensor that is not described");
      auto const& [described, boxes, ends] = found->second;
      std::string const array = entry.name.substr(first + 1, second - first - 1);
      Coding coding = Coding::values;
      if (catalog_->manifest.coded && array != parameter_array && array != master_array) {
        bool const bytes = dtype == DType::u8;
        if (entry.dtype == signed_codes) coding = Coding::root;
        if (bytes) coding = Coding::root_of_squares;
        if (bytes && array.ends_with(scales_ending)) coding = Coding::root_scales;
        if (coding != Coding::values) dtype = DType::u8;
      }
      // Frozen tensors may be opaque.
      bool const opaque = array == parameter_array || coding != Coding::values;
      if (!dtype || (is_integral(*dtype) && !opaque) || entry.shape.size() != 1) {
        refuse("has a dtype or shape that runs do not have");
      }
      std::uint64_t const elements = ends.empty() ? 0 : ends.back();
      std::uint64_t const entries = entries_of(coding, elements);
      if (*number > entries || entry.shape[0] > entries - *number)
        refuse("reaches out of its tensor");
      std::uint64_t const begin = coding == Coding::root_scales ? *number * coded_group : *number;
      std::uint64_t const count = coding == Coding::root_scales
                                      ? (std::min)(entry.shape[0] * coded_group, elements - begin)
                                      : entry.shape[0];
      if (entry.begin % size_of(*dtype) != 0) refuse("is not aligned");
      if (coding != Coding::values && begin % coded_group != 0) refuse("begins within a group");
      auto const [at, added] =
          described->arrays.try_emplace(array, SavedArray{.dtype = *dtype, .coding = coding});
      if (!added && (at->second.dtype != *dtype || at->second.coding != coding)) {
        refuse("has another dtype than the runs before");
      }
      // clang 14 captures no structured binding.
      SavedArray& saved_array = at->second;
      std::uint64_t offset = entry.begin;
      std::uint64_t done = 0;
      // From the box on that it begins in: files may have as many entries as boxes.
      auto const box = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), begin) -
                                                ends.begin());
      for_each_run(
          described->about.shape,
          std::span(boxes).subspan(box),
          begin - (box > 0 ? ends[box - 1] : 0),
          count,
          [&](std::uint64_t place, std::uint64_t length) {
            // What is coded together here has to be that in the whole tensor.
            if (coding != Coding::values && (place % coded_group != 0 || done % coded_group != 0)) {
              saved_array.cut = true;
            }
            saved_array.runs.push_back(
                {.first = place, .count = length, .file = file, .offset = offset});
            offset += saved_array.bytes(length);
            done += length;
          });
    }
  }
  static void sort(std::string const& tensor, std::string const& array, SavedArray& saved) {
    auto& runs = saved.runs;
    std::sort(runs.begin(), runs.end(), [](SavedRun const& a, SavedRun const& b) {
      return a.first < b.first;
    });
    for (std::size_t i = 1; i < runs.size(); ++i) {
      if (runs[i - 1].first + runs[i - 1].count <= runs[i].first) continue;
      fail(
          ErrorKind::data,
          {"element ", runs[i].first, " of '", array, "' of tensor '", tensor, "' is saved twice"});
    }
  }

  Catalog* catalog_;
  std::vector<std::pair<std::size_t, std::size_t>> leaders_;  ///< file, index of its optimizer
  std::map<std::pair<std::size_t, std::string>, TensorBoxes> parts_;  ///< by leading file and name
};

/// For each tensor, by its name, the one that has its elements: itself, or what it is tied to.
[[nodiscard]] inline std::map<std::string_view, CatalogTensor const*> sources_of(
    Catalog const& catalog) {
  std::map<std::string_view, CatalogTensor const*> sources;
  for (SavedOptimizer const& optimizer : catalog.optimizers) {
    for (SavedTensor const& tensor : optimizer.tensors) {
      sources.emplace(
          tensor.name,
          tensor.tied_to.empty() ? &catalog.tensors.at(tensor.name) : sources.at(tensor.tied_to));
    }
  }
  return sources;
}

/// Reads the headers of the files that a manifest has.
/// @throws Error as `read_catalog`
[[nodiscard]] inline Catalog read_headers(FileOperations& files,
                                          std::string const& path,
                                          Manifest manifest) {
  Catalog catalog{.path = path, .manifest = std::move(manifest)};
  CatalogBuilder builder(catalog);
  for (std::size_t file = 0; file < catalog.manifest.files.size(); ++file)
    builder.read(files, file);
  builder.finish();
  return catalog;
}

}  // namespace detail

/// Reads the manifest of a checkpoint and the headers of its files; no data. Tensors of several
/// optimizers that each rank saved are called 'optimizer/tensor'.
/// @param files  through which
/// @param path   the checkpoint's directory
/// @par Cost     memory and time for the headers of all ranks' files: some 100 bytes for each run
///   of elements of a tensor on a rank, and 16 for each 256 KiB of data
/// @throws Error (data), naming file and tensor, for anything that is not as it was written;
///   (resource) for files that cannot be read
[[nodiscard]] inline Catalog read_catalog(FileOperations& files, std::string const& path) {
  return detail::read_headers(files, path, detail::read_manifest(files, path));
}

}  // namespace zero::inline ZERO_NAMESPACE
