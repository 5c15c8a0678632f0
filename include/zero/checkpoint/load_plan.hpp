/// @file
/// What a load takes of a checkpoint: which elements, from where to where, and what does not fit.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/kernel/root_state.hpp"
#include "zero/optimizer/setup/value_limits.hpp"
#include "zero/precision/mixed.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// What a load takes, and what it does about what does not fit.
struct LoadOptions {
  /// Every saved array has to go somewhere, and every tensor here has to get all of its own:
  /// tensors that are missing, unexpected, of another shape, frozen or tied otherwise are errors.
  /// Without it what fits is loaded, and the rest reported. A tensor whose states were not saved
  /// then begins with states of 0 and counts its updates from 0, as a new one does.
  bool strict = true;
  /// Leave states and counters as they are: for another rule, or fine-tuning.
  bool parameters_only = false;
  /// Read everything twice: nothing is changed unless all of it is as it was saved.
  bool verify_first = false;
  /// What tensors of the checkpoint are called here, each of them something else. Those that are
  /// not named keep their names, also where another name, which the checkpoint lacks, leads there.
  std::map<std::string, std::string> names{};
  /// Which tensors here are parts of larger ones: over a grid, all that are partitioned.
  std::vector<TensorPart> parts{};
  /// What becomes of values and states that types here cannot hold.
  Overflow overflow = Overflow::refuse;
  /// Load frozen tensors. Without it those here keep their values, and those of the checkpoint need
  /// not be here.
  bool frozen = true;
  /// Make codes of states that were saved in full, to nearest, and the other way round: of a rule
  /// with states of 8 bits and the one that it computes, such as `AdamW8bit` and `AdamW`, and of
  /// tensors whose states are in full on one side alone. Otherwise both are refused.
  bool convert_states = false;
};

