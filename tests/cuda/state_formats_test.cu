// Formats of states and masters on a device: the host's bits, of every group and every word asked.
#include "cuda/streams.hpp"
#include "support/random.hpp"
#include "support/test.hpp"
#include "zero/device/launch.cuh"
#include "zero/kernel/bf16_rounding.hpp"
#include "zero/kernel/random_bits.hpp"
#include "zero/kernel/remainder.hpp"
#include "zero/kernel/root_groups.hpp"

namespace state_formats_test {
namespace {

namespace kernel = zero::kernel;
using kernel::OneLane;
using kernel::RandomStream;

constexpr std::size_t groups = 700;
constexpr std::size_t count = groups * kernel::root_group;

/// What one thread does with a group: codes of the numbers, stochastically and to nearest, and the
/// numbers of the former.
template <class Code>
ZERO_KERNEL encode(Code* rounded,
                   Code* nearest,
                   std::uint8_t* scales,
                   float* decoded,
                   float const* values,
                   RandomStream stream) {
  for (std::size_t g = zero::device::grid_thread(); g < groups; g += zero::device::grid_threads()) {
    std::size_t const first = g * kernel::root_group;
    std::uint32_t top = 0;
    for (std::size_t i = first; i < first + kernel::root_group; ++i) {
      std::uint32_t const magnitude = OneLane::bits_of(values[i]) & 0x7fffffffu;
      top = magnitude > top ? magnitude : top;
    }
    scales[g] = kernel::root_scale<Code>(top);
    kernel::RootLevels<Code> const levels(scales[g]);
    float const unit = kernel::root_unit<Code>(scales[g]);
    for (std::size_t i = first; i < first + kernel::root_group; ++i) {
      std::uint32_t const random = kernel::random_bits<std::uint16_t>(stream, i);
      rounded[i] = static_cast<Code>(kernel::encode_root<Code>(values[i], levels, random));
      nearest[i] = static_cast<Code>(kernel::encode_root_to_nearest<Code>(values[i], levels));
      decoded[i] = kernel::decode_root<Code>(OneLane::load(rounded + i), unit);
    }
  }
}

/// Masters in parts and back, and numbers as bf16.
ZERO_KERNEL narrow(std::uint16_t* parameters,
                   std::uint16_t* rests,
                   std::uint32_t* whole,
                   std::uint32_t* upper,
                   std::uint16_t* stochastic,
                   std::uint32_t const* words,
                   RandomStream stream) {
  for (std::size_t i = zero::device::grid_thread(); i < count; i += zero::device::grid_threads()) {
    auto const parts = kernel::split_master<std::uint16_t>(words[i]);
    parameters[i] = static_cast<std::uint16_t>(parts.parameter);
    rests[i] = static_cast<std::uint16_t>(parts.rest);
    whole[i] = kernel::join_master<std::uint16_t>(parts.parameter, parts.rest);
    std::uint32_t const random = kernel::random_bits<std::uint8_t>(stream, i);
    auto const short_parts = kernel::split_master<std::uint8_t>(kernel::narrowed(words[i], random));
    upper[i] = kernel::join_master<std::uint8_t>(short_parts.parameter, short_parts.rest);
    stochastic[i] = static_cast<std::uint16_t>(
        kernel::round_stochastically(words[i], kernel::random_bits<std::uint16_t>(stream, i)));
  }
}

/// Groups whose magnitudes are near each other or far apart, all over the range of a float.
template <class Code>
std::vector<float> numbers() {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t const of_group = mixed(i / kernel::root_group);
    std::uint64_t const own = mixed(1, i);
    int const top = static_cast<int>(of_group % 277) - 149;
    int const reach = 1 + static_cast<int>((of_group >> 20) % 40);
    int const exponent = std::max(top - static_cast<int>(own % static_cast<unsigned>(reach)), -149);
    float const mantissa = 1.f + static_cast<float>(own >> 41) * 0x1p-23f;
    float const magnitude = own % 31 == 0 ? 0.f : std::ldexp(mantissa, exponent - 1);
    result[i] = std::is_signed_v<Code> && (own >> 30) % 2 != 0 ? -magnitude : magnitude;
    if (i % 5000 == 77) result[i] = std::numeric_limits<float>::infinity();
  }
  return result;
}

template <class Code>
void check_codes(zero::space::Cuda const& space) {
  auto const values = numbers<Code>();
  RandomStream const stream =
      kernel::random_stream(kernel::random_key(kernel::random_key("w", 0), 1), 5, 3);
  std::vector<std::uint16_t> random(count);
  kernel::fill_random(random.data(), stream, 0, count);
  std::vector<Code> rounded(count), nearest(count);
  std::vector<std::uint8_t> scales(groups), of_nearest(groups);
  std::vector<float> decoded(count);
  kernel::encode_roots(rounded.data(), scales.data(), values.data(), count, random.data());
  kernel::encode_roots(nearest.data(), of_nearest.data(), values.data(), count);
  kernel::decode_roots(decoded.data(), rounded.data(), scales.data(), count);
  CHECK(scales == of_nearest);

  std::vector<Code> const none(count, 99);
  Array<Code> const rounded_there(space, none), nearest_there(space, none);
  Array<std::uint8_t> const scales_there(space, std::vector<std::uint8_t>(groups, 99));
  Array<float> const decoded_there(space, std::vector<float>(count, 99.f));
  Array<float> const values_there(space, values);
  zero::device::launch(space.queue(),
                       "encode",
                       2,
                       zero::device::block_threads,
                       &encode<Code>,
                       rounded_there.data(),
                       nearest_there.data(),
                       scales_there.data(),
                       decoded_there.data(),
                       static_cast<float const*>(values_there.data()),
                       stream);
  CHECK(rounded_there.values() == rounded);
  CHECK(nearest_there.values() == nearest);
  CHECK(scales_there.values() == scales);
  auto const there = decoded_there.values();
  std::size_t differ = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bool const both_nan = std::isnan(there[i]) && std::isnan(decoded[i]);
    if (!both_nan && OneLane::bits_of(there[i]) != OneLane::bits_of(decoded[i])) ++differ;
  }
  CHECK(differ == 0);
}

