// Every function of the CUDA space against the host's, bit for bit, at sizes and offsets that the
// kernels' vectors care about.
#include "cuda/streams.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "zero/device/call.cuh"
#include "zero/device/coded_update.cuh"
#include "zero/device/elementwise.cuh"
#include "zero/device/gather.cuh"
#include "zero/device/hash.cuh"
#include "zero/device/launch.cuh"
#include "zero/device/measure.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/random_update.cuh"
#include "zero/device/sum.cuh"
#include "zero/kernel/convert.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/kernel/remainder.hpp"
#include "zero/kernel/root_state.hpp"
#include "zero/kernel/stochastic_bf16.hpp"
#include "zero/precision/mixed.hpp"
#include "zero/rule/adagrad.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/amsgrad.hpp"
#include "zero/rule/eight_bit.hpp"
#include "zero/rule/lamb.hpp"
#include "zero/rule/lars.hpp"
#include "zero/rule/lion.hpp"
#include "zero/rule/nadam.hpp"
#include "zero/rule/rmsprop.hpp"
#include "zero/rule/sgd.hpp"
#include "zero/space/cuda.hpp"
#include "zero/space/host.hpp"

#include <cuda_runtime_api.h>

namespace space_test {
namespace {

using zero::space::Cuda;
using zero::space::Host;

/// The last of them is more than one step of all threads of the device there is. One that is
/// emulated has few, and plays them one after the other.
std::vector<std::size_t> sizes(Cuda const& space) {
  std::size_t const largest = space.queue().multiprocessors > 8 ? 1'000'003 : 70'001;
  return {1, 3, 4, 9, 511, 512, 513, 4099, largest};
}
constexpr std::size_t offsets[] = {0, 1, 3};

using zero::device::AsyncAllocator;

/// Elements at an offset, in the order of the space's stream.
template <class T>
struct Array : ::Array<T, AsyncAllocator> {
  Array(Cuda const& space, std::vector<T> const& values, std::size_t offset)
      : ::Array<T, AsyncAllocator>(
            space, values, offset, AsyncAllocator(space.device(), space.stream())) {}
};

template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> result(count);
  for (T& value : result) {
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(static_cast<std::int64_t>(random() % 2'000'001) - 1'000'000);
      continue;
    }
    float const mantissa = static_cast<float>(random() >> 8) / 16777216.f - 0.5f;
    value = static_cast<T>(std::ldexp(mantissa, static_cast<int>(random() % 24) - 16));
    if constexpr (std::is_same_v<T, double>) value *= 1. + 0x1p-41;
  }
  return result;
}

