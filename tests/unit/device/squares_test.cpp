// The norm's blocks as a device's teams of eight threads sum them, run on the host.
#include "zero/device/squares.hpp"

#include "zero/base/dtype.hpp"
#include "zero/kernel/norm.hpp"
#include "zero/layout/exact_sum.hpp"
#include "zero/layout/placement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace squares_test {
namespace {

namespace device = zero::device;

/// What a lane of the team holds after exchanges over the distances so far.
double held(double const (&lanes)[device::team],
            unsigned lane,
            std::vector<unsigned> const& distances,
            std::size_t rounds) {
  if (rounds == 0) return lanes[lane];
  return held(lanes, lane, distances, rounds - 1) +
         held(lanes, lane ^ distances[rounds - 1], distances, rounds - 1);
}

/// team_sum as one lane runs it, with all others in step.
double shuffled(double const (&lanes)[device::team], unsigned lane) {
  std::vector<unsigned> distances;
  return device::team_sum(lanes[lane], [&](double, unsigned distance) {
    distances.push_back(distance);
    return held(lanes, lane ^ distance, distances, distances.size() - 1);
  });
}

/// What a kernel does, thread by thread and shuffle by shuffle.
template <class T>
void add_as_device(zero::ExactSum& sum, std::vector<T> const& x) {
  for (std::size_t begin = 0; begin < x.size(); begin += zero::block) {
    std::size_t const count = std::min<std::size_t>(zero::block, x.size() - begin);
    double lanes[device::team];
    for (unsigned lane = 0; lane < device::team; ++lane) {
      lanes[lane] = device::lane_squares([&](std::size_t i) { return x[begin + i]; }, count, lane);
    }
    double sums[device::team];
    for (unsigned lane = 0; lane < device::team; ++lane) sums[lane] = shuffled(lanes, lane);
    for (double const own : sums) REQUIRE((own == sums[0] || std::isnan(own)));
    // As integer atomics add, in whatever order.
    auto const parts = zero::ExactSum::addend(sums[0]);
    auto* const words = sum.accumulators();
    words[parts.first] += parts.low;
    words[parts.first + 1] += parts.middle;
    words[parts.first + 2] += parts.high;
  }
}

template <class T>
void check(std::size_t count, float special) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<T> x(count);
  for (T& value : x) {
    float const mantissa = static_cast<float>(random() >> 8) / 16777216.f - 0.5f;
    value = static_cast<T>(std::ldexp(mantissa, static_cast<int>(random() % 20) - 12));
  }
  if (special != 0.f && count > 700) x[700] = static_cast<T>(special);
  zero::ExactSum host;
  zero::ExactSum device;
  zero::kernel::add_squares(host, x.data(), count);
  add_as_device(device, x);
  bool same = true;
  for (std::size_t i = 0; i < zero::ExactSum::word_count; ++i) {
    same = same && host.words()[i] == device.words()[i];
  }
  CHECK(same);
  CHECK(host.finite() == device.finite());
  CHECK(host.finite() == (special == 0.f || count <= 700));
}

TEST_CASE("the norm of a device has the host's bits, in every word of the sum") {
  for (std::size_t const count : {1u, 7u, 8u, 9u, 511u, 512u, 513u, 1024u, 100003u}) {
    check<float>(count, 0.f);
    check<zero::bf16>(count, 0.f);
    check<zero::fp16>(count, 0.f);
    check<float>(count, std::numeric_limits<float>::infinity());
    check<zero::fp16>(count, std::numeric_limits<float>::quiet_NaN());
  }
}

TEST_CASE("lanes are added as (0 + 4) + (2 + 6), then the odd ones") {
  double const lanes[device::team] = {1e16, 1., -1e16, 1., 3., 1., 1., 1.};
  double const expected = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                          ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  for (unsigned lane = 0; lane < device::team; ++lane) CHECK(shuffled(lanes, lane) == expected);
}

}  // namespace
}  // namespace squares_test
