/// @file
/// AdamW, Adam and Lion with states of 8 bits.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/rule/adam.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/lion.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// `AdamW` with both moments in 8 bits and a scale for each 32 neighbours: 2.0625 bytes of states
/// for an element instead of 8. Formula and hyper-parameters are those of `AdamW`.
///
/// The moments are decoded, moved and used in float; only then are they rounded, stochastically:
/// if they were rounded to nearest, means of squares that should fall would stay where they are.
/// Tensors of fewer than `coded_from` elements, and those marked `Tensor::full_states`, have
/// moments in float, and are updated as by `AdamW`, bit for bit.
///
/// Runs in precisions whose `State` is float.
/// @par Cost    2 state arrays of codes and 2 of scales; random bits for each element
/// @par Source  kernel::RootCode says what codes are; states of 8 bits with a scale for each block
///   are from Dettmers et al., arXiv:2110.02861
struct AdamW8bit {
  static constexpr std::string_view name = "AdamW8bit";  ///< in fingerprints and reports
  /// Running means of the gradient and of its square.
  static constexpr std::array states{
      StateArray{.name = "exp_avg", .coding = StateCoding::root},
      StateArray{.name = "exp_avg_sq", .coding = StateCoding::root_of_squares}};

  double lr = AdamW().lr;                      ///< learning rate, unless a step brings its own
  double beta1 = AdamW().beta1;                ///< share of itself the mean of the gradient keeps
  double beta2 = AdamW().beta2;                ///< share of itself the mean of its square keeps
  double eps = AdamW().eps;                    ///< added to the root, against division by zero
  double weight_decay = AdamW().weight_decay;  ///< share of p taken off per step, times lr
  bool maximize = AdamW().maximize;            ///< climbs instead

  /// The rule that it computes.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr AdamW full() const noexcept {
    return {lr, beta1, beta2, eps, weight_decay, maximize};
  }
  /// As of `AdamW`.
  [[nodiscard]] ZERO_HOST_DEVICE StepScalars scalars(long step,
                                                     float lr_now,
                                                     float lr_scale,
                                                     float wd_scale) const noexcept {
    return full().scalars(step, lr_now, lr_scale, wd_scale);
  }
  /// As of `AdamW`.
  template <class V>
  ZERO_HOST_DEVICE void update(StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    full().update(s, p, g, state);
  }
  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr auto fields() const noexcept { return full().fields(); }

  friend constexpr bool operator==(AdamW8bit const&, AdamW8bit const&) = default;
};

/// `Adam` with both moments in 8 bits, as `AdamW8bit` has them.
/// @par Cost  2 state arrays of codes and 2 of scales; random bits for each element
struct Adam8bit {
  static constexpr std::string_view name = "Adam8bit";  ///< in fingerprints and reports
  /// Running means of the gradient and of its square.
  static constexpr std::array states = AdamW8bit::states;

  double lr = Adam().lr;                      ///< learning rate, unless a step brings its own
  double beta1 = Adam().beta1;                ///< share of itself the mean of the gradient keeps
  double beta2 = Adam().beta2;                ///< share of itself the mean of its square keeps
  double eps = Adam().eps;                    ///< added to the root, against division by zero
  double weight_decay = Adam().weight_decay;  ///< added to the gradient as weight_decay · p
  bool maximize = Adam().maximize;            ///< climbs instead
  bool eps_hat = Adam().eps_hat;              ///< eps meets the root before its bias correction

  /// The rule that it computes.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr Adam full() const noexcept {
    return {lr, beta1, beta2, eps, weight_decay, maximize, eps_hat};
  }
  /// As of `Adam`.
  [[nodiscard]] ZERO_HOST_DEVICE StepScalars scalars(long step,
                                                     float lr_now,
                                                     float lr_scale,
                                                     float wd_scale) const noexcept {
    return full().scalars(step, lr_now, lr_scale, wd_scale);
  }
  /// As of `Adam`.
  template <class V>
  ZERO_HOST_DEVICE void update(StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    full().update(s, p, g, state);
  }
  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr auto fields() const noexcept { return full().fields(); }

  friend constexpr bool operator==(Adam8bit const&, Adam8bit const&) = default;
};

/// `Lion` with its momentum in 8 bits, as `AdamW8bit` has its first: 1.03125 bytes of states for an
/// element instead of 4.
/// @par Cost  1 state array of codes and 1 of scales; random bits for each element
struct Lion8bit {
  static constexpr std::string_view name = "Lion8bit";  ///< in fingerprints and reports
  /// The momentum.
  static constexpr std::array states{StateArray{.name = "exp_avg", .coding = StateCoding::root}};

  double lr = Lion().lr;                      ///< size of every step, unless a step brings its own
  double beta1 = Lion().beta1;                ///< weight of the momentum in the direction
  double beta2 = Lion().beta2;                ///< share of itself the momentum keeps per step
  double weight_decay = Lion().weight_decay;  ///< share of p taken off per step, times lr

  /// The rule that it computes.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr Lion full() const noexcept {
    return {lr, beta1, beta2, weight_decay};
  }
  /// As of `Lion`.
  [[nodiscard]] ZERO_HOST_DEVICE StepScalars scalars(long step,
                                                     float lr_now,
                                                     float lr_scale,
                                                     float wd_scale) const noexcept {
    return full().scalars(step, lr_now, lr_scale, wd_scale);
  }
  /// As of `Lion`.
  template <class V>
  ZERO_HOST_DEVICE void update(StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    full().update(s, p, g, state);
  }
  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr auto fields() const noexcept { return full().fields(); }

  friend constexpr bool operator==(Lion8bit const&, Lion8bit const&) = default;
};

static_assert(DescribedRule<AdamW8bit> && DescribedRule<Adam8bit> && DescribedRule<Lion8bit>);

}  // namespace zero::inline ZERO_NAMESPACE
