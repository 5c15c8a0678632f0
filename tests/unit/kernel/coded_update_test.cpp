// Updates of elements that are coded: remainders of 16 bits have the bits of fp32 masters beside
// parameters that are rounded half away from zero; what is rounded stochastically has those of its
// definition, element by element.
#include "zero/kernel/coded_update.hpp"

#include "support/random.hpp"
#include "support/test.hpp"
#include "zero/device/element.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/kernel/half_away.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/remainder.hpp"
#include "zero/kernel/stochastic_bf16.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/sgd.hpp"

namespace coded_update_test {
namespace {

namespace kernel = zero::kernel;
using kernel::HalfAwayBf16;
using kernel::RestOfMaster;
using zero::bf16;

/// Products and sums that a compiler may fuse in any of several ways.
struct Fusible {
  static constexpr std::string_view name = "fusible";
  static constexpr std::array states{zero::StateArray{"s"}};
  float lr = 0.1f;
  [[nodiscard]] zero::StepScalars scalars(long, float rate, float, float) const noexcept {
    return {.learning_rate = rate};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    state[0] = state[0] * 0.9f + g * g * 0.1f - p * 0.001f;
    p = p - s.learning_rate * state[0] * 0.5f - g * 0.01f;
  }
  bool operator==(Fusible const&) const = default;
};

/// Two states, and the same bits whether its products are fused with its sums or not, as all
/// products are exact: a device fuses them, and a host only where its processor can.
struct Exact {
  static constexpr std::string_view name = "exact";
  static constexpr std::array states{zero::StateArray{"m"}, zero::StateArray{"n"}};
  float lr = 0.0078125f;
  [[nodiscard]] zero::StepScalars scalars(long, float rate, float, float) const noexcept {
    return {.learning_rate = rate};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    state[0] = state[0] * 0.5f + g;
    state[1] = state[1] * 0.25f - g;
    p = p - s.learning_rate * state[0];
  }
  bool operator==(Exact const&) const = default;
};

/// The arrays of both ways to hold masters, with an element more on each side.
template <class R, class G>
struct Both {
  static constexpr auto states = R::states.size();
  explicit Both(std::size_t count)
      : size(count), rest(count + 2), split(count + 2), whole(rest.size()) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < size + 2; ++i) {
      // Some in the middle of two bf16, and some that are no numbers.
      float x = normal(random);
      if (i % 7 == 0)
        x = std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) & ~0xffffu) | 0x8000u);
      if (i % 97 == 0) x = std::numeric_limits<float>::infinity();
      if (i % 101 == 0) x = std::numeric_limits<float>::quiet_NaN();
      master.push_back(x);
      gradient.push_back(G(normal(random)));
      for (auto* const each : {&state, &split_state}) {
        for (auto& array : *each) array.push_back(std::abs(x) * 0.01f);
      }
    }
    kernel::convert(whole.data(), master.data(), master.size());
    for (std::size_t i = 0; i < master.size(); ++i) {
      auto const parts =
          kernel::split_master<std::uint16_t>(std::bit_cast<std::uint32_t>(master[i]));
      split[i].value.bits = static_cast<std::uint16_t>(parts.parameter);
      rest[i].bits = static_cast<std::uint16_t>(parts.rest);
    }
  }

  template <zero::kernel::Isa I>
  void update(R const& rule, zero::StepScalars const& scalars) {
    kernel::UpdateArrays<float, HalfAwayBf16, G, float, states> fp32;
    fp32.master = master.data() + 1;
    fp32.parameter = whole.data() + 1;
    fp32.gradient = gradient.data() + 1;
    fp32.count = size;
    kernel::UpdateArrays<RestOfMaster, HalfAwayBf16, G, float, states> rests;
    rests.master = rest.data() + 1;
    rests.parameter = split.data() + 1;
    rests.gradient = gradient.data() + 1;
    rests.count = size;
    for (std::size_t k = 0; k < states; ++k) {
      fp32.state[k] = state[k].data() + 1;
      rests.state[k] = split_state[k].data() + 1;
    }
    kernel::update<I>(rule, scalars, 0x1.2345p-3, fp32);
    kernel::update<I>(rule, scalars, 0x1.2345p-3, rests);
  }

  /// Elements that differ, those beyond the ends among them.
  [[nodiscard]] std::size_t differing() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < master.size(); ++i) {
      auto const bits = std::bit_cast<std::uint32_t>(master[i]);
      auto const joined = kernel::join_master<std::uint16_t>(split[i].value.bits, rest[i].bits);
      bool const nan = std::isnan(master[i]) && std::isnan(std::bit_cast<float>(joined));
      bool same = (bits == joined || nan) && split[i].value == whole[i].value;
      for (std::size_t k = 0; k < states; ++k) {
        same = same && (nan || std::memcmp(&state[k][i], &split_state[k][i], sizeof(float)) == 0);
      }
      count += same ? 0 : 1;
    }
    return count;
  }

  std::size_t size;
  std::vector<float> master{};
  std::vector<RestOfMaster> rest;
  std::vector<HalfAwayBf16> split, whole;
  std::vector<G> gradient{};
  std::array<std::vector<float>, states> state{}, split_state{};
};

