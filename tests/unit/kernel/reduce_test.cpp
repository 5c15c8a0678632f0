/// Sums of several ranks' arrays: formed at once, or place by place.
#include "support/test.hpp"
#include <zero/base/dtype.hpp>
#include <zero/base/exact_sum.hpp>
#include <zero/kernel/partial_sum.hpp>
#include <zero/kernel/reduce.hpp>

namespace reduce_test {
namespace {

using zero::bf16;
using zero::DType;
using zero::fp16;
using zero::kernel::Store;

template <class T>
T random_element(std::mt19937& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random() * std::uint64_t{0x9e3779b97f4a7c15});
  } else {
    // Spread over many binary orders, so that the order of additions shows in the last bit.
    float const mantissa = static_cast<float>(random() % 65536) / 65536.0f - 0.5f;
    float const value = std::ldexp(mantissa, static_cast<int>(random() % 12));
    return static_cast<T>(random() % 29 == 0 ? -0.f : value);
  }
}

/// The plainest form of the definition: left to right in Acc, rounded once.
template <class T, class Acc>
T reference(std::vector<std::vector<T>> const& inputs, std::size_t offset, std::size_t i) {
  if constexpr (std::is_integral_v<T>) {
    std::uint64_t sum = 0;
    for (auto const& input : inputs) {
      sum += static_cast<std::uint64_t>(static_cast<std::int64_t>(input[offset + i]));
    }
    return static_cast<T>(sum);
  } else if constexpr (std::is_same_v<Acc, double> && !std::is_same_v<T, double>) {
    // Sums of so few short numbers are exact in fp64; rounding through long double to T is then one
    // rounding for fp32. For 16-bit types the nearest candidate is searched for.
    double sum = -0.;
    for (auto const& input : inputs)
      sum += static_cast<double>(static_cast<float>(input[offset + i]));
    if constexpr (std::is_same_v<T, float>) {
      return static_cast<float>(sum);
    } else {
      T const guess(static_cast<float>(sum));
      T best = guess;
      for (int step = -1; step <= 1; ++step) {
        T const near = T::from_bits(static_cast<std::uint16_t>(guess.bits + step));
        double const distance = std::fabs(static_cast<double>(static_cast<float>(near)) - sum);
        double const least = std::fabs(static_cast<double>(static_cast<float>(best)) - sum);
        if (distance < least || (distance == least && near.bits % 2 == 0)) best = near;
      }
      return best;
    }
  } else if constexpr (std::is_arithmetic_v<Acc>) {
    auto sum = static_cast<Acc>(inputs[0][offset + i]);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      sum = sum + static_cast<Acc>(inputs[rank][offset + i]);
    }
    return static_cast<T>(sum);
  } else {
    T sum = inputs[0][offset + i];
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      sum = T(static_cast<float>(sum) + static_cast<float>(inputs[rank][offset + i]));
    }
    return sum;
  }
}

template <class T, class Acc>
void check_sums() {
  std::mt19937 random(7);
  for (std::size_t const ranks : {1u, 2u, 3u, 4u, 5u, 8u, 17u}) {
    for (std::size_t const count : {0u, 1u, 7u, 63u, 64u, 65u, 127u, 1000u}) {
      for (std::size_t const offset : {0u, 1u, 3u}) {
        std::vector<std::vector<T>> inputs(ranks);
        for (auto& input : inputs) {
          for (std::size_t i = 0; i < count + offset; ++i)
            input.push_back(random_element<T>(random));
        }
        std::vector<T const*> pointers;
        for (auto const& input : inputs) pointers.push_back(input.data() + offset);
        std::vector<T> expected;
        for (std::size_t i = 0; i < count; ++i) {
          expected.push_back(reference<T, Acc>(inputs, offset, i));
        }
        for (Store const store : {Store::cached, Store::streaming}) {
          T const canary = random_element<T>(random);
          std::vector<T> out(count + 96, canary);
          T* const target = out.data() + 48 - offset;
          zero::kernel::sum_ranks<T, Acc>(
              target, pointers.data(), static_cast<int>(ranks), count, store);
          bool right = count == 0 || std::memcmp(target, expected.data(), count * sizeof(T)) == 0;
          for (std::size_t i = 0; i < out.size(); ++i) {
            bool const inside = i >= 48 - offset && i < 48 - offset + count;
            right = right && (inside || out[i] == canary);
          }
          CHECK_MESSAGE(right, ranks, " ranks, ", count, " elements at +", offset);
        }
        // The result may replace any input.
        for (std::size_t rank = 0; rank < ranks; rank += 2) {
          auto copies = inputs;
          for (std::size_t r = 0; r < ranks; ++r) pointers[r] = copies[r].data() + offset;
          Store const store = rank % 4 == 0 ? Store::cached : Store::streaming;
          zero::kernel::sum_ranks<T, Acc>(
              copies[rank].data() + offset, pointers.data(), static_cast<int>(ranks), count, store);
          bool const right =
              count == 0 ||
              std::memcmp(copies[rank].data() + offset, expected.data(), count * sizeof(T)) == 0;
          CHECK_MESSAGE(right, "over input ", rank, " of ", ranks, ", ", count, " elements");
        }
      }
    }
  }
}