TEST_CASE_FIXTURE(OneStream, "cuda: root codes are the host's") {
  check_codes<std::int8_t>(space);
  check_codes<std::uint8_t>(space);
}

TEST_CASE_FIXTURE(OneStream, "cuda: remainders and stochastic rounding are the host's") {
  std::vector<float> masters(count);
  std::vector<std::uint32_t> words(count);
  for (std::size_t i = 0; i < count; ++i) {
    words[i] = static_cast<std::uint32_t>(mixed(i));
    if (i % 3 == 0) words[i] = (words[i] & 0xffff0000u) | 0x8000u;
    if (i % 7 == 0) words[i] |= 0x7f800000u;
    masters[i] = OneLane::of_bits(words[i]);
  }
  RandomStream const stream = kernel::random_stream(
      kernel::random_key(kernel::random_key("w", 0), 0), 5, std::uint64_t{1} << 40);
  std::vector<std::uint8_t> bytes(count);
  std::vector<std::uint16_t> halves(count);
  kernel::fill_random(bytes.data(), stream, 0, count);
  kernel::fill_random(halves.data(), stream, 0, count);
  std::vector<zero::bf16> parameters(count), of_upper(count), stochastic(count);
  std::vector<std::uint16_t> rests(count);
  std::vector<std::uint8_t> upper_rests(count);
  std::vector<float> whole(count), upper(count);
  kernel::split_masters(parameters.data(), rests.data(), masters.data(), count);
  kernel::join_masters(whole.data(), parameters.data(), rests.data(), count);
  kernel::split_masters(of_upper.data(), upper_rests.data(), masters.data(), count, bytes.data());
  kernel::join_masters(upper.data(), of_upper.data(), upper_rests.data(), count);
  kernel::round_stochastically(stochastic.data(), masters.data(), halves.data(), count);

  std::vector<std::uint16_t> const none(count, 99);
  std::vector<std::uint32_t> const no_words(count, 99);
  Array<std::uint16_t> const parameters_there(space, none), rests_there(space, none),
      stochastic_there(space, none);
  Array<std::uint32_t> const whole_there(space, no_words), upper_there(space, no_words);
  Array<std::uint32_t> const words_there(space, words);
  zero::device::launch(space.queue(),
                       "narrow",
                       2,
                       zero::device::block_threads,
                       &narrow,
                       parameters_there.data(),
                       rests_there.data(),
                       whole_there.data(),
                       upper_there.data(),
                       stochastic_there.data(),
                       static_cast<std::uint32_t const*>(words_there.data()),
                       stream);
  auto const bits_of = [](auto const& from, auto bits) {
    std::vector<decltype(bits)> result(from.size());
    std::memcpy(result.data(), from.data(), result.size() * sizeof(bits));
    return result;
  };
  CHECK(parameters_there.values() == bits_of(parameters, std::uint16_t{}));
  CHECK(rests_there.values() == rests);
  CHECK(whole_there.values() == bits_of(whole, std::uint32_t{}));
  CHECK(upper_there.values() == bits_of(upper, std::uint32_t{}));
  CHECK(stochastic_there.values() == bits_of(stochastic, std::uint16_t{}));
}

}  // namespace
}  // namespace state_formats_test
