/// @file
/// The dynamic loss scale of fp16 training, as a value.
#pragma once

#include "zero/base/config.hpp"

namespace zero::inline v0_1 {

/// Parameters of the dynamic loss scale.
struct LossScaleOptions {
  float initial = 65536.f;     ///< the scale of the first step
  float growth = 2.f;          ///< factor after `growth_interval` clean steps
  int growth_interval = 2000;  ///< clean steps in a row before the scale grows
  float backoff = 0.5f;        ///< factor after a step that overflowed
  float minimum = 1.f;         ///< `backoff` takes the scale no lower
  friend constexpr bool operator==(LossScaleOptions const&, LossScaleOptions const&) = default;
};

/// The scale and its history. A pure function of the agreed outcome of each step, hence the same
/// on every rank.
class LossScale {
 public:
  /// Starts at `options.initial`, with no clean step yet.
  ZERO_HOST_DEVICE constexpr explicit LossScale(LossScaleOptions options = {}) noexcept
      : options_(options), value_(options.initial) {}

  /// What the trainer multiplies its loss by.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr float value() const noexcept { return value_; }
  /// Steps in a row without overflow, counted towards `growth_interval`.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr int clean_steps() const noexcept { return clean_steps_; }
  /// The parameters it was made with.
  [[nodiscard]] constexpr LossScaleOptions const& options() const noexcept { return options_; }

  /// Learns whether the step that used `value()` overflowed.
  ZERO_HOST_DEVICE constexpr void update(bool overflow) noexcept {
    if (overflow) {
      value_ = value_ * options_.backoff;
      if (value_ < options_.minimum) value_ = options_.minimum;
      clean_steps_ = 0;
      return;
    }
    if (++clean_steps_ < options_.growth_interval) return;
    clean_steps_ = 0;
    // A scale of infinity could never recover by halving.
    if (value_ * options_.growth < 0x1p126f) value_ = value_ * options_.growth;
  }

 private:
  LossScaleOptions options_;
  float value_;
  int clean_steps_ = 0;
};

}  // namespace zero::inline v0_1
