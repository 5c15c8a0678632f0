#include "zero/kernel/partial_sum.hpp"

#include "zero/base/dtype.hpp"
#include "zero/base/float16.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/layout/exact_sum.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

namespace partial_sum_test {
namespace {

using zero::kernel::Store;

template <class T>
T random_element(std::mt19937& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    // Of all magnitudes, so that the order of additions shows.
    float const value = std::uniform_real_distribution<float>(-1.f, 1.f)(random);
    int const exponent = static_cast<int>(random() % 13);
    return static_cast<T>(random() % 29 == 0 ? -0.f : value * static_cast<float>(1 << exponent));
  }
}

/// What the places get that have `per_place` inputs each, one after another.
template <class T, class Acc>
void check(std::size_t places, std::size_t per_place, std::size_t count) {
  std::mt19937 random(11);
  std::vector<std::vector<T>> inputs(places * per_place, std::vector<T>(count));
  std::vector<void const*> all;
  for (std::vector<T>& input : inputs) {
    for (T& x : input) x = random_element<T>(random);
    all.push_back(input.data());
  }
  zero::DType const dtype = zero::dtype_of<T>;
  zero::DType const accumulate = zero::dtype_of<Acc>;
  std::size_t const counted = count - count / 5;
  zero::ExactSum expected_squares;
  zero::kernel::SquaredSum wanted{.squares = &expected_squares, .left = counted};
  std::vector<T> expected(count);
  zero::kernel::sum_and_square(dtype,
                               accumulate,
                               expected.data(),
                               all.data(),
                               0,
                               static_cast<int>(all.size()),
                               count,
                               Store::cached,
                               wanted);
  wanted.end();
  zero::ExactSum squares;
  zero::kernel::SquaredSum squared{.squares = &squares, .left = counted};
  std::vector<T> result(count + 1, T(7));
  std::vector<Acc> passed;
  for (std::size_t place = 0; place < places; ++place) {
    std::vector<void const*> here{place == 0 ? nullptr : passed.data()};
    for (std::size_t i = 0; i < per_place; ++i) here.push_back(all[place * per_place + i]);
    bool const last = place + 1 == places;
    std::vector<Acc> partial(count + 1, Acc(7));
    void* const out = last ? static_cast<void*>(result.data()) : partial.data();
    zero::kernel::add_to_partial(dtype, accumulate, out, last, here, count, squared);
    CHECK(static_cast<double>(static_cast<float>(partial[count])) == 7.);
    passed = partial;
  }
  squared.end();
  CHECK(std::memcmp(result.data(), expected.data(), count * sizeof(T)) == 0);
  CHECK(static_cast<double>(static_cast<float>(result[count])) == 7.);
  CHECK(squares.value() == expected_squares.value());
}

template <class T, class Acc = T>
void check_all() {
  for (std::size_t const places : {1u, 2u, 3u, 5u}) {
    for (std::size_t const per_place : {1u, 2u, 3u}) {
      for (std::size_t const count : {1u, 63u, 512u, 513u, 3001u}) {
        CAPTURE(places);
        CAPTURE(per_place);
        CAPTURE(count);
        check<T, Acc>(places, per_place, count);
      }
    }
  }
}

TEST_CASE("a sum formed place by place has the bits of one formed at once") {
  check_all<float>();
  check_all<zero::bf16, float>();
  check_all<zero::fp16, float>();
  check_all<double>();
  check_all<float, double>();
  check_all<std::int32_t>();
  check_all<std::int64_t>();
}

}  // namespace
}  // namespace partial_sum_test