template <class R, class G>
struct Case {
  using Rule = R;
  using Gradient = G;
};

/// Arrays of an update that rounds with random bits, an element more on each side, and what the
/// definition makes of each element.
template <class M, class S, class G>
struct Random {
  static constexpr bool rests = std::is_same_v<M, kernel::ShortRestOfMaster>;
  static constexpr bool own = std::is_same_v<M, kernel::StochasticBf16>;
  static constexpr bool coded_states = std::is_same_v<S, kernel::StochasticBf16>;
  using P = std::conditional_t<rests, HalfAwayBf16, std::conditional_t<own, M, bf16>>;
  static constexpr std::size_t states = zero::AdamW::states.size();
  static constexpr std::uint64_t first = (std::uint64_t{1} << 33) + 96;

  explicit Random(std::size_t elements) : count(elements), master(count + 2), parameter(count + 2) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (auto& array : state) array.resize(count + 2);
    for (std::size_t i = 0; i < count + 2; ++i) {
      gradient.push_back(G(normal(random)));
      float x = normal(random);
      if (i % 61 == 0) x = std::numeric_limits<float>::infinity();
      if (i % 67 == 0) x = std::numeric_limits<float>::quiet_NaN();
      if (i % 71 == 0) x = std::numeric_limits<float>::max();
      set(i, x);
      for (std::size_t k = 0; k < states; ++k) {
        if constexpr (coded_states) state[k][i].value = bf16(std::abs(normal(random)));
        if constexpr (!coded_states) state[k][i] = std::abs(normal(random));
      }
    }
  }
  void set(std::size_t i, float x) {
    if constexpr (rests) {
      kernel::split_masters(&parameter[i].value, &master[i].bits, &x, 1);
    } else if constexpr (own) {
      master[i].value = bf16(x);
    } else {
      master[i] = x;
      parameter[i] = bf16(x);
    }
  }
  [[nodiscard]] static float value(M const& of, [[maybe_unused]] P const& beside) {
    if constexpr (rests) {
      return std::bit_cast<float>(
          kernel::join_master<std::uint8_t>(beside.value.bits, std::uint32_t{of.bits}));
    } else if constexpr (own) {
      return static_cast<float>(of.value);
    } else {
      return of;
    }
  }

  /// By the definition: `update` of one element in floats, then each rounded with its own bits.
  void expect(zero::StepScalars const& scalars, std::uint64_t key, std::uint64_t seed, long step) {
    zero::AdamW const rule{};
    for (std::size_t i = 1; i <= count; ++i) {
      float x = value(master[i], parameter[i]);
      float all[states];
      kernel::UpdateArrays<float, float, G, float, states> one;
      one.master = &x;
      one.gradient = &gradient[i];
      for (std::size_t k = 0; k < states; ++k) {
        if constexpr (coded_states) all[k] = static_cast<float>(state[k][i].value);
        if constexpr (!coded_states) all[k] = state[k][i];
        one.state[k] = &all[k];
      }
      one.count = 1;
      kernel::update(rule, scalars, 0.25, one);
      auto const bits_of = [&]<class Bits>(Bits, std::uint64_t array) {
        auto const stream = kernel::random_stream(
            kernel::random_key(key, array), seed, static_cast<std::uint64_t>(step));
        return std::uint32_t{kernel::random_bits<Bits>(stream, first + i - 1)};
      };
      auto const stochastic = [&](float of, std::uint64_t array) {
        auto const word = std::bit_cast<std::uint32_t>(of);
        if (std::isnan(of)) return static_cast<std::uint16_t>((word >> 31) << 15 | 0x7fc0u);
        return static_cast<std::uint16_t>((word + bits_of(std::uint16_t{}, array)) >> 16);
      };
      if constexpr (rests) {
        auto word = std::bit_cast<std::uint32_t>(x);
        if (std::isnan(x)) word = (word & 0x80000000u) | 0x7fc00000u;
        if (!std::isnan(x)) word = (word + bits_of(std::uint8_t{}, 0)) & ~0xffu;
        master[i].bits = static_cast<std::uint8_t>(word >> 8);
        parameter[i].value.bits = static_cast<std::uint16_t>((word + 0x8000u) >> 16);
      } else if constexpr (own) {
        master[i].value.bits = stochastic(x, 0);
      } else {
        master[i] = x;
        parameter[i] = bf16(x);
      }
      for (std::size_t k = 0; k < states; ++k) {
        if constexpr (coded_states) state[k][i].value.bits = stochastic(all[k], k + 1);
        if constexpr (!coded_states) state[k][i] = all[k];
      }
    }
  }
  /// Elements [begin, end) of those between the ends.
  [[nodiscard]] auto arrays(std::uint64_t key,
                            std::uint64_t const& seed,
                            std::size_t begin,
                            std::size_t end) {
    zero::RandomUpdateArrays<M, P, G, S, states> all;
    all.master = master.data() + 1 + begin;
    if (!own) all.parameter = parameter.data() + 1 + begin;
    all.gradient = gradient.data() + 1 + begin;
    for (std::size_t k = 0; k < states; ++k) all.state[k] = state[k].data() + 1 + begin;
    all.count = end - begin;
    all.random = {key, first + begin, &seed};
    return all;
  }
  [[nodiscard]] std::size_t differing(Random const& other) const {
    auto const same = [](auto const& a, auto const& b) {
      return std::memcmp(&a, &b, sizeof(a)) == 0;
    };
    std::size_t found = 0;
    for (std::size_t i = 0; i < master.size(); ++i) {
      // Which NaN a float is may differ.
      bool const nan = std::isnan(value(master[i], parameter[i])) &&
                       std::isnan(value(other.master[i], other.parameter[i]));
      bool alike = same(master[i], other.master[i]) && same(parameter[i], other.parameter[i]);
      if constexpr (std::is_same_v<M, float>) alike = alike || nan;
      for (std::size_t k = 0; k < states; ++k) {
        alike = alike && same(state[k][i], other.state[k][i]);
      }
      found += alike ? 0u : 1u;
    }
    return found;
  }

  std::size_t count;
  std::vector<M> master;
  std::vector<P> parameter;
  std::vector<G> gradient{};
  std::array<std::vector<S>, states> state{};
};

}  // namespace