template <class T>
bool same(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class To, class From>
void check_elementwise(Cuda const& space) {
  for (std::size_t const count : sizes(space)) {
    for (std::size_t const offset : offsets) {
      auto const in = numbers<From>(count, 1);
      auto out = numbers<To>(count, 2);
      Array<From> const from(space, in, offset);
      Array<To> const to(space, out, offset == 3 ? 0 : offset);
      space.add(to.data(), from.data(), count);
      Host::add(out.data(), in.data(), count);
      CHECK(same(to.values(), out));
      space.convert(to.data(), from.data(), count);
      Host::convert(out.data(), in.data(), count);
      CHECK(same(to.values(), out));
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: conversions and additions have the host's bits") {
  check_elementwise<float, zero::bf16>(space);
  check_elementwise<zero::bf16, float>(space);
  check_elementwise<float, zero::fp16>(space);
  check_elementwise<zero::fp16, float>(space);
  check_elementwise<float, float>(space);
  check_elementwise<double, float>(space);
  check_elementwise<zero::bf16, double>(space);
}

TEST_CASE_FIXTURE(
    OneStream,
    "cuda: an error that a trainer has left behind is not reported as one of a conversion") {
  Array<float> const from(space, {0.5f}, 0);
  Array<zero::bf16> const to(space, std::vector<zero::bf16>(1), 0);
  CHECK(cudaSetDevice(-1) != cudaSuccess);
  space.convert(to.data(), from.data(), 1);
  CHECK(static_cast<float>(to.values()[0]) == 0.5f);
}

template <class T>
void check_squares(Cuda const& space) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (std::size_t const count : sizes(space)) {
    for (float const special : {0.f, infinity, std::numeric_limits<float>::quiet_NaN()}) {
      auto x = numbers<T>(count, 3);
      if (special != 0.f) x[count / 2] = static_cast<T>(special);
      zero::ExactSum expected;
      Host::add_squares(&expected, x.data(), count);
      for (std::size_t const offset : {0u, 1u}) {
        Array<T> const device(space, x, offset);
        Array<zero::ExactSum> const sum(space, {zero::ExactSum{}}, 0);
        space.add_squares(sum.data(), device.data(), count);
        zero::ExactSum result = sum.values()[0];
        bool equal = true;
        for (std::size_t i = 0; i < zero::ExactSum::word_count; ++i) {
          equal = equal && result.words()[i] == expected.words()[i];
        }
        CHECK(equal);
        CHECK(result.finite() == (special == 0.f));
      }
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: the norm's words are the host's, and overflow is counted") {
  check_squares<float>(space);
  check_squares<double>(space);
  check_squares<zero::bf16>(space);
  check_squares<zero::fp16>(space);
}

/// Every pattern of a 16-bit type: infinities, NaN, subnormal numbers, zeros with a sign.
template <class T>
std::vector<T> patterns() {
  std::vector<T> all(65'536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  return all;
}

/// The same bits, or not a number in both: those that arithmetic makes have one pattern on a
/// device.
template <class T>
bool same_numbers(std::vector<T> const& a, std::vector<T> const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](T x, T y) {
    return std::memcmp(&x, &y, sizeof(T)) == 0 ||
           (std::isnan(static_cast<float>(x)) && std::isnan(static_cast<float>(y)));
  });
}

template <class T>
void check_patterns(Cuda const& space) {
  std::vector<T> const all = patterns<T>();
  std::size_t const count = all.size();
  std::vector<T> const reversed(all.rbegin(), all.rend());
  Array<T> const device(space, all, 0);
  Array<T> const other(space, reversed, 0);

  std::vector<float> wide(count);
  Host::convert(wide.data(), all.data(), count);
  Array<float> const device_wide(space, std::vector<float>(count), 0);
  space.convert(device_wide.data(), device.data(), count);
  CHECK(same(device_wide.values(), wide));  // NaN as well
  // What lies between two patterns, and NaN with bits that a half has no room for.
  for (std::uint32_t const more : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x8000u, 0xffffu}) {
    for (float& value : wide) {
      value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ more);
    }
    std::vector<T> narrow(count);
    Host::convert(narrow.data(), wide.data(), count);
    Array<float> const from(space, wide, 0);
    Array<T> const to(space, std::vector<T>(count), 0);
    space.convert(to.data(), from.data(), count);
    CHECK(same(to.values(), narrow));
  }

  std::vector<T> sums(count);
  void const* const inputs[] = {all.data(), reversed.data()};
  zero::kernel::sum_function(zero::dtype_of<T>, zero::DType::f32)(
      sums.data(), inputs, 0, 2, count, zero::kernel::Store::cached);
  Array<T> const out(space, std::vector<T>(count), 0);
  CHECK(zero::device::try_sum_ranks(space.queue(),
                                    zero::dtype_of<T>,
                                    zero::DType::f32,
                                    {.at = {out.data()}},
                                    zero::device::BufferList{{device.data(), other.data()}},
                                    2,
                                    count) == cudaSuccess);
  CHECK(same_numbers(out.values(), sums));

  std::vector<T> finite;
  std::copy_if(all.begin(), all.end(), std::back_inserter(finite), [](T x) {
    return std::isfinite(static_cast<float>(x));
  });
  for (std::vector<T> const& x : {all, finite}) {
    zero::ExactSum expected;
    Host::add_squares(&expected, x.data(), x.size());
    for (std::size_t const offset : offsets) {
      Array<T> const there(space, x, offset);
      Array<zero::ExactSum> const sum(space, {zero::ExactSum{}}, 0);
      space.add_squares(sum.data(), there.data(), x.size());
      zero::ExactSum result = sum.values()[0];
      CHECK(std::equal(
          std::begin(result.words()), std::end(result.words()), std::begin(expected.words())));
    }
  }
}

TEST_CASE_FIXTURE(OneStream,
                  "cuda: every pattern of a 16-bit type is converted, added and squared") {
  check_patterns<zero::bf16>(space);
  check_patterns<zero::fp16>(space);
}

template <class T>
void check_hash(Cuda const& space) {
  for (std::size_t const count : sizes(space)) {
    auto const x = numbers<T>(count, 5);
    std::uint64_t expected = 7;
    Host::add_hash(&expected, x.data(), count, 11);
    Array<T> const device(space, x, 1);
    Array<std::uint64_t> const hash(space, {7}, 0);
    space.add_hash(hash.data(), device.data(), count, 11);
    CHECK(hash.values()[0] == expected);
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: hashes are the host's") {
  check_hash<float>(space);
  check_hash<zero::bf16>(space);
  check_hash<double>(space);
  check_hash<std::uint8_t>(space);
}

template <class P>
void check_unrounded(Cuda const& space) {
  for (std::size_t const count : sizes(space)) {
    auto const masters = numbers<float>(count, 5);
    std::vector<P> parameters(count);
    Host::convert(parameters.data(), masters.data(), count);
    Array<float> const device_masters(space, masters, 1);
    // No element, the last, and one in the middle as well, which counts.
    for (std::size_t const odd : {count, count - 1, count / 2}) {
      auto other = parameters;
      for (std::size_t const place : {odd, count - 1}) {
        if (odd < count) other[place] = P::from_bits(parameters[place].bits ^ 1u);
      }
      std::uint64_t const none = ~std::uint64_t{0};
      Array<P> const device(space, other, 1);
      Array<std::uint64_t> const first(space, {none}, 0);
      space.find_unrounded(first.data(), device.data(), device_masters.data(), count, 11);
      CHECK(first.values()[0] == (odd < count ? 11 + odd : none));
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: the first parameter that is not its master is found") {
  check_unrounded<zero::bf16>(space);
  check_unrounded<zero::fp16>(space);
}

/// The same digits, whatever the words that add up to them.
std::vector<std::int64_t> digits(std::vector<std::int64_t> const& words) {
  std::vector<std::int64_t> result;
  for (std::size_t k = 0; k < zero::measured_numbers; ++k) {
    zero::ExactSum sum;
    auto const* const own = words.data() + k * zero::ExactSum::word_count;
    std::copy_n(own, zero::ExactSum::word_count, sum.accumulators());
    result.insert(result.end(), std::begin(sum.words()), std::end(sum.words()));
  }
  return result;
}

/// Measures arrays in two pieces, as a tensor lies in two buckets.
template <class R, class Scalars, class Arrays>
void check_measured(Cuda const& space,
                    R const& rule,
                    zero::StepTerms const& terms,
                    Scalars const& scalars,
                    Arrays const& here,
                    Arrays const& there) {
  Array<zero::StepTerms> const device_terms(space, {terms}, 0);
  Array<Scalars> const device_scalars(space, {scalars}, 0);
  // A tensor of which something was measured before.
  std::vector<std::int64_t> words(zero::measured_numbers * zero::ExactSum::word_count);
  words[3] = words[zero::ExactSum::word_count + 5] = std::int64_t{1} << 40;
  auto const before = digits(words);
  Array<std::int64_t> const device_words(space, words, 0);
  std::size_t const cut = here.count / 2 / 32 * 32;
  auto const measure = [&](std::size_t first, std::size_t end) {
    if (first == end) return;
    auto const piece = [&](Arrays arrays) {
      arrays.master += first;
      arrays.gradient += first;
      if (arrays.parameter != nullptr) arrays.parameter += first;
      for (auto& state : arrays.state) state += first;
      arrays.count = end - first;
      return arrays;
    };
    space.measure(
        rule, device_terms.data(), device_scalars.data(), piece(there), device_words.data());
    Host::measure(rule, &terms, &scalars, piece(here), words.data());
    CHECK(digits(device_words.values()) == digits(words));
  };
  measure(0, cut);
  measure(cut, here.count);
  CHECK((digits(words) == before) == (terms.skipped != 0));
}

/// @tparam M     what the rule works on
/// @tparam Held  what is held of masters
/// @tparam S     what is held of states
template <class P, class G, class M = float, class Held = M, class S = M, class R>
void check_update(Cuda const& space, R const& rule) {
  constexpr bool random = zero::kernel::RandomElement<Held> || zero::kernel::RandomElement<S>;
  constexpr std::size_t k = R::states.size();
  // Of states, masters, parameters and gradients: the same, then each of them elsewhere.
  constexpr std::array<std::size_t, 4> places[] = {
      {0, 0, 0, 0}, {1, 1, 1, 1}, {3, 3, 3, 3}, {0, 1, 0, 0}, {2, 0, 1, 3}, {0, 0, 1, 0}};
  // Of the first element in its tensor: as far from a block of random bits as the arrays are from
  // aligned memory, or not, and where its number has more than 32 bits.
  [[maybe_unused]] constexpr std::uint64_t firsts[] = {
      0, (std::uint64_t{1} << 36) + 1, 5, 12, 7, 16};
  std::uint64_t const seed = 77;
  Array<std::uint64_t> const device_seed(space, {seed}, 0);
  for (std::size_t const count : sizes(space)) {
    for (auto const& place : places) {
      // Whether a grid ends where arrays do depends on how long they are, or on where they begin.
      if (toy::sanitized && count > 5000 && &place != &places[3]) continue;
      auto const whole = numbers<M>(count, 4);
      auto const gradient = numbers<G>(count, 5);
      std::vector<P> parameter(count);
      std::vector<Held> master(count);
      if constexpr (std::is_same_v<Held, M>) {
        master = whole;
      } else if constexpr (std::is_same_v<Held, P>) {
        zero::kernel::convert(&master[0].value, whole.data(), count);
      } else {
        using Masters = std::conditional_t<sizeof(Held) == 1, zero::Rest8, zero::Rest16>;
        Masters::split(parameter.data(), master.data(), whole.data(), count);
      }
      std::vector<std::vector<S>> state(k, std::vector<S>(count));
      Array<Held> const device_master(space, master, place[1]);
      Array<G> const device_gradient(space, gradient, place[3]);
      Array<P> const device_parameter(space, parameter, place[2]);
      std::vector<std::unique_ptr<Array<S>>> device_state;
      for (auto const& values : state) {
        device_state.push_back(std::make_unique<Array<S>>(space, values, place[0]));
      }
      std::int32_t step = 3;
      for (std::int32_t const skipped : {0, 1, 0}) {
        zero::StepTerms const terms{
            .step = step++, .learning_rate = 1e-2, .gradient_scale = 0.25, .skipped = skipped};
        Array<zero::StepTerms> const device_terms(space, {terms}, 0);
        auto const scalars =
            rule.scalars(terms.step, static_cast<M>(terms.learning_rate), M(0.5), M(1));
        Array<zero::BasicStepScalars<M>> const device_scalars(space, {scalars}, 0);
        std::conditional_t<random,
                           zero::RandomUpdateArrays<Held, P, G, S, k>,
                           zero::UpdateArrays<Held, P, G, S, k>>
            here;
        here.master = master.data();
        here.gradient = gradient.data();
        here.count = count;
        auto there = here;
        there.master = device_master.data();
        there.gradient = device_gradient.data();
        if constexpr (random) {
          here.random = {3, firsts[&place - places], &seed};
          there.random = {3, firsts[&place - places], device_seed.data()};
        }
        if constexpr (!std::is_same_v<P, Held>) {
          here.parameter = parameter.data();
          there.parameter = device_parameter.data();
        }
        for (std::size_t s = 0; s != k; ++s) {
          here.state[s] = state[s].data();
          there.state[s] = device_state[s]->data();
        }
        if constexpr (zero::MeasuringRule<R>) {
          check_measured(space, rule, terms, scalars, here, there);
        }
        space.update(rule, device_terms.data(), device_scalars.data(), there);
        Host::update(rule, &terms, &scalars, here);
        CHECK(same(device_master.values(), master));
        CHECK(same(device_parameter.values(), parameter));
        for (std::size_t s = 0; s != k; ++s) CHECK(same(device_state[s]->values(), state[s]));
      }
    }
  }
}

TEST_CASE_FIXTURE(
    OneStream, "cuda: updates have the bits of a host that fuses, and a skipped one changes none") {
  check_update<float, float>(space, zero::AdamW{});
  check_update<zero::bf16, zero::bf16>(space, zero::AdamW{});
  check_update<zero::fp16, zero::fp16>(space, zero::Lion{});
  check_update<float, float>(space, zero::PlainSgd{});
  check_update<float, float>(space, zero::Sgd{.nesterov = true, .dampening = 0.25f});
  check_update<float, float>(space, zero::Adagrad{.initial_accumulator_value = 0.5f});
  check_update<float, float>(space, zero::AmsGrad{});
  check_update<float, float>(space, zero::NAdam{.weight_decay = 0.1f});
  check_update<float, float>(space, zero::RmsProp<true, true>{.momentum = 0.5f});
  check_update<double, double, double>(space, zero::AdamW{});
  check_update<zero::bf16, float, double>(space, zero::AmsGrad{});
  using zero::kernel::HalfAwayBf16;
  check_update<HalfAwayBf16, zero::bf16>(space, zero::AdamW{});
  check_update<HalfAwayBf16, zero::bf16, float, zero::kernel::RestOfMaster>(space, zero::AdamW{});
}

TEST_CASE_FIXTURE(OneStream,
                  "cuda: updates that round stochastically have the host's random bits") {
  using zero::kernel::HalfAwayBf16;
  using zero::kernel::ShortRestOfMaster;
  using Random = zero::kernel::StochasticBf16;
  check_update<HalfAwayBf16, zero::bf16, float, ShortRestOfMaster>(space, zero::AdamW{});
  check_update<HalfAwayBf16, float, float, ShortRestOfMaster, Random>(space, zero::Lion{});
  check_update<HalfAwayBf16, zero::bf16, float, ShortRestOfMaster>(space, zero::PlainSgd{});
  check_update<Random, zero::bf16, float, Random, Random>(space, zero::AdamW{});
  check_update<Random, zero::bf16, float, Random>(space, zero::AmsGrad{});
  check_update<zero::fp16, zero::fp16, float, float, Random>(space, zero::AdamW{});
}

TEST_CASE_FIXTURE(OneStream, "cuda: what rules measure of tensors has the host's digits") {
  using zero::kernel::HalfAwayBf16;
  using Random = zero::kernel::StochasticBf16;
  check_update<float, float>(space, zero::Lamb{});
  check_update<zero::bf16, zero::bf16>(space, zero::Lars{.weight_decay = 0.1});
  check_update<double, double, double>(space, zero::Lamb{});
  check_update<HalfAwayBf16, zero::bf16, float, zero::kernel::RestOfMaster>(space, zero::Lamb{});
  check_update<HalfAwayBf16, zero::bf16, float, zero::kernel::ShortRestOfMaster>(space,
                                                                                 zero::Lars{});
  check_update<Random, zero::bf16, float, Random, Random>(space, zero::Lamb{});
}

/// What is not finite, or has a square that is not or that vanishes, in some blocks of a tensor.
template <class T>
void check_measured_specials(Cuda const& space) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  T const large = std::is_same_v<T, double> ? static_cast<T>(1e200) : T(3e38f);
  T const small = std::is_same_v<T, double> ? static_cast<T>(1e-200) : T(1e-45f);
  for (std::size_t const count : {1u, 32u, 95u, 128u, 4099u}) {
    for (T const special : {T(infinity), T(std::nanf("")), large, small}) {
      if (count == 1 && special == small) continue;  // it would measure nothing
      for (std::size_t const place : {std::size_t{0}, count / 2, count - 1}) {
        auto parameter = numbers<T>(count, 4);
        auto gradient = numbers<T>(count, 5);
        std::vector<T> momentum(count);
        parameter[place] = special;
        gradient[count - 1] = special;
        Array<T> const device_parameter(space, parameter, 1);
        Array<T> const device_gradient(space, gradient, 0);
        Array<T> const device_momentum(space, momentum, 3);
        zero::UpdateArrays<T, T, T, T, 1> const here{
            parameter.data(), nullptr, gradient.data(), {momentum.data()}, count};
        zero::UpdateArrays<T, T, T, T, 1> const there{device_parameter.data(),
                                                      nullptr,
                                                      device_gradient.data(),
                                                      {device_momentum.data()},
                                                      count};
        check_measured(space, zero::Lars{}, {}, zero::BasicStepScalars<T>{}, here, there);
      }
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: blocks of a tensor that are not finite are counted") {
  check_measured_specials<float>(space);
  check_measured_specials<double>(space);
}

/// A rule whose states would be largest where there is no element: 0 is its only parameter of 0.
struct Inverse {
  static constexpr std::string_view name = "inverse";
  static constexpr std::array states{
      zero::StateArray{.name = "inverse", .coding = zero::StateCoding::root_of_squares}};
  double lr = 1e-3;
  [[nodiscard]] ZERO_HOST_DEVICE zero::StepScalars scalars(long,
                                                           float lr_now,
                                                           float lr_scale,
                                                           float) const noexcept {
    return {.learning_rate = lr_now * lr_scale};
  }
  template <class V>
  ZERO_HOST_DEVICE void update(zero::StepScalars const& s,
                               V& p,
                               V const& g,
                               V* state) const noexcept {
    state[0] = 1.f / (zero::math::abs(p) + 1e-12f);
    p = zero::math::mul_add(-s.learning_rate, g, p);
  }
  bool operator==(Inverse const&) const = default;
};

/// Updates whose states are codes, with groups of zeros, of numbers that are not finite, and of
/// numbers of very different sizes.
/// @tparam Held  what is held of masters
template <class P, class G, class Held, class R, bool... has_sign>
void check_coded_update(Cuda const& space,
                        R const& rule,
                        zero::kernel::RootState<has_sign...> const&) {
  using S = zero::kernel::RootState<has_sign...>;
  constexpr std::size_t k = R::states.size();
  constexpr std::array<std::size_t, 4> places[] = {
      {0, 0, 0, 0}, {1, 1, 1, 1}, {0, 0, 0, 3}, {0, 0, 5, 0}, {0, 0, 0, 0}};
  // Slices of a stack begin at any place of a block of random bits.
  [[maybe_unused]] constexpr std::uint64_t firsts[] = {0, (std::uint64_t{1} << 36) + 1, 14, 19, 8};
  std::uint64_t const seed = 77;
  Array<std::uint64_t> const device_seed(space, {seed}, 0);
  auto all = sizes(space);
  all.insert(all.end(), {8, 31, 32, 33, 40, 63, 65, 8192, 8193, 8223});
  for (std::size_t const count : all) {
    std::size_t const groups = (count + 31) / 32;
    for (auto const& place : places) {
      if (toy::sanitized && count > 5000 && &place != &places[3]) continue;
      auto const whole = numbers<float>(count, 4);
      std::vector<P> parameter(count);
      std::vector<Held> master(count);
      if constexpr (std::is_same_v<Held, float>) {
        master = whole;
      } else if constexpr (std::is_same_v<Held, P>) {
        zero::kernel::convert(&master[0].value, whole.data(), count);
      } else {
        using Masters = std::conditional_t<sizeof(Held) == 1, zero::Rest8, zero::Rest16>;
        Masters::split(parameter.data(), master.data(), whole.data(), count);
      }
      std::vector<std::vector<S>> state(k, std::vector<S>(count));
      std::vector<std::vector<std::uint8_t>> scales(k, std::vector<std::uint8_t>(groups));
      Array<Held> const device_master(space, master, place[1]);
      Array<P> const device_parameter(space, parameter, place[2]);
      std::vector<std::unique_ptr<Array<S>>> device_state;
      std::vector<std::unique_ptr<Array<std::uint8_t>>> device_scales;
      for (std::size_t s = 0; s != k; ++s) {
        device_state.push_back(std::make_unique<Array<S>>(space, state[s], place[0]));
        device_scales.push_back(std::make_unique<Array<std::uint8_t>>(space, scales[s], 1));
      }
      std::int32_t step = 3;
      for (std::int32_t const skipped : {0, 1, 0, 0}) {
        auto gradient = numbers<G>(count, static_cast<unsigned>(5 + step));
        for (std::size_t i = 0; i < count; ++i) {
          if (i / 32 % 7 == 1) gradient[i] = G(0.f);
          if (i % 32 == 5 && i / 32 % 7 == 2) {
            gradient[i] = static_cast<G>(step == 3 ? 1e-30f : 3e18f);
          }
          if (i / 32 % 7 == 3 && step == 6) gradient[i] = static_cast<G>(1e-21f);
        }
        if (step == 6 && count > 130) {
          gradient[count - 1] = static_cast<G>(std::numeric_limits<float>::infinity());
        }
        Array<G> const device_gradient(space, gradient, place[3]);
        zero::StepTerms const terms{
            .step = step++, .learning_rate = 1e-2, .gradient_scale = 0.25, .skipped = skipped};
        Array<zero::StepTerms> const device_terms(space, {terms}, 0);
        auto const scalars =
            rule.scalars(terms.step, static_cast<float>(terms.learning_rate), 0.5f, 1.f);
        Array<zero::StepScalars> const device_scalars(space, {scalars}, 0);
        zero::CodedUpdateArrays<Held, P, G, S, k> here;
        here.master = master.data();
        here.gradient = gradient.data();
        here.count = count;
        here.random = {3, firsts[&place - places], &seed};
        auto there = here;
        there.master = device_master.data();
        there.gradient = device_gradient.data();
        there.random.seed = device_seed.data();
        if constexpr (!std::is_same_v<P, Held>) {
          here.parameter = parameter.data();
          there.parameter = device_parameter.data();
        }
        for (std::size_t s = 0; s != k; ++s) {
          here.state[s] = state[s].data();
          here.scales[s] = scales[s].data();
          there.state[s] = device_state[s]->data();
          there.scales[s] = device_scales[s]->data();
        }
        space.update(rule, device_terms.data(), device_scalars.data(), there);
        Host::update(rule, &terms, &scalars, here);
        bool const finite = step < 7 || count <= 130;
        CHECK((finite ? same(device_master.values(), master) : true));
        CHECK((finite ? same(device_parameter.values(), parameter) : true));
        for (std::size_t s = 0; s != k; ++s) {
          CHECK(same(device_state[s]->values(), state[s]));
          CHECK(same(device_scales[s]->values(), scales[s]));
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: updates of states in 8 bits have the host's codes and scales") {
  using zero::kernel::HalfAwayBf16;
  using zero::kernel::RootState;
  using zero::kernel::ShortRestOfMaster;
  using Random = zero::kernel::StochasticBf16;
  RootState<true, false> const of_adam{};
  RootState<true> const of_lion{};
  check_coded_update<float, float, float>(space, zero::AdamW8bit{}, of_adam);
  check_coded_update<zero::bf16, zero::bf16, float>(space, zero::Adam8bit{}, of_adam);
  check_coded_update<zero::fp16, zero::fp16, float>(space, zero::Lion8bit{}, of_lion);
  check_coded_update<HalfAwayBf16, zero::bf16, ShortRestOfMaster>(
      space, zero::AdamW8bit{.weight_decay = 0.1}, of_adam);
  check_coded_update<Random, zero::bf16, Random>(space, zero::Lion8bit{}, of_lion);
  check_coded_update<float, float, float>(space, Inverse{}, RootState<false>{});
}

template <class T>
void check_sums(Cuda const& space, zero::DType accumulate, std::size_t most = 4099) {
  constexpr zero::DType dtype = zero::dtype_of<T>;
  for (int const ranks : {1, 2, 5, 8, 40}) {
    for (std::size_t const count : sizes(space)) {
      if (count > (ranks == 40 ? 513 : most)) continue;
      auto const all = numbers<T>(count * static_cast<std::size_t>(ranks), 6);
      Array<T> const device(space, all, 0);
      std::vector<void const*> inputs;
      zero::device::BufferList list;
      for (int rank = 0; rank < ranks; ++rank) {
        std::size_t const offset = static_cast<std::size_t>(rank) * count;
        inputs.push_back(all.data() + offset);
        list.at[rank] = device.data() + offset;
      }
      std::vector<T> expected(count);
      auto const sum = zero::kernel::sum_function(dtype, accumulate);
      sum(expected.data(), inputs.data(), 0, ranks, count, zero::kernel::Store::cached);
      Array<T> const out(space, std::vector<T>(count), 0);
      Array<T> const other(space, std::vector<T>(count), 1);
      auto const sum_on_device = [&](zero::device::SumTargets const& targets, auto const& sources) {
        return zero::device::try_sum_ranks(
            space.queue(), dtype, accumulate, targets, sources, ranks, count);
      };
      CHECK(sum_on_device({.at = {out.data(), other.data()}, .count = 2}, list) == cudaSuccess);
      CHECK(same(out.values(), expected));
      CHECK(same(other.values(), expected));
      space.zero(out.data(), count * sizeof(T));
      zero::device::BufferBlocks const blocks{.first = device.data(), .stride = count};
      CHECK(sum_on_device({.at = {out.data()}}, blocks) == cudaSuccess);
      CHECK(same(out.values(), expected));
      if constexpr (zero::kernel::has_squares(dtype)) {
        zero::ExactSum squares;
        Host::add_squares(&squares, expected.data(), count);
        auto const check = [&](T* to, auto const& sources) {
          Array<zero::ExactSum> const added(space, {zero::ExactSum{}}, 0);
          zero::SumSquares const wanted{added.data(), count};
          CHECK(
              zero::device::try_sum_ranks(
                  space.queue(), dtype, accumulate, {.at = {to}}, sources, ranks, count, &wanted) ==
              cudaSuccess);
          zero::ExactSum result = added.values()[0];
          CHECK(std::equal(
              std::begin(result.words()), std::end(result.words()), std::begin(squares.words())));
        };
        check(out.data(), list);
        check(out.data(), blocks);
        CHECK(same(out.values(), expected));
        check(other.data(), blocks);  // not aligned
        CHECK(same(other.values(), expected));
      }
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: ordered sums have the host's bits, scattered and in blocks") {
  using zero::DType;
  check_sums<zero::bf16>(space, DType::f32, 2'000'000);
  check_sums<zero::fp16>(space, DType::f32);
  check_sums<float>(space, DType::f32);
  check_sums<float>(space, DType::f64);
  check_sums<double>(space, DType::f64);
  check_sums<std::int32_t>(space, DType::i32);
  check_sums<std::int64_t>(space, DType::i64);
}

/// Sums of several ranges at once: of each rank's part, in its own buffer, with its squares. One
/// rank may not ask for them: -1 is none.
template <class T>
void check_ranges(Cuda const& space, std::size_t count, std::size_t short_of, int without) {
  constexpr std::size_t ranks = 3;
  std::vector<T> const all = numbers<T>(count * ranks * ranks, 8);
  Array<T> const device(space, all, 0);
  std::vector<T> expected(count * ranks);
  std::vector<void const*> inputs;
  zero::device::BufferList list;
  zero::device::SumTargets targets{.ranges = ranks};
  Array<zero::ExactSum> const sums(space, std::vector<zero::ExactSum>(ranks), 0);
  std::vector<zero::SumSquares> squares;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t const offset = rank * count * ranks;
    inputs.push_back(all.data() + offset);
    list.at[rank] = device.data() + offset;
    targets.at[rank] = device.data() + offset;  // in place
    targets.first[rank] = rank * count;
    // The last rank's part ends with what does not count.
    bool const asks = static_cast<int>(rank) != without;
    squares.push_back(
        {asks ? sums.data() + rank : nullptr, count - (rank + 1 == ranks ? short_of : 0)});
  }
  zero::kernel::sum_function(zero::dtype_of<T>, zero::DType::f32)(
      expected.data(), inputs.data(), 0, ranks, count * ranks, zero::kernel::Store::cached);
  CHECK(zero::device::try_sum_ranks(space.queue(),
                                    zero::dtype_of<T>,
                                    zero::DType::f32,
                                    targets,
                                    list,
                                    ranks,
                                    count,
                                    squares.data()) == cudaSuccess);
  auto const found = device.values();
  auto const found_sums = sums.values();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t const first = rank * count;
    CHECK(std::equal(expected.begin() + static_cast<std::ptrdiff_t>(first),
                     expected.begin() + static_cast<std::ptrdiff_t>(first + count),
                     found.begin() + static_cast<std::ptrdiff_t>(rank * count * ranks + first),
                     [](T a, T b) { return std::memcmp(&a, &b, sizeof(T)) == 0; }));
    zero::ExactSum wanted;
    if (squares[rank].sum != nullptr) {
      Host::add_squares(&wanted, expected.data() + first, squares[rank].count);
    }
    zero::ExactSum result = found_sums[rank];
    CHECK(std::equal(
        std::begin(result.words()), std::end(result.words()), std::begin(wanted.words())));
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: sums of several ranges at once have the host's bits") {
  for (std::size_t const count : {1u, 512u, 1023u, 1024u, 1032u, 5120u}) {
    for (std::size_t const short_of : {0u, 1u, 600u}) {
      if (short_of > count) continue;
      for (int const without : {-1, 1}) {
        check_ranges<float>(space, count, short_of, without);
        check_ranges<zero::bf16>(space, count, short_of, without);
        check_ranges<zero::fp16>(space, count, short_of, without);
      }
    }
  }
}

TEST_CASE_FIXTURE(
    OneStream,
    "cuda: gathers bring every rank's bytes, aligned or not, and leave alone what is there") {
  for (int const ranks : {1, 2, 5}) {
    for (std::size_t const count : sizes(space)) {
      for (std::size_t const offset : {0u, 1u, 4u}) {
        auto const n = static_cast<std::size_t>(ranks);
        auto const bytes = numbers<zero::bf16>(count * n, 7);
        // Every buffer but the last lies elsewhere; that one is where it belongs.
        std::vector<zero::bf16> there(count * n);
        std::copy(bytes.end() - static_cast<std::ptrdiff_t>(count),
                  bytes.end(),
                  there.end() - static_cast<std::ptrdiff_t>(count));
        Array<zero::bf16> const from(space, bytes, offset);
        Array<zero::bf16> const to(space, there, offset);
        zero::device::BufferList list;
        for (std::size_t rank = 0; rank < n; ++rank) list.at[rank] = from.data() + rank * count;
        list.at[n - 1] = to.data() + (n - 1) * count;
        Array<zero::bf16> const other(space, there, offset);
        auto const gather = [&](zero::device::GatherTargets const& targets) {
          return zero::device::try_gather_ranks(
              space.queue(), targets, list, ranks, ranks / 2, count * sizeof(zero::bf16));
        };
        CHECK(gather({.at = {to.data(), other.data()}, .count = 2}) == cudaSuccess);
        CHECK(same(to.values(), bytes));
        CHECK(same(other.values(), bytes));
        if (count < 4) continue;
        // Two targets that get different parts of each buffer.
        std::size_t const part = count / 2;
        std::size_t const skip = part * sizeof(zero::bf16);
        zero::device::GatherTargets const parts{
            .at = {other.data(), to.data()}, .skip = {0, skip}, .count = 2};
        list.at[n - 1] = from.data() + (n - 1) * count;
        CHECK(zero::device::try_gather_ranks(space.queue(), parts, list, ranks, 0, skip) ==
              cudaSuccess);
        auto const first = other.values();
        auto const second = to.values();
        bool right = true;
        for (std::size_t rank = 0; rank < n; ++rank) {
          for (std::size_t i = 0; i < part; ++i) {
            right = right && first[rank * part + i].bits == bytes[rank * count + i].bits;
            right = right && second[rank * part + i].bits == bytes[rank * count + part + i].bits;
          }
        }
        CHECK(right);
      }
    }
  }
}

struct Write {
  int* to;
  int value;
  __host__ __device__ void operator()() const { *to = value; }
};

TEST_CASE_FIXTURE(OneStream,
                  "cuda: calls run once in order, and the current device stays what it was") {
  int before = -1;
  int after = -2;
  cudaGetDevice(&before);
  Array<int> const word(space, {0}, 0);
  space.call(Write{word.data(), 7});
  CHECK(word.values()[0] == 7);
  Array<int> const copied(space, {0}, 0);
  space.copy(copied.data(), word.data(), sizeof(int));
  CHECK(copied.values()[0] == 7);
  space.zero(word.data(), sizeof(int));
  CHECK(word.values()[0] == 0);
  cudaGetDevice(&after);
  CHECK(before == after);
}

}  // namespace
}  // namespace space_test
