/// @file
/// An optimizer as checkpoints see it, whatever its policies: what is compiled for each is here.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/checkpoint/array_runs.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/step_options.hpp"

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a save or a load asks of an optimizer, which must outlive it.
struct OptimizerView {
  ControlWords control{};  ///< of the optimizer's communicator, or of all ranks of its grid
  ControlWords data{};     ///< of the ranks that have the same part of the model
  bool divided = false;    ///< do others have other parts?
  Model const* model = nullptr;
  OptimizerFacts facts{};
  /// Local; throw unless the optimizer is between steps, and has values.
  std::function<void(std::string_view call, bool replaces)> require_ready{};
  std::function<void()> require_values{};
  std::function<Counters()> counters{};
  /// As `array_runs`.
  std::function<std::vector<ArrayRun>(bool own)> runs{};
  bool direct = false;  ///< whether the host may follow pointers to the arrays
  std::function<void(void* host, void const* from, std::size_t)> download{};
  std::function<void(void* to, void const* host, std::size_t)> upload{};
  /// What is under way is over; of these tensors values, and states if all is loaded, are lost
  /// until `end_load`.
  std::function<void(std::vector<bool> const& tensors, bool all)> begin_load{};
  /// Collective: parameters of these tensors follow their master weights.
  std::function<void(std::vector<bool> const& loaded)> follow{};
  std::function<void(Counters const&)> restore{};
  std::function<void(std::vector<bool> const& tensors, bool all, bool every_tensor)> end_load{};
};

ZERO_OPTIONAL_APART [[nodiscard]] OptimizerFacts facts_of(Parts const& parts);

ZERO_OPTIONAL_APART [[nodiscard]] OptimizerView view_of(Engine& engine);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY OptimizerFacts facts_of(Parts const& parts) {
  PolicyFacts const& policies = parts.policies;
  RuleCalls const& rule = parts.rules.calls();
  OptimizerFacts facts{
      .stage = policies.stage,
      .world_size = parts.comm().size(),
      .precision = policies.precision,
      .parameter = policies.types.parameter,
      .wire = policies.types.wire,
      .accumulate = policies.types.accumulate,
      .master = policies.types.master,
      .state = policies.types.state,
      .rule = rule.name,
      .accumulation = policies.accumulation,
      .borrowed = policies.borrowed,
      .bucket_bytes = parts.partition.bucket_elements() * size_of(policies.types.wire)};
  facts.states_of.assign(rule.states_of.begin(), rule.states_of.end());
  for (StateArray const& state : rule.states) facts.states.emplace_back(state.name);
  if (rule.described) {
    auto const fields_of = [&](void const* of, std::vector<RuleField>& fields) {
      auto const add = [&](RuleField const& field) { fields.push_back(field); };
      rule.fields(of, FunctionRef<void(RuleField const&)>(add));
    };
    fields_of(parts.rules.common(), facts.fields);
    parts.rules.for_owned([&](std::string const& name, void const* own) {
      fields_of(own, facts.own_fields.emplace_back(name, std::vector<RuleField>()).second);
    });
  }
  if (policies.loss_scaled) {
    StepControl control;
    parts.space().download(&control, parts.control, sizeof(control));
    facts.loss_scale = control.loss_scale.options();
  }
  return facts;
}

ZERO_OPTIONAL_BODY OptimizerView view_of(Engine& engine) {
  Parts& parts = engine.parts();
  return {
      .control = control_words(parts.groups.world().ref(), parts.arena),
      .data = control_words(parts.comm().ref(), parts.arena),
      .divided = parts.divided(),
      .model = &parts,
      .facts = facts_of(parts),
      .require_ready =
          [&engine](std::string_view call, bool replaces) {
            engine.require_bound();
            engine.require_between_steps(call);
            if (replaces) engine.require_no_readers(call);
          },
      .require_values = [&engine] { engine.require_values(); },
      .counters = [&engine] { return engine.counters(); },
      .runs = [&parts](bool own) { return array_runs(parts, own); },
      .direct = parts.space().host_accessible(),
      .download =
          [&parts](void* host, void const* from, std::size_t bytes) {
            if (!parts.space().host_accessible()) return parts.space().download(host, from, bytes);
            std::memcpy(host, from, bytes);
          },
      .upload =
          [&parts](void* to, void const* host, std::size_t bytes) {
            if (!parts.space().host_accessible()) return parts.space().upload(to, host, bytes);
            std::memcpy(to, host, bytes);
          },
      .begin_load = [&engine](std::vector<bool> const& tensors,
                              bool all) { engine.begin_load(tensors, all); },
      .follow = [&engine](std::vector<bool> const& loaded) { engine.follow(loaded); },
      .restore = [&engine](Counters const& counters) { engine.restore(counters); },
      .end_load =
          [&engine](std::vector<bool> const& tensors, bool all, bool every_tensor) {
            engine.end_load(tensors, all);
            if (every_tensor) engine.values_are_set(false);
          },
  };
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
