/// @file
/// The dynamic loss scale of fp16 training, as a value.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"

#include <limits>

namespace zero::inline ZERO_NAMESPACE {

/// Parameters of the dynamic loss scale. Construction of an optimizer refuses values out of range.
/// A scale that stays what it is has `minimum` at `initial`, and a `growth` of 1.
struct LossScaleOptions {
  float initial = 65536.f;     ///< the scale of the first step; at least `minimum`
  float growth = 2.f;          ///< factor after `growth_interval` clean steps; at least 1
  int growth_interval = 2000;  ///< clean steps in a row before the scale grows; at least 1
  float backoff = 0.5f;        ///< factor after a step that overflowed; in (0, 1)
  float minimum = 1.f;         ///< `backoff` takes the scale no lower; at least 2^-126
  /// Steps in a row that overflow at `minimum`, the last of which is an error and not just skipped:
  /// no lower scale will help. At least 1.
  int patience = 10;
  friend constexpr bool operator==(LossScaleOptions const&, LossScaleOptions const&) = default;
};

/// The scale and its history. A pure function of the agreed outcome of each step, hence the same
/// on every rank.
class LossScale {
 public:
  /// Starts at `options.initial`, with no clean step yet.
  ZERO_HOST_DEVICE constexpr explicit LossScale(LossScaleOptions options = {}) noexcept
      : options_(options), value_(options.initial) {}

  /// Goes on from a value and a streak that another scale had.
  constexpr LossScale(LossScaleOptions options, float value, int streak) noexcept
      : options_(options), value_(value), streak_(streak) {}

  /// What the trainer multiplies its loss by.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr float value() const noexcept { return value_; }
  /// Steps in a row without overflow, counted towards `growth_interval`.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr int clean_steps() const noexcept {
    return streak_ > 0 ? streak_ : 0;
  }
  /// Was the last step the `patience`-th in a row that overflowed at the minimum? The next one
  /// counts as the first again.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr bool exhausted() const noexcept {
    return streak_ <= -options_.patience;
  }
  /// Clean steps in a row; below 0, steps in a row that overflowed at the minimum.
  [[nodiscard]] constexpr int streak() const noexcept { return streak_; }
  /// The parameters it was made with.
  [[nodiscard]] constexpr LossScaleOptions const& options() const noexcept { return options_; }

  /// Learns whether the step that used `value()` overflowed.
  ZERO_HOST_DEVICE constexpr void learn(bool overflow) noexcept {
    if (overflow) {
      if (value_ > options_.minimum) {
        value_ = value_ * options_.backoff;
        if (value_ < options_.minimum) value_ = options_.minimum;
        streak_ = 0;
        return;
      }
      if (streak_ > 0 || exhausted()) streak_ = 0;
      --streak_;
      return;
    }
    if (streak_ < 0) streak_ = 0;
    if (++streak_ < options_.growth_interval) return;
    streak_ = 0;
    // A scale of infinity could never recover by halving.
    if (value_ * options_.growth < 0x1p126f) value_ = value_ * options_.growth;
  }

 private:
  LossScaleOptions options_;
  float value_;
  int streak_ = 0;
};

namespace detail {

/// Can gradients be multiplied by it, and divided again, in float?
[[nodiscard]] constexpr bool usable_scale(float value) noexcept {
  return is_finite(value) && value >= 0x1p-126f;
}
/// Can one more step be counted, whether it is clean or not?
[[nodiscard]] constexpr bool usable_streak(int streak) noexcept {
  return streak > (std::numeric_limits<int>::min)() && streak < (std::numeric_limits<int>::max)();
}

/// @throws Error (invalid_argument) for the first option out of range
ZERO_COLD inline void require_valid(LossScaleOptions const& options) {
  auto const require = [](bool valid, char const* text) {
    if (!valid) fail(ErrorKind::invalid_argument, {"the loss scale's ", text});
  };
  require(usable_scale(options.minimum), "minimum must be finite and at least 2^-126");
  require(options.initial >= options.minimum && is_finite(options.initial),
          "initial value must be finite and at least its minimum");
  require(options.growth >= 1.f && is_finite(options.growth),
          "growth must be finite and at least 1");
  require(options.growth_interval >= 1, "growth_interval must be at least 1");
  require(is_finite(options.backoff) && options.backoff > 0.f && options.backoff < 1.f,
          "backoff must be greater than 0 and less than 1");
  require(options.patience >= 1, "patience must be at least 1");
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