TEST_CASE_TEMPLATE("remainders train bit for bit as fp32 masters, wherever an element stands",
                   T,
                   Case<zero::AdamW, bf16>,
                   Case<zero::AdamW, float>,
                   Case<zero::PlainSgd, bf16>,
                   Case<Fusible, bf16>) {
  using Rule = typename T::Rule;
  Rule const rule{};
  for (std::size_t const count : {0u, 1u, 15u, 16u, 129u, 1023u, 1024u, 1025u, 2600u}) {
    CAPTURE(count);
    Both<Rule, typename T::Gradient> both(count);
    for (long step = 1; step <= 4; ++step) {
      auto const scalars = rule.scalars(step, 0.01f, 0.1f, 1.f);
      both.template update<zero::kernel::native>(rule, scalars);
      CHECK(both.differing() == 0);
    }
  }
}

TEST_CASE_TEMPLATE("what is rounded stochastically has the bits of its definition, in any pieces",
                   T,
                   Random<kernel::ShortRestOfMaster, float, bf16>,
                   Random<kernel::ShortRestOfMaster, kernel::StochasticBf16, float>,
                   Random<kernel::StochasticBf16, kernel::StochasticBf16, bf16>,
                   Random<kernel::StochasticBf16, float, bf16>,
                   Random<float, kernel::StochasticBf16, bf16>) {
  std::uint64_t const key = kernel::random_key("w", 1);
  std::uint64_t const seed = 77;
  zero::AdamW const rule{};
  for (std::size_t const count : {1u, 15u, 32u, 129u, 1023u, 1024u, 1025u, 2600u}) {
    CAPTURE(count);
    T whole(count);
    T pieces(count);
    T wanted(count);
    for (long step = 1; step <= 3; ++step) {
      auto const scalars = rule.scalars(step, 0.01f, 1.f, 1.f);
      wanted.expect(scalars, key, seed, step);
      kernel::update(rule, scalars, 0.25, whole.arrays(key, seed, 0, count), step);
      std::size_t const cut = count / 3;
      kernel::update(rule, scalars, 0.25, pieces.arrays(key, seed, 0, cut), step);
      kernel::update(rule, scalars, 0.25, pieces.arrays(key, seed, cut, count), step);
      CHECK(whole.differing(wanted) == 0);
      CHECK(pieces.differing(wanted) == 0);
    }
    if (count < 100) continue;
    // Other bits of another seed, tensor, count, or place.
    auto const again = [&](std::uint64_t of_key, std::uint64_t of_seed, std::size_t by, long step) {
      T one(count);
      T other(count);
      auto const scalars = rule.scalars(3, 0.01f, 1.f, 1.f);
      auto arrays = other.arrays(of_key, of_seed, 0, count);
      arrays.random.first += by;
      kernel::update(rule, scalars, 0.25, one.arrays(key, seed, 0, count), 3);
      kernel::update(rule, scalars, 0.25, arrays, step);
      return one.differing(other);
    };
    CHECK(again(key, seed, 0, 3) == 0);
    CHECK(again(key, seed + 1, 0, 3) > count / 4);
    CHECK(again(key + 1, seed, 0, 3) > count / 4);
    CHECK(again(key, seed, 1, 3) > count / 4);
    CHECK(again(key, seed, 0, 4) > count / 4);
  }
}

