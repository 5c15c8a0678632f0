#include <zero/base/bytes.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

namespace bytes_test {
namespace {

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

template <class Work>
bool refuses(Work&& work) {
  try {
    (void)work();
  } catch (zero::Error const& error) {
    return error.kind() == zero::ErrorKind::invalid_argument;
  }
  return false;
}

}  // namespace

TEST_CASE("units are powers of 1024") {
  static_assert(zero::KiB == 1024 && zero::MiB == 1024 * zero::KiB &&
                zero::GiB == 1024 * zero::MiB);
}

TEST_CASE("addition is exact or refused") {
  static_assert(zero::checked_add(2, 3) == 5);
  CHECK(zero::checked_add(most, 0) == most);
  CHECK(zero::checked_add(most - 5, 5) == most);
  CHECK(refuses([] { return zero::checked_add(most, 1); }));
  CHECK(refuses([] { return zero::checked_add(1, most); }));
}

TEST_CASE("multiplication is exact or refused") {
  static_assert(zero::checked_mul(6, 7) == 42);
  CHECK(zero::checked_mul(0, most) == 0);
  CHECK(zero::checked_mul(most, 0) == 0);
  CHECK(zero::checked_mul(most, 1) == most);
  CHECK(zero::checked_mul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1) ==
        most - ((std::uint64_t{1} << 32) - 1));
  CHECK(refuses([] { return zero::checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32); }));
  CHECK(refuses([] { return zero::checked_mul(most, 2); }));
}

TEST_CASE("division rounds up without overflowing") {
  static_assert(zero::ceil_div(0, 8) == 0 && zero::ceil_div(1, 8) == 1);
  CHECK(zero::ceil_div(8, 8) == 1);
  CHECK(zero::ceil_div(9, 8) == 2);
  CHECK(zero::ceil_div(most, 2) == most / 2 + 1);
  CHECK(zero::ceil_div(most, most) == 1);
}

TEST_CASE("rounding up is exact or refused") {
  static_assert(zero::round_up(0, 512) == 0 && zero::round_up(1, 512) == 512);
  CHECK(zero::round_up(512, 512) == 512);
  CHECK(zero::round_up(513, 512) == 1024);
  CHECK(zero::round_up(most, 1) == most);
  CHECK(refuses([] { return zero::round_up(most, 2); }));
}

}  // namespace bytes_test
