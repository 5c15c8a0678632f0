#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/base/error.hpp>
#include <zero/precision/loss_scale.hpp>

namespace loss_scale_test {
namespace {

using zero::LossScale;
using zero::LossScaleOptions;

TEST_CASE("the loss scale starts at 2^16, doubles after 2000 clean steps, halves, and ends at 1") {
  constexpr zero::LossScaleOptions options{};
  static_assert(options.initial == 65536.f && options.growth == 2.f);
  static_assert(options.growth_interval == 2000 && options.backoff == 0.5f);
  static_assert(options.minimum == 1.f && options.patience == 10);
  zero::LossScale scale;
  for (int step = 0; step < 1999; ++step) scale.learn(false);
  CHECK(scale.value() == 65536.f);
  scale.learn(false);
  CHECK(scale.value() == 131072.f);
  for (int step = 0; step < 1999; ++step) scale.learn(false);
  scale.learn(true);
  CHECK(scale.value() == 65536.f);
  CHECK(scale.clean_steps() == 0);
  for (int step = 0; step < 40; ++step) scale.learn(true);
  CHECK(scale.value() == 1.f);
}

TEST_CASE("the loss scale never grows to infinity, from where it could not come back") {
  zero::LossScale scale({.initial = 0x1p120f, .growth_interval = 1});
  for (int step = 0; step < 100; ++step) scale.learn(false);
  CHECK(scale.value() < 0x1p127f);
  CHECK(scale.value() >= 0x1p120f);
}

TEST_CASE("overflows in a row at the minimum exhaust the scale, and count from one again") {
  LossScale scale({.initial = 4.f, .minimum = 2.f, .patience = 3});
  // That one was not at the minimum.
  scale.learn(true);
  CHECK(scale.value() == 2.f);
  for (int time = 0; time < 4; ++time) {
    for (int overflows = 1; overflows <= 3; ++overflows) {
      CHECK(!(overflows > 1 && scale.exhausted()));
      scale.learn(true);
      CHECK(scale.exhausted() == (overflows == 3));
      CHECK(scale.value() == 2.f);
      CHECK(scale.clean_steps() == 0);
    }
  }
}

TEST_CASE("a clean step makes overflows at the minimum count from one again, and counts itself") {
  LossScale scale({.initial = 1.f, .growth_interval = 2, .patience = 2});
  for (int time = 0; time < 3; ++time) {
    scale.learn(true);
    CHECK(!scale.exhausted());
    scale.learn(false);
    CHECK(scale.clean_steps() == 1);
    CHECK(!scale.exhausted());
  }
  scale.learn(true);
  scale.learn(true);
  CHECK(scale.exhausted());
  scale.learn(false);
  CHECK(!scale.exhausted());
  scale.learn(false);
  CHECK(scale.value() == 2.f);
}

TEST_CASE("a patience of 1 is exhausted at once, one of all integers is not in a long time") {
  LossScale hasty({.initial = 1.f, .patience = 1});
  CHECK(!hasty.exhausted());
  for (int time = 0; time < 3; ++time) {
    hasty.learn(true);
    CHECK(hasty.exhausted());
  }
  LossScale endless({.initial = 1.f, .patience = std::numeric_limits<int>::max()});
  for (int step = 0; step < 100000; ++step) endless.learn(true);
  CHECK(!endless.exhausted());
}

TEST_CASE("a scale that does not move stays what it is, and is exhausted like any other") {
  LossScaleOptions const fixed{
      .initial = 128.f, .growth = 1.f, .growth_interval = 1, .minimum = 128.f};
  zero::detail::require_valid(fixed);
  LossScale scale(fixed);
  for (int step = 0; step < 10; ++step) scale.learn(false);
  CHECK(scale.value() == 128.f);
  for (int step = 0; step < 10; ++step) scale.learn(true);
  CHECK(scale.value() == 128.f);
  CHECK(scale.exhausted());
}

/// What is wrong with the options; nothing if they are valid.
std::string refusal(LossScaleOptions const& options) {
  return ::refusal([&] { zero::detail::require_valid(options); });
}

TEST_CASE("every option out of its range is refused by name") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float denormal = std::numeric_limits<float>::denorm_min();
  CHECK(refusal({}) == "");
  CHECK(refusal({.initial = 1.f}) == "");
  CHECK(refusal({.growth = 1.f, .growth_interval = 1, .backoff = denormal, .patience = 1}) == "");
  CHECK(refusal({.backoff = 1.f - 0x1p-24f, .minimum = 0x1p-126f}) == "");
  // Gradients cannot be divided by less.
  for (float const minimum : {0.f, -0.f, -1.f, 0x1p-127f, denormal, nan, infinity, -infinity}) {
    CHECK(refusal({.initial = infinity, .minimum = minimum}) ==
          "the loss scale's minimum must be finite and at least 2^-126");
  }
  for (float const initial : {0.f, 0.99f, -2.f, nan, infinity, -infinity}) {
    CHECK(refusal({.initial = initial}) ==
          "the loss scale's initial value must be finite and at least its minimum");
  }
  for (float const growth : {0.f, 0.99f, -2.f, nan, infinity}) {
    CHECK(refusal({.growth = growth}) == "the loss scale's growth must be finite and at least 1");
  }
  for (int const steps : {0, -1, std::numeric_limits<int>::min()}) {
    CHECK(refusal({.growth_interval = steps}) ==
          "the loss scale's growth_interval must be at least 1");
    CHECK(refusal({.patience = steps}) == "the loss scale's patience must be at least 1");
  }
  for (float const backoff : {0.f, 1.f, 2.f, -0.5f, nan, infinity}) {
    CHECK(refusal({.backoff = backoff}) ==
          "the loss scale's backoff must be greater than 0 and less than 1");
  }
}

}  // namespace
}  // namespace loss_scale_test
