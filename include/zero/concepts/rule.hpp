/// @file
/// The rule slot: how one element of a parameter follows its gradient.
#pragma once

#include "zero/base/config.hpp"

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace zero::inline v0_1 {

/// What a rule needs to know about a step besides the element itself. Scalars only, in fp32, so
/// that host and device see the same values. Computed once per tensor piece, not per element.
struct StepScalars {
  float learning_rate = 0.f;  ///< already multiplied by the tensor's learning-rate scale
  float weight_decay = 0.f;   ///< already multiplied by the tensor's weight-decay scale
  /// The rule's own: whatever is the same for all elements, such as bias corrections.
  float extra[8] = {};
};

/// One hyper-parameter by name, so that ranks that disagree can say about what.
struct RuleField {
  std::string_view name;  ///< as the rule's member is spelled
  double value = 0.;      ///< flags as 0 or 1
};

/// A rule that treats every element on its own (Adam, SGD, ...).
///
/// `R` is a regular aggregate of hyper-parameters. Its element function is a template over the
/// numeric type `V`: `float` on a device and in a reference, a pack of floats in the host kernel.
/// It uses only + - * /, < and > and the functions of zero/base/math.hpp on `V`, so that one
/// source serves all of them; a float mixes with `V` on either side. What needs double precision is
/// done in `scalars`, once per step; for a device it must be a device function too, and spell
/// additions that meet a product as `math::sum`, or its bits may differ from the host's.
///
///     struct MyRule {
///       static constexpr std::string_view name = "my rule";
///       static constexpr int state_count = 1;              // state arrays per element
///       float lr = 1e-3f;
///       float weight_decay = 0.f;
///       zero::StepScalars scalars(long step, float lr_now, float lr_scale, float wd_scale) const;
///       template <class V>
///       void update(zero::StepScalars const& s, V& p, V const& g, V* state) const;
///     };
///
/// `step` counts applied updates from 1. `state` starts at zero.
///
/// A rule should also list its hyper-parameters, as all shipped ones do (see `DescribedRule`).
template <class R>
concept Rule = std::regular<R> && requires(R const& rule,
                                           StepScalars const& scalars,
                                           long step,
                                           float value,
                                           float& element,
                                           float* state) {
  { R::name } -> std::convertible_to<std::string_view>;
  { R::state_count } -> std::convertible_to<int>;
  { rule.lr } -> std::convertible_to<float>;
  { rule.scalars(step, value, value, value) } -> std::same_as<StepScalars>;
  { rule.template update<float>(scalars, element, value, state) } -> std::same_as<void>;
};

/// A rule whose `fields()` returns an array with every hyper-parameter, such as
/// `std::array{RuleField{"lr", lr}, RuleField{"momentum", momentum}}`.
template <class R>
concept DescribedRule = Rule<R> && requires(R const& rule) {
  { *rule.fields().begin() } -> std::convertible_to<RuleField>;
  { rule.fields().size() } -> std::convertible_to<std::size_t>;
};

}  // namespace zero::inline v0_1
