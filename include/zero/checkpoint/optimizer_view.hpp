/// @file
/// An optimizer as checkpoints see it, whatever its policies: what is compiled for each is here.
#pragma once

#include "zero/base/config.hpp"
#include "zero/checkpoint/array_runs.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/step.hpp"
#include "zero/optimizer/inside.hpp"
#include "zero/optimizer/setup/owned.hpp"

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

template <class Slots>
[[nodiscard]] OptimizerFacts facts_of(Assembly<Slots> const& parts) {
  OptimizerFacts facts{
      .stage = Slots::Stage::name,
      .world_size = parts.comm->size(),
      .precision = Slots::Precision::name,
      .parameter = dtype_of<typename Slots::Parameter>,
      .wire = dtype_of<typename Slots::Wire>,
      .accumulate = dtype_of<typename Slots::Accumulate>,
      .master = dtype_of<typename Slots::Master>,
      .state = dtype_of<typename Slots::State>,
      .rule = Slots::Rule::name,
      .accumulation = Slots::Accumulation::name,
      .borrowed = Slots::Memory::borrowed,
      .bucket_bytes = parts.partition.bucket_elements() * sizeof(typename Slots::Wire)};
  if constexpr (requires { Slots::Rule::states_of; }) {
    facts.states_of.assign(std::begin(Slots::Rule::states_of), std::end(Slots::Rule::states_of));
  }
  for (StateArray const& state : Slots::Rule::states) facts.states.emplace_back(state.name);
  if constexpr (DescribedRule<typename Slots::Rule>) {
    for (RuleField const& field : parts.rules.common().fields()) facts.fields.push_back(field);
    parts.rules.for_owned([&](std::string const& name, typename Slots::Rule const& rule) {
      auto& fields = facts.own_fields.emplace_back(name, std::vector<RuleField>()).second;
      for (RuleField const& field : rule.fields()) fields.push_back(field);
    });
  }
  if constexpr (Slots::Precision::loss_scaled) {
    StepControl control;
    parts.space().download(&control, parts.control, sizeof(control));
    facts.loss_scale = control.loss_scale.options();
  }
  return facts;
}

template <class Optimizer>
[[nodiscard]] OptimizerView view_of(Optimizer& optimizer) {
  auto& parts = Inside::parts(optimizer);
  auto& steps = Inside::steps(optimizer);
  using Space = typename Optimizer::Slots::Space;
  return {
      .control = control_words(*parts.groups.world, parts.arena),
      .data = control_words(*parts.comm, parts.arena),
      .divided = parts.divided(),
      .model = &parts,
      .facts = facts_of(parts),
      .require_ready =
          [&parts, &steps](std::string_view call, bool replaces) {
            parts.require_bound();
            steps.require_between_steps(call);
            if (replaces) steps.require_no_readers(call);
          },
      .require_values = [&steps] { steps.require_values(); },
      .counters = [&steps] { return steps.counters(); },
      .runs = [&parts](bool own) { return array_runs(parts, own); },
      .direct = Space::host_accessible,
      .download =
          [&parts](void* host, void const* from, std::size_t bytes) {
            if constexpr (Space::host_accessible) {
              static_cast<void>(parts);  // clang 14 calls the capture unused
              std::memcpy(host, from, bytes);
            } else {
              parts.space().download(host, from, bytes);
            }
          },
      .upload =
          [&parts](void* to, void const* host, std::size_t bytes) {
            if constexpr (Space::host_accessible) {
              static_cast<void>(parts);  // clang 14 calls the capture unused
              std::memcpy(to, host, bytes);
            } else {
              parts.space().upload(to, host, bytes);
            }
          },
      .begin_load =
          [&parts, &steps](std::vector<bool> const& tensors, bool all) {
            parts.refresh.settle();
            steps.begin_load(tensors, all);
          },
      .follow =
          [&parts](std::vector<bool> const& loaded) {
            follow_masters(parts, [&](BucketSpan const&, Segment const& piece) {
              return bool{loaded[piece.tensor]};
            });
          },
      .restore = [&steps](Counters const& counters) { steps.restore(counters); },
      .end_load =
          [&steps](std::vector<bool> const& tensors, bool all, bool every_tensor) {
            steps.end_load(tensors, all);
            if (every_tensor) steps.values_are_set(false);
          },
  };
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
