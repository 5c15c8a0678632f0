#include "zero/kernel/root_groups.hpp"

#include "support/random.hpp"
#include "support/test.hpp"

namespace root_groups_test {
namespace {

namespace kernel = zero::kernel;
using kernel::OneLane;

/// Numbers of magnitudes from 2^-40 on, some of them zero.
template <class Code>
std::vector<float> numbers(std::size_t count, std::uint64_t seed) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t const bits = mixed(seed, i);
    float const mantissa = 1.f + static_cast<float>(bits >> 40) * 0x1p-24f;
    float const magnitude = std::ldexp(mantissa, -static_cast<int>(bits % 40));
    bool const negative = std::is_signed_v<Code> && (bits >> 20) % 2 != 0;
    result[i] = (bits >> 8) % 16 == 0 ? 0.f : negative ? -magnitude : magnitude;
  }
  return result;
}

template <class Code>
struct Encoded {
  std::vector<Code> codes;
  std::vector<std::uint8_t> scales;
  friend bool operator==(Encoded const&, Encoded const&) = default;
};

/// Element by element, as a device does.
template <class Code>
Encoded<Code> alone(std::vector<float> const& values, std::uint16_t const* random) {
  Encoded<Code> result{std::vector<Code>(values.size()), {}};
  for (std::size_t begin = 0; begin < values.size(); begin += kernel::root_group) {
    std::size_t const end = std::min(values.size(), begin + kernel::root_group);
    std::uint32_t top = 0;
    for (std::size_t i = begin; i < end; ++i) {
      top = std::max(top, OneLane::bits_of(values[i]) & 0x7fffffffu);
    }
    result.scales.push_back(kernel::root_scale<Code>(top));
    kernel::RootLevels<Code> const group(result.scales.back());
    for (std::size_t i = begin; i < end; ++i) {
      result.codes[i] = static_cast<Code>(
          random == nullptr ? kernel::encode_root_to_nearest<Code>(values[i], group)
                            : kernel::encode_root<Code>(values[i], group, random[i]));
    }
  }
  return result;
}

/// As arrays, with one more element behind them that must stay.
template <zero::kernel::Isa I, class Code>
Encoded<Code> together(std::vector<float> const& values, std::uint16_t const* random) {
  std::size_t const groups = (values.size() + kernel::root_group - 1) / kernel::root_group;
  Encoded<Code> result{std::vector<Code>(values.size() + 1, 99),
                       std::vector<std::uint8_t>(groups + 1, 99)};
  kernel::encode_roots<I>(
      result.codes.data(), result.scales.data(), values.data(), values.size(), random);
  CHECK(result.codes.back() == 99);
  CHECK(result.scales.back() == 99);
  result.codes.pop_back();
  result.scales.pop_back();
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("root groups: arrays of every length have the bits of single elements",
                   Code,
                   std::int8_t,
                   std::uint8_t) {
  std::vector<std::uint16_t> random(200);
  for (std::size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<std::uint16_t>(mixed(7, i));
  }
  for (std::size_t count = 0; count < 200; ++count) {
    auto values = numbers<Code>(count, count);
    if (count > 100) values[count - 1 - count % 40] = std::numeric_limits<float>::quiet_NaN();
    for (auto const* const bits : {static_cast<std::uint16_t*>(nullptr), random.data()}) {
      auto const expected = alone<Code>(values, bits);
      REQUIRE(together<kernel::native, Code>(values, bits) == expected);
      REQUIRE(together<kernel::isa::generic, Code>(values, bits) == expected);
      std::vector<float> out(count + 1, 99.f), of_others(count);
      kernel::decode_roots(out.data(), expected.codes.data(), expected.scales.data(), count);
      kernel::decode_roots<kernel::isa::generic>(
          of_others.data(), expected.codes.data(), expected.scales.data(), count);
      REQUIRE(out[count] == 99.f);
      for (std::size_t i = 0; i < count; ++i) {
        float const value = kernel::decode_root<Code>(
            OneLane::load(&expected.codes[i]),
            kernel::root_unit<Code>(expected.scales[i / kernel::root_group]));
        bool const same = OneLane::bits_of(out[i]) == OneLane::bits_of(value) ||
                          (std::isnan(out[i]) && std::isnan(value));
        REQUIRE(same);
        REQUIRE((of_others[i] == value || std::isnan(value)));
      }
    }
  }
}

TEST_CASE("root groups: the first code that stands for no number") {
  std::vector<std::int8_t> means(70, 5);
  std::vector<std::uint8_t> squares(70, 5);
  std::vector<std::uint8_t> scales{120, 121, 122};
  auto const first = [&](auto const& codes) {
    return kernel::first_that_is_no_root(codes.data(), scales.data(), codes.size());
  };
  CHECK(first(means) == 70);
  CHECK(first(squares) == 70);
  means[69] = -128;
  squares[64] = 3;
  CHECK(first(means) == 69);
  CHECK(first(squares) == 64);
  squares[40] = 1;
  CHECK(first(squares) == 40);
  scales[1] = 0;  // of zeros alone
  CHECK(first(means) == 32);
  scales[0] = 14;
  CHECK(first(means) == 0);
}

}  // namespace root_groups_test
