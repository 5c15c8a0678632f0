/// @file
/// What a checkpoint says of the optimizer that it is of: tensors, policies, counters.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/text.hpp"
#include "zero/layout/stacked.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/precision/loss_scale.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// One tensor of a saved optimizer.
struct SavedTensor {
  std::string name{};                  ///< as the optimizer called it
  std::uint64_t layers = 0;            ///< of the stacked tensor that it is a layer of, or 0
  std::vector<std::uint64_t> shape{};  ///< of the whole tensor
  std::vector<Box> boxes{};            ///< which part of it the optimizer trained: all, unless said
  int unit = 0;                        ///< as the trainer described it
  std::optional<DType> dtype{};        ///< of its parameters; none: as the optimizer's policies say
  FileDType file_dtype{};              ///< as the trainer described it
  double weight_decay = 1.;            ///< its scale
  double learning_rate = 1.;           ///< its scale
  bool frozen = false;                 ///< held as parameters alone
  bool left_out = false;               ///< frozen, and saved without its values
  std::string tied_to{};               ///< the tensor that has its elements; empty for its own
  long steps = 0;                      ///< updates
};

/// What one optimizer was, and how far it had come.
struct SavedOptimizer {
  std::string name{};                                  ///< of several that each rank saved
  std::vector<SavedTensor> tensors{};                  ///< in registration order
  nlohmann::json policies = nlohmann::json::object();  ///< by slot: names, dtypes, values
  float loss_scale = 1.f;                              ///< that the next step's gradients carry
  int loss_scale_streak = 0;                           ///< as in `Counters`
  long step = -1;                                      ///< updates; below 0: as the checkpoint's
};

namespace detail {

/// Of a stacked tensor "whole", layer i is called "whole[i]".
struct LayerName {
  std::string_view whole{};
  std::uint64_t layer = 0;
};

/// Which layer a name is of; none if it is no such name.
[[nodiscard]] inline std::optional<LayerName> layer_name(std::string_view name) {
  auto const open = name.rfind('[');
  if (open == std::string_view::npos || open == 0) return std::nullopt;
  auto const layer = number_of(name.substr(open + 1, name.size() - open - 2));
  LayerName const of{.whole = name.substr(0, open), .layer = layer.value_or(0)};
  return layer && name == name_of_layer(of.whole, of.layer) ? std::optional(of) : std::nullopt;
}

// What a rank's file says of itself, in the metadata of its header.
inline constexpr char const* about_key = "zero";           ///< JSON
inline constexpr char const* sums_key = "zero.checksums";  ///< of the data's pieces, in order
/// The trainer's own bytes of a rank.
inline constexpr std::string_view blob_entry = "rank_blob";

/// Arrays of a rank's file by name: master weights, then states as the rule calls them.
inline constexpr std::string_view master_array = "master";
/// The only array of a frozen tensor.
inline constexpr std::string_view parameter_array = "parameter";
/// What follows a state's name where the array has the scales of its codes.
inline constexpr std::string_view scales_ending = ".scales";
/// What files call an array.
[[nodiscard]] inline std::string name_of_saved(std::string_view array, Coding coding) {
  return std::string(array) + std::string(coding == Coding::root_scales ? scales_ending : "");
}

/// The type of that name.
[[nodiscard]] constexpr std::optional<DType> type_called(std::string_view called) noexcept {
  for (DType const type :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    if (name(type) == called) return type;
  }
  return std::nullopt;
}

[[nodiscard]] inline nlohmann::json json_of(SavedOptimizer const& saved) {
  nlohmann::json tensors = nlohmann::json::array();
  for (SavedTensor const& tensor : saved.tensors) {
    nlohmann::json boxes = nlohmann::json::array();
    for (Box const& box : tensor.boxes) {
      boxes.push_back({{"offset", box.offset}, {"extent", box.extent}});
    }
    tensors.push_back({{"name", tensor.name},
                       {"layers", tensor.layers},
                       {"shape", tensor.shape},
                       {"boxes", std::move(boxes)},
                       {"unit", tensor.unit},
                       {"weight_decay", tensor.weight_decay},
                       {"learning_rate", tensor.learning_rate},
                       {"frozen", tensor.frozen},
                       {"tied_to", tensor.tied_to},
                       {"steps", tensor.steps}});
    if (tensor.left_out) tensors.back()["left_out"] = true;
    if (tensor.dtype) tensors.back()["dtype"] = name(*tensor.dtype);
    if (tensor.file_dtype != FileDType()) tensors.back()["file_dtype"] = tensor.file_dtype.name();
  }
  nlohmann::json json = {{"tensors", std::move(tensors)},
                         {"policies", saved.policies},
                         {"loss_scale", saved.loss_scale},
                         {"loss_scale_streak", saved.loss_scale_streak}};
  if (saved.step >= 0) json["step"] = saved.step;
  return json;
}

/// @param file  what messages call the file
/// @throws Error (data) for a description that makes no sense
[[nodiscard]] inline SavedOptimizer parse_optimizer(std::string const& file,
                                                    nlohmann::json const& json) {
  Fields const fields(file, json);
  SavedOptimizer saved{.policies = fields.at("policies"),
                       .loss_scale = static_cast<float>(fields.real("loss_scale")),
                       .loss_scale_streak = fields.integer("loss_scale_streak"),
                       .step = fields.has("step") ? fields.steps("step") : -1};
  if (!usable_scale(saved.loss_scale) || !usable_streak(saved.loss_scale_streak)) {
    refuse_file(file,
                {"has a loss scale of ",
                 saved.loss_scale,
                 " with a streak of ",
                 saved.loss_scale_streak,
                 ", from which no step can go on"});
  }
  for (nlohmann::json const& each : fields.list("tensors")) {
    Fields const entry(file, each);
    SavedTensor tensor{.name = entry.text("name"),
                       // Version 0.1 did not say it.
                       .layers = entry.has("layers") ? entry.count("layers") : 0,
                       .shape = entry.counts("shape"),
                       .unit = entry.integer("unit"),
                       .weight_decay = entry.real("weight_decay"),
                       .learning_rate = entry.real("learning_rate"),
                       .frozen = entry.flag("frozen"),
                       .tied_to = entry.text("tied_to"),
                       .steps = entry.steps("steps")};
    tensor.left_out = tensor.frozen && entry.has("left_out") && entry.flag("left_out");
    bool const typed = entry.has("dtype");
    if (typed) tensor.dtype = type_called(entry.text("dtype"));
    if (entry.has("file_dtype")) tensor.file_dtype = entry.text("file_dtype");
    if (typed != tensor.dtype.has_value() || !tensor.file_dtype.known()) {
      refuse_file(file, {"has '", tensor.name, "' in a type that nobody knows"});
    }
    for (nlohmann::json const& part : entry.list("boxes")) {
      Fields const box(file, part);
      tensor.boxes.push_back({.offset = box.counts("offset"), .extent = box.counts("extent")});
    }
    saved.tensors.push_back(std::move(tensor));
  }
  return saved;
}

/// Boxes that a tensor may have: a load looks at all of them for each run that it holds.
inline constexpr std::size_t most_boxes = 4096;
/// Axes that a tensor may have: readers look at all of them for each run of elements.
inline constexpr std::size_t most_axes = 64;

/// What is wrong with boxes of a shape; empty if nothing is. Boxes may still overlap.
[[nodiscard]] inline std::string problem_of_boxes(std::vector<std::uint64_t> const& shape,
                                                  std::vector<Box> const& boxes) {
  if (!safetensors::detail::count_of(shape)) return "has more elements than can be counted";
  if (shape.size() > most_axes) return "has more than " + std::to_string(most_axes) + " axes";
  if (boxes.size() > most_boxes) return "has more than " + std::to_string(most_boxes) + " boxes";
  for (Box const& box : boxes) {
    if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) {
      return "has a box of another number of axes";
    }
    for (std::size_t a = 0; a < shape.size(); ++a) {
      if (box.extent[a] <= shape[a] && box.offset[a] <= shape[a] - box.extent[a]) continue;
      return "has a box that reaches out of its shape";
    }
  }
  return {};
}

