/// @file
/// What checkpoints take of an optimizer: its policies, and where the elements lie in its memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/optimizer/held/held_values.hpp"
#include "zero/optimizer/parts.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Elements [first, first + count) of one array of a tensor, and where the space has their values.
struct ArrayRun {
  std::size_t tensor = 0;
  std::string_view array{};
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  HeldValues values{};
  DType limit = DType::u8;  ///< of masters: the type of their parameters
  HeldValues masters{};     ///< of parameters that are exported: what they are rounded from
  /// Of masters, and of parameters without any: how parameters are rounded.
  MasterForm const* form = nullptr;
  Coding coding = Coding::values;  ///< of codes and scales, which are saved as the bytes they are
  HeldValues decoded{};            ///< of codes: what they stand for

  [[nodiscard]] DType dtype() const noexcept { return values.array.dtype; }
  /// As they are saved.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return entries_of(coding, count) * size_of(dtype());
  }
  /// What files call the array.
  [[nodiscard]] std::string saved_name() const { return name_of_saved(array, coding); }
};

/// What a piece has of the k-th array of its kind.
[[nodiscard]] inline ArrayRun run_of(HeldPiece const& piece, std::size_t k) {
  ArrayForm const& form = piece.types().arrays[k];
  ArrayRun run{.tensor = piece.tensor(),
               .array = form.name,
               .first = piece.first(),
               .count = piece.count(),
               .values = piece.saved(k)};
  if (k == 0) run.limit = piece.types().parameter;
  if (k == 0) run.form = piece.types().masters;
  if (form.coding < Coding::root) return run;
  run.coding = form.coding;
  if (has_scales(form.coding)) run.decoded = piece.values(k);
  return run;
}
/// What a piece has of an array.
[[nodiscard]] inline ArrayRun run_of(HeldPiece const& piece,
                                     std::string_view name,
                                     HeldValues const& values) {
  return {.tensor = piece.tensor(),
          .array = name,
          .first = piece.first(),
          .count = piece.count(),
          .values = values};
}

/// Appends a run, or lengthens the last one where it goes on there, unless it has masters.
inline void append_run(std::vector<ArrayRun>& runs, ArrayRun const& run) {
  if (!runs.empty()) {
    ArrayRun& last = runs.back();
    if (last.tensor == run.tensor && last.array == run.array && last.coding == run.coding &&
        last.first + last.count == run.first && last.values.go_on(last.count, run.values) &&
        run.masters.array.first == nullptr) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

/// Master weights, states and frozen parameters, array by array, wider types first, so that every
/// run of a file is aligned to its elements.
/// @param own  what this rank is to save: each element is one rank's, under every stage and over
///   every grid. Otherwise all that it holds
/// @param frozen  frozen parameters, too
ZERO_OPTIONAL_APART [[nodiscard]] std::vector<ArrayRun> array_runs(Parts& parts,
                                                                   bool own,
                                                                   bool frozen = true);

/// Are some states that a rank saves codes?
ZERO_OPTIONAL_APART [[nodiscard]] bool has_codes(Parts const& parts);

/// Policies by slot, for people and for those who compare.
ZERO_OPTIONAL_APART [[nodiscard]] nlohmann::json policies_of(Parts const& parts);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY std::vector<ArrayRun> array_runs(Parts& parts, bool own, bool frozen) {
  std::vector<ArrayRun> runs;
  auto const left_out = [&](HeldPiece const& piece) {
    return own && !parts.counts(piece.tensor());
  };
  std::size_t const arrays = parts.policies.types.front().arrays.size();
  for (std::size_t k = 0; k < arrays; ++k) {
    parts.held.trained(own ? Extent::owned : Extent::updated, [&](HeldPiece const& piece) {
      // Tensors of a coding rule that have states in full have no scales.
      if (left_out(piece) || k >= piece.types().arrays.size()) return;
      append_run(runs, run_of(piece, k));
    });
  }
  parts.held.frozen(own ? Extent::owned : Extent::read, [&](HeldPiece const& piece) {
    if (!frozen || left_out(piece)) return;
    ArrayRun run = run_of(piece, parameter_array, {piece.parameter()});
    run.form = piece.types().masters;
    append_run(runs, run);
  });
  std::stable_sort(runs.begin(), runs.end(), [](ArrayRun const& a, ArrayRun const& b) {
    return size_of(a.dtype()) > size_of(b.dtype());
  });
  return runs;
}

ZERO_OPTIONAL_BODY bool has_codes(Parts const& parts) {
  auto const& places = parts.partition.placement().places();
  return std::any_of(places.begin(), places.end(), [&](TensorPlace const& place) {
    return place.count > 0 && parts.types[place.kind].coded();
  });
}

ZERO_OPTIONAL_BODY nlohmann::json policies_of(Parts const& parts) {
  PolicyFacts const& policies = parts.policies;
  StorageTypes const& types = policies.types.front();
  RuleCalls const& rule = parts.rules.calls();
  auto const fields_of = [&](void const* of) {
    nlohmann::json fields = nlohmann::json::object();
    auto const add = [&](RuleField const& field) { fields[std::string(field.name)] = field.value; };
    if (rule.described) rule.fields(of, FunctionRef<void(RuleField const&)>(add));
    return fields;
  };
  nlohmann::json states = nlohmann::json::array();
  for (StateArray const& state : rule.states) states.push_back(state.name);
  auto const types_of = [](StorageTypes const& each) -> nlohmann::json {
    return {{"parameter", name(each.parameter)},
            {"wire", name(each.wire)},
            {"accumulate", name(each.accumulate)},
            {"master", name(each.master())}};
  };
  nlohmann::json precision = types_of(types);
  precision["name"] = policies.precision;
  precision["state"] = name(policies.state);
  for (StorageTypes const& other :
       policies.types.first(precision_count(policies.types)).subspan(1)) {
    precision["others"].push_back(types_of(other));
  }
  nlohmann::json own_rule = {
      {"name", rule.name}, {"states", states}, {"fields", fields_of(parts.rules.common())}};
  if (!rule.in_full.empty()) own_rule["in_full"] = rule.in_full;
  nlohmann::json json = {{"stage", policies.stage},
                         {"world_size", parts.comm().size()},
                         {"precision", precision},
                         {"rule", own_rule},
                         {"accumulation", policies.accumulation},
                         {"memory", policies.memory()},
                         {"bucket_bytes", parts.partition.bucket_elements() * size_of(types.wire)}};
  if (rule.described) {
    parts.rules.for_owned([&](std::string const& name, void const* own) {
      json["own_rules"][name] = fields_of(own);
    });
  }
  if (parts.randomness.used()) json["seed"] = parts.randomness.seed(parts.space()).value;
  if (policies.loss_scaled) {
    StepControl control;
    parts.space().download(&control, parts.control, sizeof(control));
    LossScaleOptions const options = control.loss_scale.options();
    json["loss_scale"] = {{"initial", options.initial},
                          {"growth", options.growth},
                          {"growth_interval", options.growth_interval},
                          {"backoff", options.backoff},
                          {"minimum", options.minimum},
                          {"patience", options.patience}};
  }
  return json;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