TEST_CASE("sum_ranks: bit for bit the sum in rank order") {
  check_sums<float, float>();
  check_sums<float, double>();
  check_sums<double, double>();
  check_sums<bf16, float>();
  check_sums<bf16, double>();
  check_sums<bf16, bf16>();
  check_sums<fp16, float>();
  check_sums<fp16, double>();
  check_sums<fp16, fp16>();
  check_sums<std::int32_t, std::int32_t>();
  check_sums<std::int32_t, std::int64_t>();
  check_sums<std::int64_t, std::int64_t>();
}

/// All finite halves and both infinities, plus a second input: conversions have no shortcut left.
template <class T>
void check_all_halves() {
  std::size_t const count = 65536;
  std::vector<T> values(count);
  std::vector<T> shifted(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = T::from_bits(static_cast<std::uint16_t>(i));
    shifted[i] = T::from_bits(static_cast<std::uint16_t>(i * 40503u + 12345u));
  }
  T const* const inputs[] = {values.data(), shifted.data()};
  std::vector<T> out(count);
  zero::kernel::sum_ranks<T, float>(out.data(), inputs, 2, count);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float const sum = static_cast<float>(values[i]) + static_cast<float>(shifted[i]);
    float const got = static_cast<float>(out[i]);
    wrong += std::isnan(sum) ? !std::isnan(got) : out[i] != T(sum);
  }
  CHECK(wrong == 0);
}

TEST_CASE("sum_ranks: subnormals, infinities and NaNs of the 16-bit types") {
  check_all_halves<bf16>();
  check_all_halves<fp16>();
}

TEST_CASE("sum_ranks: fp64 sums of 16-bit elements are rounded once") {
  // 1 + 2^-8 is half way between two bf16; the 2^-40 decides, and is lost on the way through fp32.
  bf16 const one(1.0f);
  bf16 const half_way(0x1p-8f);
  bf16 const little(0x1p-40f);
  bf16 const* const up[] = {&one, &half_way, &little};
  bf16 sum;
  zero::kernel::sum_ranks<bf16, double>(&sum, up, 3, 1);
  CHECK(static_cast<float>(sum) == 1.0f + 0x1p-7f);
  zero::kernel::sum_ranks<bf16, float>(&sum, up, 3, 1);
  CHECK(static_cast<float>(sum) == 1.0f);
  bf16 const less(-0x1p-40f);
  bf16 const almost(0x1.8p-7f);
  bf16 const* const down[] = {&one, &almost, &less};
  zero::kernel::sum_ranks<bf16, double>(&sum, down, 3, 1);
  CHECK(static_cast<float>(sum) == 1.0f + 0x1p-7f);
}

TEST_CASE("sum_ranks: what IEEE says of zeros, infinities and overflow") {
  float const minus_zero = -0.0f;
  float const* const zeros[] = {&minus_zero, &minus_zero};
  float sum = 1;
  zero::kernel::sum_ranks<float, float>(&sum, zeros, 2, 1);
  CHECK(std::signbit(sum));
  zero::kernel::sum_ranks<float, float>(&sum, zeros, 1, 1);
  CHECK(std::signbit(sum));
  std::int32_t const most = std::numeric_limits<std::int32_t>::max();
  std::int32_t const one = 1;
  std::int32_t const* const integers[] = {&most, &one};
  std::int32_t wrapped = 0;
  zero::kernel::sum_ranks<std::int32_t, std::int32_t>(&wrapped, integers, 2, 1);
  CHECK(wrapped == std::numeric_limits<std::int32_t>::min());
}

/// What the places get that have `per_place` inputs each, one after another.
template <class T, class Acc>
void check_places(std::size_t places, std::size_t per_place, std::size_t count) {
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
void check_all_places() {
  for (std::size_t const places : {1u, 2u, 3u, 5u}) {
    for (std::size_t const per_place : {1u, 2u, 3u}) {
      for (std::size_t const count : {1u, 63u, 512u, 513u, 3001u}) {
        CAPTURE(places);
        CAPTURE(per_place);
        CAPTURE(count);
        check_places<T, Acc>(places, per_place, count);
      }
    }
  }
}

TEST_CASE("a sum formed place by place has the bits of one formed at once") {
  check_all_places<float>();
  check_all_places<bf16, float>();
  check_all_places<fp16, float>();
  check_all_places<double>();
  check_all_places<float, double>();
  check_all_places<std::int32_t>();
  check_all_places<std::int64_t>();
}

bool has_sum(DType dtype, DType accumulate) {
  return zero::kernel::sum_function(dtype, accumulate) != nullptr;
}

TEST_CASE("sum_function: the supported pairs, and an offset into the inputs") {
  float const a[] = {1, 2, 3};
  float const b[] = {10, 20, 30};
  void const* const inputs[] = {a, b};
  float out[2] = {};
  zero::kernel::sum_function(DType::f32, DType::f32)(out, inputs, 1, 2, 2, Store::automatic);
  CHECK(out[0] == 22);
  CHECK(out[1] == 33);
  CHECK_FALSE(has_sum(DType::f32, DType::bf16));
  CHECK_FALSE(has_sum(DType::f64, DType::f32));
  CHECK_FALSE(has_sum(DType::i32, DType::f32));
  CHECK_FALSE(has_sum(DType::f32, DType::i32));
  CHECK_FALSE(has_sum(DType::u8, DType::u8));
  CHECK_FALSE(has_sum(DType::bf16, DType::bf16));
  CHECK(has_sum(DType::bf16, DType::f32));
}

}  // namespace
}  // namespace reduce_test