namespace detail {

/// What is to be read, and what does not fit.
struct LoadPlan {
  std::vector<Wanted> wanted{};           ///< in the order of the files
  std::deque<Narrowed> narrowed{};        ///< what they point to
  std::vector<ArrayRun> cleared{};        ///< states that begin anew
  std::vector<ArrayRun> converted{};      ///< states that were saved otherwise than they are held
  std::vector<bool> values{};             ///< which tensors here get theirs
  std::vector<bool> states{};             ///< likewise: states, and with them the count of updates
  std::vector<std::string> missing{};     ///< tensors here that are not in the files
  std::vector<std::string> unexpected{};  ///< tensors in the files that are not here
  std::vector<std::string> unfit{};       ///< of another shape, or not whole: in words
  std::vector<std::string> left_out{};    ///< frozen tensors here: of the trainer
  bool other_states = false;              ///< some lack a state, or have one that is not here
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

/// Are groups that are coded together in layers of so many elements no groups of all layers?
[[nodiscard]] inline bool cuts_groups(SavedArray const& saved, std::uint64_t elements) noexcept {
  return saved.coding != Coding::values && elements % coded_group != 0;
}

/// One layer of a tensor that was saved whole.
/// @param layer  less than the tensor's first dimension
[[nodiscard]] inline CatalogTensor layer_of(CatalogTensor const& whole, std::uint64_t layer) {
  CatalogTensor one = whole.without_arrays();
  one.about.shape.erase(one.about.shape.begin());
  std::uint64_t const elements = volume(one.about.shape);
  for (auto const& [name, saved] : whole.arrays) {
    SavedArray& array = one.arrays[name];
    array.dtype = saved.dtype;
    array.coding = saved.coding;
    array.cut = saved.cut || cuts_groups(saved, elements);
    if (array.cut) continue;
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
      if (other->second.dtype != array.dtype || other->second.coding != array.coding) {
        return "have different types";
      }
    }
  }
  return {};
}

/// The tensor that these are the layers of.
/// @param layers  without a problem, and no more elements in all than can be counted
[[nodiscard]] inline CatalogTensor whole_of(std::span<CatalogTensor const* const> layers) {
  CatalogTensor const& first = *layers.front();
  CatalogTensor whole = first.without_arrays();
  std::uint64_t const elements = volume(whole.about.shape);
  whole.about.shape.insert(whole.about.shape.begin(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i]->parameter != first.parameter) whole.parameter.clear();
    if (layers[i]->precision != first.precision) whole.precision.clear();
    for (auto const& [name, saved] : layers[i]->arrays) {
      SavedArray& array = whole.arrays[name];
      array.dtype = saved.dtype;
      array.coding = saved.coding;
      array.cut = array.cut || saved.cut || cuts_groups(saved, elements);
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
  /// @throws Error (invalid_argument) for names that make no sense
  LoadPlanner(Catalog const& catalog,
              std::vector<SavedTensor> const& here,
              LoadOptions const& options)
      : catalog_(&catalog), here_(&here), options_(&options), sources_(sources_of(catalog)) {
    auto const known = [&](std::string const& name) {
      return sources_.count(name) + sources_.count(name_of_layer(name, 0)) != 0;
    };
    // Of several that are one tensor here, and of its own name, the checkpoint may have one alone.
    for (auto const& [saved, own] : options.names) {
      if (known(saved) || (!known(own) && renamed_.count(own) == 0)) renamed_[own] = saved;
    }
    require_names();
    std::map<std::string_view, std::size_t> roots;
    for (std::size_t t = 0; t < here.size(); ++t) {
      auto const tied = roots.find(here[t].tied_to);
      roots_.push_back(tied == roots.end() ? t : tied->second);
      roots.emplace(here[t].name, roots_.back());
      named_.insert(name_there(here[t].name));
    }
    problems_.resize(here.size());
    leaders_.resize(here.size(), none);
    for (std::size_t t = 0; t < here.size(); ++t) found_.push_back(look_for(t));
  }

  /// What the checkpoint says of a tensor here; null if it does not have it.
  [[nodiscard]] SavedTensor const* about(std::size_t t) const noexcept {
    return found_[t] == nullptr ? nullptr : &found_[t]->about;
  }

  /// The first tensor whose states another rule has left, in words; empty if there is none.
  /// @param rule     the rule here
  /// @param in_full  the one that it computes, where its states are codes
  /// @param alike    rules whose states mean the same
  [[nodiscard]] std::string other_rule(std::string_view rule,
                                       std::string_view in_full,
                                       std::vector<std::string_view> const& alike) const {
    if (options_->parameters_only) return {};
    for (std::size_t t = 0; t < here_->size(); ++t) {
      CatalogTensor const* const saved = (*here_)[t].frozen ? nullptr : found_[t];
      if (saved == nullptr || saved->about.frozen || saved->rule.empty() || saved->rule == rule ||
          std::find(alike.begin(), alike.end(), saved->rule) != alike.end()) {
        continue;
      }
      bool const convertible = saved->rule == in_full || saved->in_full == rule;
      if (convertible && options_->convert_states) continue;
      return "states of '" + (*here_)[t].name + "' are of the rule " + saved->rule +
             ", and would mean something else to " + std::string(rule) +
             (convertible ? "; convert them (LoadOptions::convert_states), or " : "; ") +
             "load parameters alone (LoadOptions::parameters_only)";
    }
    return {};
  }

  /// The tensor of the checkpoint that one here goes on from, if the plan has its states.
  [[nodiscard]] SavedTensor const& source(std::size_t t) const noexcept {
    return found_[leaders_[roots_[t]]]->about;
  }
  /// Do tensors here share memory?
  [[nodiscard]] bool ties() const noexcept {
    return std::any_of(here_->begin(), here_->end(), [](SavedTensor const& tensor) {
      return !tensor.tied_to.empty();
    });
  }

  /// Decides by what the files say of themselves.
  /// @param types_of  `types_of(t)` has the arrays that a tensor has here
  template <class TypesOf>
  [[nodiscard]] LoadPlan plan(TypesOf const& types_of) {
    LoadPlan plan;
    std::size_t const tensors = here_->size();
    std::vector<bool> fit(tensors);
    std::vector<bool> with_states(tensors);
    std::vector<bool> found(tensors);
    std::vector<bool> left_out(tensors);
    for (std::size_t t = 0; t < tensors; ++t) {
      bool const stays = (*here_)[t].frozen && !options_->frozen;
      found[roots_[t]] = found[roots_[t]] || stays || found_[t] != nullptr;
      if (stays) left_out[t] = true;
      if (stays || found_[t] == nullptr) continue;
      if ((*here_)[t].frozen && found_[t]->about.left_out) left_out[roots_[t]] = true;
      fit[t] = fits(t, plan);
      with_states[t] = fit[t] && has_states(t, types_of(t).states(), plan);
      std::size_t& leader = leaders_[roots_[t]];
      if (fit[t] && leader == none) leader = t;
    }
    for (std::size_t t = 0; t < tensors; ++t) {
      std::size_t const leader = leaders_[roots_[t]];
      plan.values.push_back(leader != none);
      plan.states.push_back(leader != none && with_states[leader]);
      // Tied tensors may be there under any of their names.
      if (!found[roots_[t]]) plan.missing.push_back((*here_)[t].name);
      if (left_out[t] && roots_[t] == t && leader == none) {
        plan.left_out.push_back((*here_)[t].name);
      }
      if (fit[t] && !same_place(*found_[t], *found_[leader])) tied_.emplace(roots_[t], t);
    }
    for (auto const& [name, tensor] : catalog_->tensors) {
      auto const used = used_.find(name);
      if (tensor.about.left_out || (tensor.about.frozen && !options_->frozen)) continue;
      if (used == used_.end()) {
        plan.unexpected.push_back(name);
        continue;
      }
      for (std::size_t layer = 0; layer < used->second.size(); ++layer) {
        if (!used->second[layer]) plan.unexpected.push_back(name_of_layer(name, layer));
      }
    }
    return plan;
  }

  /// Compares what was saved of tensors that share memory here and had memory of their own.
  /// @param runs  all that this rank holds, and all that it looks at
  /// @returns for each tensor 1 if its values are not those that the plan takes; then for each 1 if
  ///   its states or its count of updates are not
  /// @throws Error (data) if files are damaged
  [[nodiscard]] std::vector<std::int64_t> differing(std::vector<ArrayRun> const& runs,
                                                    FileOperations& files,
                                                    Alive const& alive) const {
    std::size_t const tensors = here_->size();
    std::vector<std::int64_t> differs(2 * tensors);
    if (!options_->parameters_only) {
      for (auto const& [root, t] : tied_) {
        CatalogTensor const& own = *found_[t];
        CatalogTensor const& taken = *found_[leaders_[root]];
        differs[tensors + t] = own.about.steps != taken.about.steps || own.rule != taken.rule ||
                               own.about.frozen != taken.about.frozen;
      }
    }
    PieceReader one(files, *catalog_);
    PieceReader other(files, *catalog_);
    for (ArrayRun const& run : runs) {
      if (options_->parameters_only && is_state(run)) continue;
      auto const [begin, end] = tied_.equal_range(run.tensor);
      for (auto at = begin; at != end; ++at) {
        std::int64_t& word = differs[at->second + (is_state(run) ? tensors : 0)];
        if (word != 0) continue;
        SavedArray const* const own = array_of(*found_[at->second], run);
        SavedArray const* const taken = array_of(*found_[leaders_[run.tensor]], run);
        bool const both = own != nullptr && taken != nullptr;
        if (run.coding != Coding::values && both &&
            (own->coding != run.coding || taken->coding != run.coding)) {
          // What is converted is not compared.
          word = own->runs != taken->runs;
          continue;
        }
        word = both ? !same_elements(run, {&one, own}, {&other, taken}, alive) : own != taken;
      }
    }
    return differs;
  }
  /// Takes nothing of tied tensors that they do not have alike.
  /// @param words  sums over all ranks: as `differing` has them, then by tensor of how many ranks
  ///   the plan takes values, then states; of what is not taken these are 0 then
  void part_ties(std::span<std::int64_t> words, LoadPlan& plan) const {
    std::size_t const tensors = here_->size();
    for (std::size_t t = 0; t < tensors; ++t) {
      bool const values = words[t] != 0;
      if (!values && words[tensors + t] == 0) continue;
      std::size_t const root = roots_[t];
      std::size_t const leader = leaders_[root] == none ? root : leaders_[root];
      char const* const what = values ? "values" : "states or numbers of updates";
      Message const why{"', which are tied here, have different ", what};
      refuse(plan, {"'", (*here_)[leader].name, "' and '", (*here_)[t].name, why});
      for (std::size_t i = 0; i < tensors; ++i) {
        if (roots_[i] != root) continue;
        if (values) plan.values[i] = false;
        if (values) words[2 * tensors + i] = 0;
        plan.states[i] = false;
        words[3 * tensors + i] = 0;
      }
    }
  }

  /// Reads states of a run that were saved otherwise than they are held, to where they belong.
  /// @param write  `write(values, count, done)` takes fp32 values behind the first `done`
  /// @throws Error (data) if files are damaged, or have codes that stand for no number
  template <class Write>
  void convert(ArrayRun const& run,
               PieceReader& pieces,
               Alive const& alive,
               Write const& write) const {
    constexpr std::uint64_t most = std::uint64_t{1} << 16;
    CatalogTensor const& saved = *found_[leaders_[run.tensor]];
    SavedArray const& from = saved.arrays.at(std::string(run.array));
    bool const coded = from.coding != Coding::values;
    for (std::uint64_t done = 0; done < run.count; done += most) {
      std::uint64_t const count = (std::min)(most, run.count - done);
      std::vector<float> values(static_cast<std::size_t>(count));
      auto const read = [&](ArrayRun as, SavedArray const& array, void* to) {
        std::vector<Wanted> wanted;
        want(as, array, run.first + done, count, static_cast<std::byte*>(to), not_narrowed, wanted);
        stream_in_order(pieces, wanted, copy_values, true, alive);
      };
      ArrayRun as{.tensor = run.tensor, .array = run.array};
      if (!coded) {
        read(as, from, values.data());
      } else {
        std::vector<std::byte> codes(values.size());
        std::vector<std::byte> scales(
            static_cast<std::size_t>(entries_of(Coding::root_scales, count)));
        as.values.array.dtype = DType::u8;
        read(as, from, codes.data());
        as.coding = Coding::root_scales;
        read(as, saved.arrays.at(name_of_saved(run.array, Coding::root_scales)), scales.data());
        CodeForm const& form = kernel::code_form(from.coding);
        require_codes(run, form, codes.data(), scales.data(), values.size(), done);
        form.decode(values.data(), codes.data(), scales.data(), values.size());
      }
      write(reinterpret_cast<std::byte const*>(values.data()), values.size(), done);
    }
  }
  /// Are codes that were read such that stand for numbers?
  /// @param form    theirs
  /// @param before  elements of the run before them
  /// @throws Error (data) if not
  void require_codes(ArrayRun const& run,
                     CodeForm const& form,
                     void const* codes,
                     void const* scales,
                     std::size_t count,
                     std::uint64_t before) const {
    std::size_t const bad = form.first_bad(codes, scales, count);
    if (bad == count) return;
    refuse_file(
        catalog_->path,
        {"has ", bad_code_text((*here_)[run.tensor].name, run.first + before + bad, run.array)});
  }

  /// Says what is to be read, and which states begin anew.
  /// @param runs  all that this rank holds
  void place(std::vector<ArrayRun> const& runs, LoadPlan& plan) const {
    for (ArrayRun const& run : runs) {
      if (options_->parameters_only && is_state(run)) continue;
      if (is_state(run) ? plan.states[run.tensor] : plan.values[run.tensor]) {
        CatalogTensor const& saved = *found_[leaders_[run.tensor]];
        if (is_state(run) && is_converted(saved, run)) {
          // Scales come with their codes.
          if (run.coding != Coding::root_scales) plan.converted.push_back(run);
          continue;
        }
        SavedArray const& from = *array_of(saved, run);
        Narrowed& narrowed = plan.narrowed.emplace_back(narrowing(run));
        std::byte* memory = run.values.array.first;
        if (!run.values.plain()) {
          narrowed.parts = run.values;
          narrowed.begin = run.first;
          memory = nullptr;
        }
        want(run, from, run.first, run.count, memory, narrowed, plan.wanted);
      } else if (is_state(run)) {
        plan.cleared.push_back(run);
      }
    }
    std::sort(plan.wanted.begin(), plan.wanted.end(), [](Wanted const& a, Wanted const& b) {
      return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
  }

 private:
  [[nodiscard]] static bool is_state(ArrayRun const& run) noexcept {
    return run.array != master_array && run.array != parameter_array;
  }

  /// @throws Error (invalid_argument) for names that make two tensors one, or one that is not here
  void require_names() const {
    if (options_->names.empty()) return;
    std::set<std::string_view> called;
    for (auto const& [name, source] : sources_) {
      auto const renamed = options_->names.find(std::string(name));
      std::string_view const own = renamed == options_->names.end() ? name : renamed->second;
      if (called.insert(own).second) continue;
      fail(ErrorKind::invalid_argument,
           {"two tensors of the checkpoint are called '", own, "' here"});
    }
    std::set<std::string_view> here;
    for (SavedTensor const& tensor : *here_) {
      here.insert(tensor.name);
      if (auto const layer = layer_name(tensor.name)) here.insert(layer->whole);
    }
    for (auto const& [saved, own] : options_->names) {
      if (!options_->strict || here.count(own) != 0) continue;
      fail(ErrorKind::invalid_argument,
           {"'", saved, "' is called '", own, "' here, and this optimizer has no such tensor"});
    }
  }
  /// What the checkpoint calls a tensor here.
  [[nodiscard]] std::string name_there(std::string_view name) const {
    auto const renamed = renamed_.find(name);
    return renamed == renamed_.end() ? std::string(name) : renamed->second;
  }
  /// The tensor of the checkpoint that has the elements of that name; null if there is none, or if
  /// it is called something else here.
  [[nodiscard]] CatalogTensor const* source(std::string const& name, std::string_view here) const {
    auto const renamed = options_->names.find(name);
    if (renamed != options_->names.end() && renamed->second != here) return nullptr;
    auto const found = sources_.find(name);
    return found == sources_.end() ? nullptr : found->second;
  }

  /// The tensor of the checkpoint that has the elements of one here; null if there is none.
  [[nodiscard]] CatalogTensor const* look_for(std::size_t t) {
    SavedTensor const& own = (*here_)[t];
    std::string const name = name_there(own.name);
    if (CatalogTensor const* const found = source(name, own.name)) {
      used_[name];
      return found;
    }
    if (auto const layer = layer_name(own.name)) {
      std::string const whole = name_there(layer->whole);
      CatalogTensor const* const found =
          named_.count(whole) == 0 ? source(whole, layer->whole) : nullptr;
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
      layers.push_back(named_.count(layer) == 0 ? source(layer, name_of_layer(own.name, i))
                                                : nullptr);
      if (layers.back() == nullptr) return nullptr;
    }
    if (layers.empty()) return nullptr;
    for (std::uint64_t i = 0; i < layers.size(); ++i) used_[name_of_layer(name, i)];
    problems_[t] = problem_of_layers(layers, !options_->parameters_only);
    if (!problems_[t].empty()) return layers.front();
    return &derived_.emplace_back(whole_of(layers));
  }

  /// Adds why something is not taken.
  /// @returns false
  static bool refuse(LoadPlan& plan, Message const& why) {
    plan.unfit.push_back(why.text() + " in the checkpoint");
    return false;
  }
  /// Are the values of a tensor that was found those of the one here?
  [[nodiscard]] bool fits(std::size_t t, LoadPlan& plan) const {
    SavedTensor const& own = (*here_)[t];
    CatalogTensor const& saved = *found_[t];
    if (!problems_[t].empty()) {
      return refuse(plan, {"layers of '", own.name, "' ", problems_[t]});
    }
    if (saved.about.shape != own.shape) {
      Message const there{shape_text(own.shape), " here and ", shape_text(saved.about.shape)};
      return refuse(plan, {"'", own.name, "' has shape ", there});
    }
    std::string const array(values_of(saved));
    bool const opaque = own.dtype && is_integral(*own.dtype);
    auto const values = saved.arrays.find(array);
    if (values != saved.arrays.end() && own.dtype != values->second.dtype &&
        (opaque || is_integral(values->second.dtype))) {
      Message const here{"'", own.name, "' has ", opaque ? name(*own.dtype) : "numbers"};
      return refuse(plan, {here, " here and ", name(values->second.dtype)});
    }
    std::string_view const called = own.file_dtype.name();
    std::string_view const before = saved.about.file_dtype.name();
    if (called != before && !called.empty() && !before.empty()) {
      return refuse(plan, {"'", own.name, "' is of ", called, " here and of ", before});
    }
    if (saved.about.left_out) {
      return !own.frozen && refuse(plan, {"'", own.name, "' is trained here, and left out"});
    }
    return covers(saved, array, own) ||
           refuse(plan, {"'", own.name, "' does not have all elements of '", array, "'"});
  }
  /// Can a tensor whose values fit go on with the states that were saved? Says as well which of
  /// them nothing here takes.
  [[nodiscard]] bool has_states(std::size_t t,
                                std::span<ArrayForm const> states,
                                LoadPlan& plan) const {
    SavedTensor const& own = (*here_)[t];
    CatalogTensor const& saved = *found_[t];
    if (options_->parameters_only) return false;
    std::string const name = "'" + own.name + "'";
    auto const other = [&](Message const& why) {
      plan.other_states = true;
      return refuse(plan, why);
    };
    for (auto const& [array, elements] : saved.arrays) {
      if (array == values_of(saved)) continue;
      if (own.frozen) return other({name, " is frozen here, and has states"});
      std::string_view const state =
          elements.coding == Coding::root_scales
              ? std::string_view(array).substr(0, array.size() - scales_ending.size())
              : std::string_view(array);
      auto const called = [&](ArrayForm const& form) { return form.name == state; };
      if (std::any_of(states.begin(), states.end(), called)) continue;
      other({"this rule has no state '", array, "', which ", name, " has"});
    }
    if (own.frozen) return false;
    for (ArrayForm const& form : states) {
      if (form.coding == Coding::root_scales) continue;
      std::string const array(form.name);
      auto const found = saved.arrays.find(array);
      if (found == saved.arrays.end()) {
        if (covers(saved, array, own)) continue;
        return other({name, " has no state '", array, "'"});
      }
      Coding const coding = found->second.coding;
      bool const coded = coding != Coding::values;
      if (coded != has_scales(form.coding) && !options_->convert_states) {
        return refuse(plan,
                      {name,
                       " has '",
                       array,
                       coded ? "' in codes, and here in full" : "' in full, and here in codes",
                       "; convert it (LoadOptions::convert_states); it is so"});
      }
      if (coded && has_scales(form.coding) && coding != form.coding) {
        return refuse(plan, {name, " has codes of '", array, "' that mean something else"});
      }
      if ((coded || has_scales(form.coding)) &&
          (found->second.cut || cuts_groups(own.shape, own.boxes))) {
        return refuse(plan,
                      {name,
                       " has another part than here, or layers, that cut the groups of 32 elements "
                       "in which '",
                       array,
                       "' is coded; have its states in full (Tensor::full_states)"});
      }
      std::string const scales = name_of_saved(array, Coding::root_scales);
      if (covers(saved, array, own) && (!coded || covers(saved, scales, own))) continue;
      return refuse(plan, {name, " does not have all elements of '", array, "'"});
    }
    return !saved.about.frozen;
  }
  /// Was the state of a run saved in another way than it is held?
  [[nodiscard]] static bool is_converted(CatalogTensor const& saved, ArrayRun const& run) {
    auto const found = saved.arrays.find(std::string(run.array));
    bool const coded = found != saved.arrays.end() && found->second.coding != Coding::values;
    return coded != (run.coding != Coding::values);
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
  /// What was saved of the array of a run; null if nothing was.
  [[nodiscard]] static SavedArray const* array_of(CatalogTensor const& saved, ArrayRun const& run) {
    auto const found =
        saved.arrays.find(is_state(run) ? run.saved_name() : std::string(values_of(saved)));
    return found == saved.arrays.end() ? nullptr : &found->second;
  }
  /// What becomes of values that are too large. A master weight that has outgrown its parameter in
  /// training is no such value where the parameter has the same type: the run goes on as it was.
  [[nodiscard]] Narrowed narrowing(ArrayRun const& run) const {
    std::string_view const state = is_state(run) ? run.array : std::string_view();
    CatalogTensor const& saved = *found_[leaders_[run.tensor]];
    // With 24 bits, masters outgrow their parameters earlier, and may become infinite themselves.
    bool const fewer = run.form != nullptr && run.form->least_infinite == Rest8::least_infinite;
    bool const as_here = !fewer || saved.precision.find(Rest8::name) != std::string::npos;
    bool const outgrown = as_here && saved.parameter == name(run.limit);
    DType const limit = outgrown ? DType::u8 : run.limit;
    return {.overflow = options_->overflow,
            .tensor = (*here_)[run.tensor].name,
            .state = state,
            .limit = limit,
            .form = run.form};
  }
  /// Appends where elements [first, first + count) of the tensor of a run are to be read from.
  void want(ArrayRun const& run,
            SavedArray const& from,
            std::uint64_t first,
            std::uint64_t count,
            std::byte* memory,
            Narrowed const& narrowed,
            std::vector<Wanted>& wanted) const {
    auto const add = [&](SavedRun const& piece, std::uint64_t before) {
      wanted.push_back({.file = piece.file,
                        .offset = piece.offset,
                        .count = entries_of(run.coding, piece.count),
                        .from = from.dtype,
                        .to = run.dtype(),
                        .memory = memory == nullptr ? nullptr
                                                    : memory + entries_of(run.coding, before) *
                                                                   size_of(run.dtype()),
                        .narrowed = &narrowed,
                        .first = first + before});
    };
    for_each_saved((*here_)[run.tensor], first, count, from, add);
  }
  /// Do the files have the same for both, as they would be read?
  [[nodiscard]] static bool same_place(CatalogTensor const& a, CatalogTensor const& b) {
    return &a == &b || (a.arrays == b.arrays && a.about.steps == b.about.steps &&
                        a.rule == b.rule && a.about.frozen == b.about.frozen);
  }
  struct ReadArray {
    PieceReader* pieces = nullptr;
    SavedArray const* from = nullptr;
  };
  /// Does a run get the same bits from both?
  [[nodiscard]] bool same_elements(ArrayRun const& run,
                                   ReadArray const& one,
                                   ReadArray const& other,
                                   Alive const& alive) const {
    constexpr std::uint64_t most = std::uint64_t{1} << 16;
    Narrowed const narrowed = narrowing(run);
    auto const read = [&](ReadArray const& array, std::uint64_t done) {
      std::uint64_t const count = (std::min)(most, run.count - done);
      std::vector<std::byte> elements(static_cast<std::size_t>(entries_of(run.coding, count)) *
                                      size_of(run.dtype()));
      std::vector<Wanted> wanted;
      want(run, *array.from, run.first + done, count, elements.data(), narrowed, wanted);
      stream_in_order(*array.pieces, wanted, copy_values, true, alive);
      return elements;
    };
    for (std::uint64_t done = 0; done < run.count; done += most) {
      if (read(one, done) != read(other, done)) return false;
    }
    return true;
  }

  static constexpr std::uint64_t most_layers = std::uint64_t{1} << 20;
  static constexpr std::size_t none = (std::numeric_limits<std::size_t>::max)();

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
  std::vector<std::size_t> roots_;           ///< likewise: the tensor here whose memory it has
  /// By such a tensor: the first of those that share its memory whose values fit. All are read from
  /// what was saved of that one.
  std::vector<std::size_t> leaders_;
  /// By such a tensor: those that were saved with memory of their own, and not with the leader's.
  std::multimap<std::size_t, std::size_t> tied_;
  /// Names of the checkpoint that are for tensors here, and which layers if not the whole.
  std::map<std::string, std::vector<bool>> used_;
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