TEST_CASE("an element on a device is that of the host") {
  zero::PlainSgd const rule{};
  auto const scalars = rule.scalars(1, 0.25f, 0.5f, 1.f);
  Both<zero::PlainSgd, bf16> both(2000);
  auto rests = both.rest;
  auto parameters = both.split;
  for (std::size_t i = 1; i <= both.size; ++i) {
    float none[1]{};
    zero::device::update_element(
        rule, scalars, 0x1.2345p-3f, rests[i], parameters[i], both.gradient[i], none, {0, 0});
  }
  both.update<zero::kernel::native>(rule, scalars);
  std::size_t differing = 0;
  for (std::size_t i = 0; i < rests.size(); ++i) {
    differing += rests[i].bits != both.rest[i].bits || parameters[i].value != both.split[i].value;
  }
  CHECK(differing == 0);
}

TEST_CASE_TEMPLATE("and so is one that is rounded stochastically",
                   T,
                   Random<kernel::ShortRestOfMaster, float, bf16>,
                   Random<kernel::ShortRestOfMaster, kernel::StochasticBf16, float>,
                   Random<kernel::StochasticBf16, kernel::StochasticBf16, bf16>,
                   Random<kernel::StochasticBf16, float, bf16>,
                   Random<float, kernel::StochasticBf16, bf16>) {
  std::uint64_t const key = kernel::random_key("w", 1);
  Exact const rule{};
  auto const scalars = rule.scalars(3, rule.lr, 1.f, 1.f);
  T there(2000);
  T here(2000);
  for (std::size_t i = 1; i <= there.count; ++i) {
    std::uint32_t random[T::states + 1];
    for (std::size_t k = 0; k <= T::states; ++k) {
      auto const stream = kernel::random_stream(kernel::random_key(key, k), 77, 3);
      random[k] = T::rests && k == 0 ? kernel::random_bits<std::uint8_t>(stream, T::first + i - 1)
                                     : kernel::random_bits<std::uint16_t>(stream, T::first + i - 1);
    }
    std::remove_reference_t<decltype(there.state[0][i])> state[T::states];
    for (std::size_t k = 0; k < T::states; ++k) state[k] = there.state[k][i];
    zero::device::update_element(rule,
                                 scalars,
                                 0.25f,
                                 there.master[i],
                                 there.parameter[i],
                                 there.gradient[i],
                                 state,
                                 random);
    for (std::size_t k = 0; k < T::states; ++k) there.state[k][i] = state[k];
  }
  std::uint64_t const seed = 77;
  kernel::update(rule, scalars, 0.25, here.arrays(key, seed, 0, here.count), 3);
  CHECK(there.differing(here) == 0);
}

}  // namespace coded_update_test
