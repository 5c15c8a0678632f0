/// @file
/// The rule slot: how one element of a parameter follows its gradient.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "zero/base/config.hpp"

namespace zero::inline v0_1 {

/// What a rule needs to know about a step besides the element itself. Scalars only, in fp32, so
/// that host and device see the same values. Computed once per tensor piece, not per element.
struct StepScalars {
  float learning_rate = 0.f;  ///< already multiplied by the tensor's learning-rate scale
  float weight_decay = 0.f;   ///< already multiplied by the tensor's weight-decay scale
  /// Rule-specific values that depend on the step number only, such as bias corrections.
  std::array<float, 4> extra{};
};

/// A rule that treats every element on its own (Adam, SGD, ...).
///
/// `R` is a regular aggregate of hyper-parameters. Its element function is a template over the
/// numeric type `V`: `float` on a device and in a reference, a pack of floats in the host kernel.
/// It uses only + - * / and the functions of zero/kernel/math.hpp on `V`, so that one source serves
/// all of them.
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

}  // namespace zero::inline v0_1
