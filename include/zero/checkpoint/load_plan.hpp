/// @file
/// What a load takes of a checkpoint: which elements, from where to where, and what does not fit.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/optimizer_view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// What a load takes, and what it does about what does not fit.
struct LoadOptions {
  /// Tensors that are missing, unexpected or of another shape are errors. Otherwise what fits is
  /// loaded, and the rest reported.
  bool strict = true;
  /// Leave states and counters as they are: for another rule, or fine-tuning.
  bool parameters_only = false;
  /// Read everything twice: nothing is changed unless all of it is as it was saved.
  bool verify_first = false;
  std::map<std::string, std::string> names{};  ///< of tensors: in the checkpoint, and here
  /// Which tensors here are parts of larger ones: over a grid, all that are partitioned.
  std::vector<TensorPart> parts{};
};

namespace detail {

/// What is to be read, and what does not fit.
struct LoadPlan {
  std::vector<Wanted> wanted{};           ///< in the order of the files
  std::vector<bool> loaded{};             ///< which tensors here
  std::vector<std::string> missing{};     ///< tensors here that are not in the files
  std::vector<std::string> unexpected{};  ///< tensors in the files that are not here
  std::vector<std::string> unfit{};       ///< of another shape, or not whole: in words
  bool lacks_states = false;              ///< some are without a state
};

[[nodiscard]] inline std::string shape_text(std::vector<std::uint64_t> const& shape) {
  std::string text = "[";
  for (std::uint64_t const extent : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

/// All that does not fit, in one sentence; empty if everything does.
/// @param there    what has the other tensors
/// @param renamed  what tensors are called there, and here
[[nodiscard]] inline std::string misfits(std::string_view there,
                                         std::vector<std::string> const& missing,
                                         std::vector<std::string> const& unexpected,
                                         std::vector<std::string> const& reasons,
                                         std::map<std::string, std::string> const& renamed) {
  std::string text;
  auto const add =
      [&](Message const& what, std::vector<std::string> const& all, char const* quote) {
        for (std::string const& each : all) {
          if (&each != all.data()) {
            text += ", ";
          } else {
            text += (text.empty() ? "" : "; ") + what.text() + ": ";
          }
          text += (quote + each) + quote;
          if (&all != &missing) continue;
          for (auto const& [name, here] : renamed) {
            if (here == each) text += Message({" (there '", name, "')"}).text();
          }
        }
      };
  add({"not in the ", there}, missing, "'");
  add("not in the optimizer", unexpected, "'");
  add("different", reasons, "");
  return text;
}

/// One layer of a tensor that was saved whole.
/// @param layer  less than the tensor's first dimension
[[nodiscard]] inline CatalogTensor layer_of(CatalogTensor const& whole, std::uint64_t layer) {
  CatalogTensor one{.about = whole.about, .rule = whole.rule};
  one.about.shape.erase(one.about.shape.begin());
  std::uint64_t const elements = volume(one.about.shape);
  for (auto const& [name, saved] : whole.arrays) {
    SavedArray& array = one.arrays[name];
    array.dtype = saved.dtype;
    for_each_piece(saved, layer * elements, elements, [&](SavedRun run, std::uint64_t before) {
      run.first = before;
      array.runs.push_back(run);
    });
  }
  return one;
}

/// What keeps layers from being one tensor, in words; empty if nothing does.
/// @param states  whether their states are to be those of one tensor as well
[[nodiscard]] inline std::string_view problem_of_layers(
    std::span<CatalogTensor const* const> layers, bool states) {
  CatalogTensor const& first = *layers.front();
  for (CatalogTensor const* const layer : layers) {
    if (layer->about.shape != first.about.shape) return "have different shapes";
    if (layer->about.frozen != first.about.frozen) return "are not all frozen";
    if (states && layer->about.steps != first.about.steps) return "have different numbers of steps";
    if (states && layer->rule != first.rule) return "are of different rules";
    for (auto const& [name, array] : layer->arrays) {
      auto const other = first.arrays.find(name);
      if (other == first.arrays.end()) return "have different states";
      if (other->second.dtype != array.dtype) return "have different types";
    }
  }
  return {};
}

/// The tensor that these are the layers of.
/// @param layers  without a problem, and no more elements in all than can be counted
[[nodiscard]] inline CatalogTensor whole_of(std::span<CatalogTensor const* const> layers) {
  CatalogTensor whole{.about = layers.front()->about, .rule = layers.front()->rule};
  std::uint64_t const elements = volume(whole.about.shape);
  whole.about.shape.insert(whole.about.shape.begin(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (auto const& [name, saved] : layers[i]->arrays) {
      SavedArray& array = whole.arrays[name];
      array.dtype = saved.dtype;
      for (SavedRun run : saved.runs) {
        run.first += i * elements;
        array.runs.push_back(run);
      }
    }
  }
  return whole;
}

/// Finds what a checkpoint has for an optimizer: every tensor under its name, or as a layer of one
/// that was saved whole, or in as many layers as it has.
class LoadPlanner {
 public:
  /// @param here  tensors as this optimizer has them, with their parts of the whole
  LoadPlanner(Catalog const& catalog,
              std::vector<SavedTensor> const& here,
              LoadOptions const& options)
      : catalog_(&catalog), here_(&here), options_(&options), sources_(sources_of(catalog)) {
    for (auto const& [saved, own] : options.names) renamed_[own] = saved;
    problems_.resize(here.size());
    for (SavedTensor const& tensor : here) named_.insert(name_there(tensor.name));
    for (std::size_t t = 0; t < here.size(); ++t) found_.push_back(look_for(t));
  }

  /// What the checkpoint says of a tensor here; null if it does not have it.
  [[nodiscard]] SavedTensor const* about(std::size_t t) const noexcept {
    return found_[t] == nullptr ? nullptr : &found_[t]->about;
  }

  /// The first tensor whose states another rule has left, in words; empty if there is none.
  /// @param rule   the rule here
  /// @param alike  rules whose states mean the same
  [[nodiscard]] std::string other_rule(std::string_view rule,
                                       std::vector<std::string_view> const& alike) const {
    if (options_->parameters_only) return {};
    for (std::size_t t = 0; t < here_->size(); ++t) {
      CatalogTensor const* const saved = (*here_)[t].frozen ? nullptr : found_[t];
      if (saved == nullptr || saved->about.frozen || saved->rule.empty() || saved->rule == rule ||
          std::find(alike.begin(), alike.end(), saved->rule) != alike.end()) {
        continue;
      }
      return "states of '" + (*here_)[t].name + "' are of the rule " + saved->rule +
             ", and would mean something else to " + std::string(rule) +
             "; load parameters alone (LoadOptions::parameters_only)";
    }
    return {};
  }

  /// @param runs    all that this rank holds
  /// @param states  which the rule has, by name
  [[nodiscard]] LoadPlan plan(std::vector<ArrayRun> const& runs,
                              std::vector<std::string> const& states) {
    LoadPlan plan;
    plan.loaded.resize(here_->size());
    for (std::size_t t = 0; t < here_->size(); ++t) plan.loaded[t] = fits(t, states, plan);
    for (auto const& [name, tensor] : catalog_->tensors) {
      auto const used = used_.find(name);
      if (used == used_.end()) {
        plan.unexpected.push_back(name);
        continue;
      }
      for (std::size_t layer = 0; layer < used->second.size(); ++layer) {
        if (!used->second[layer]) plan.unexpected.push_back(name_of_layer(name, layer));
      }
    }
    for (ArrayRun const& run : runs) {
      if (!plan.loaded[run.tensor]) continue;
      if (options_->parameters_only && is_state(run)) continue;
      find(run, plan);
    }
    std::sort(plan.wanted.begin(), plan.wanted.end(), [](Wanted const& a, Wanted const& b) {
      return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
    return plan;
  }

 private:
  [[nodiscard]] static bool is_state(ArrayRun const& run) noexcept {
    return run.array != master_array && run.array != parameter_array;
  }

  /// What the checkpoint calls a tensor here.
  [[nodiscard]] std::string name_there(std::string_view name) const {
    auto const renamed = renamed_.find(name);
    return renamed == renamed_.end() ? std::string(name) : renamed->second;
  }
  /// The tensor of the checkpoint that has the elements of that name; null if there is none.
  [[nodiscard]] CatalogTensor const* source(std::string const& name) const {
    auto const found = sources_.find(name);
    return found == sources_.end() ? nullptr : found->second;
  }

  /// The tensor of the checkpoint that has the elements of one here; null if there is none.
  [[nodiscard]] CatalogTensor const* look_for(std::size_t t) {
    SavedTensor const& own = (*here_)[t];
    std::string const name = name_there(own.name);
    if (CatalogTensor const* const found = source(name)) {
      used_[name];
      return found;
    }
    if (auto const layer = layer_name(own.name)) {
      std::string const whole = name_there(layer->whole);
      CatalogTensor const* const found = named_.count(whole) == 0 ? source(whole) : nullptr;
      if (found == nullptr || found->about.shape.empty()) return nullptr;
      std::uint64_t const layers = found->about.shape.front();
      if (layer->layer >= layers || layers > most_layers) return nullptr;
      used_[whole].resize(static_cast<std::size_t>(layers));
      used_[whole][static_cast<std::size_t>(layer->layer)] = true;
      return &derived_.emplace_back(layer_of(*found, layer->layer));
    }
    std::vector<CatalogTensor const*> layers;
    for (std::uint64_t i = 0; !own.shape.empty() && i < own.shape.front(); ++i) {
      std::string const layer = name_of_layer(name, i);
      layers.push_back(named_.count(layer) == 0 ? source(layer) : nullptr);
      if (layers.back() == nullptr) return nullptr;
    }
    if (layers.empty()) return nullptr;
    for (std::uint64_t i = 0; i < layers.size(); ++i) used_[name_of_layer(name, i)];
    problems_[t] = problem_of_layers(layers, !options_->parameters_only);
    if (!problems_[t].empty()) return layers.front();
    return &derived_.emplace_back(whole_of(layers));
  }

  [[nodiscard]] bool fits(std::size_t t, std::vector<std::string> const& states, LoadPlan& plan) {
    SavedTensor const& own = (*here_)[t];
    CatalogTensor const* const saved = found_[t];
    std::string const name = "'" + own.name + "'";
    auto const refuse = [&](Message const& why) {
      plan.unfit.push_back(why.text() + " in the checkpoint");
      return false;
    };
    if (!problems_[t].empty()) return refuse({"layers of ", name, " ", problems_[t]});
    if (saved == nullptr) {
      plan.missing.push_back(own.name);
      return false;
    }
    if (saved->about.shape != own.shape) {
      Message const there{shape_text(own.shape), " here and ", shape_text(saved->about.shape)};
      return refuse({name, " has shape ", there});
    }
    std::vector<std::string> arrays{std::string(values_of(*saved))};
    if (!own.frozen && !options_->parameters_only) {
      arrays.insert(arrays.end(), states.begin(), states.end());
    }
    for (std::string const& array : arrays) {
      if (covers(*saved, array, own)) continue;
      if (array == arrays.front() || saved->arrays.count(array) != 0) {
        return refuse({name, " does not have all elements of '", array, "'"});
      }
      plan.lacks_states = true;
      return refuse({name, " has no state '", array, "'"});
    }
    return true;
  }

  /// Which array has a tensor's values.
  [[nodiscard]] static std::string_view values_of(CatalogTensor const& saved) noexcept {
    return saved.about.frozen ? parameter_array : master_array;
  }

  /// Calls `visit(piece, before)` for what was saved of elements [first, first + count) of a tensor
  /// here, of which `before` lie before the piece.
  template <class Visit>
  static void for_each_saved(SavedTensor const& own,
                             std::uint64_t first,
                             std::uint64_t count,
                             SavedArray const& from,
                             Visit const& visit) {
    std::uint64_t done = 0;
    for_each_run(own.shape, own.boxes, first, count, [&](std::uint64_t at, std::uint64_t length) {
      for_each_piece(from, at, length, [&](SavedRun const& piece, std::uint64_t before) {
        visit(piece, done + before);
      });
      done += length;
    });
  }
  /// Does the checkpoint have all elements that this optimizer has of a tensor?
  [[nodiscard]] static bool covers(CatalogTensor const& saved,
                                   std::string const& array,
                                   SavedTensor const& own) {
    std::uint64_t left = 0;
    for (Box const& box : own.boxes) left += volume(box.extent);
    auto const from = saved.arrays.find(array);
    if (left == 0 || from == saved.arrays.end()) return left == 0;
    for_each_saved(own, 0, left, from->second, [&](SavedRun const& piece, std::uint64_t /*at*/) {
      left -= piece.count;
    });
    return left == 0;
  }
  void find(ArrayRun const& run, LoadPlan& plan) const {
    CatalogTensor const& saved = *found_[run.tensor];
    SavedArray const& from =
        saved.arrays.at(std::string(is_state(run) ? run.array : values_of(saved)));
    auto const add = [&](SavedRun const& piece, std::uint64_t before) {
      plan.wanted.push_back({.file = piece.file,
                             .offset = piece.offset,
                             .count = piece.count,
                             .from = from.dtype,
                             .to = run.dtype,
                             .memory = run.memory + before * size_of(run.dtype)});
    };
    for_each_saved((*here_)[run.tensor], run.first, run.count, from, add);
  }

  static constexpr std::uint64_t most_layers = std::uint64_t{1} << 20;

  Catalog const* catalog_;
  std::vector<SavedTensor> const* here_;
  LoadOptions const* options_;
  std::map<std::string_view, CatalogTensor const*> sources_;
  std::map<std::string, std::string, std::less<>> renamed_;  ///< name here, name in the checkpoint
  /// What tensors here are called there: these are nobody's layers, and have none.
  std::set<std::string> named_;
  std::deque<CatalogTensor> derived_;        ///< layers, and what has layers
  std::vector<CatalogTensor const*> found_;  ///< by tensor here
  std::vector<std::string_view> problems_;   ///< likewise
  /// Names of the checkpoint that are for tensors here, and which layers if not the whole.
  std::map<std::string, std::vector<bool>> used_;
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