/// Do groups of elements that are coded together in a part belong to several of the whole tensor?
[[nodiscard]] inline bool cuts_groups(std::vector<std::uint64_t> const& shape,
                                      std::vector<Box> const& boxes) {
  std::uint64_t count = 0;
  for (Box const& box : boxes) count += volume(box.extent);
  std::uint64_t done = 0;
  bool cut = false;
  for_each_run(shape, boxes, 0, count, [&](std::uint64_t at, std::uint64_t length) {
    cut = cut || at % coded_group != 0 || done % coded_group != 0;
    done += length;
  });
  return cut;
}

/// The part of each tensor that an optimizer has: all of it, or what the trainer says.
/// @param divided  whether a part must be told of what is partitioned over a grid's model axis
/// @throws Error (invalid_argument) for parts that do not fit
[[nodiscard]] inline std::vector<SavedTensor> described(Model const& model,
                                                        std::vector<TensorPart> const& parts,
                                                        Counters const& counters,
                                                        bool divided) {
  std::vector<Tensor> const& tensors = model.tensors;
  std::vector<SavedTensor> saved;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    Tensor const& tensor = tensors[t];
    Tensor const& whole = model.described[model.slices[t].described];
    SavedTensor entry{.name = tensor.name,
                      .layers = whole.stacked ? whole.shape.front() : 0,
                      .shape = {tensor.shape.begin(), tensor.shape.end()},
                      .unit = tensor.unit,
                      .dtype = tensor.dtype,
                      .file_dtype = tensor.file_dtype,
                      .weight_decay = tensor.weight_decay,
                      .learning_rate = tensor.learning_rate,
                      .frozen = tensor.frozen,
                      .tied_to = tensor.tied_to,
                      .steps = counters.steps[t]};
    entry.boxes = {
        {.offset = std::vector<std::uint64_t>(entry.shape.size(), 0), .extent = entry.shape}};
    saved.push_back(std::move(entry));
  }
  for (TensorPart const& part : parts) {
    auto const found = std::find_if(
        saved.begin(), saved.end(), [&](SavedTensor const& s) { return s.name == part.tensor; });
    auto const refuse = [&](Message const& why) {
      fail(ErrorKind::invalid_argument, {"the part of tensor '", part.tensor, "' ", why});
    };
    if (found == saved.end()) refuse("is of no tensor of this optimizer");
    std::string const problem = problem_of_boxes(part.shape, part.boxes);
    if (!problem.empty()) refuse(problem);
    std::uint64_t elements = 0;
    for (Box const& box : part.boxes) elements += volume(box.extent);
    if (elements != volume(found->shape)) {
      refuse({"has ", elements, " elements, and the tensor ", volume(found->shape)});
    }
    found->shape = part.shape;
    found->boxes = part.boxes;
  }
  for (std::size_t t = 0; divided && t < tensors.size(); ++t) {
    auto const same_name = [&](TensorPart const& part) { return part.tensor == tensors[t].name; };
    if (!tensors[t].partitioned || std::any_of(parts.begin(), parts.end(), same_name)) continue;
    fail(ErrorKind::invalid_argument,
         {"tensor '",
          tensors[t].name,
          "' is partitioned over the model axis, and no TensorPart says which part this rank has"});
  }
  return saved;
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
