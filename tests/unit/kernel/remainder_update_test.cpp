// Updates of masters that are remainders: the bits of fp32 masters beside parameters that are
// rounded half away from zero.
#include "zero/kernel/remainder_update.hpp"

#include "support/random.hpp"
#include "support/test.hpp"
#include "zero/device/element.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/sgd.hpp"

namespace remainder_update_test {
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

TEST_CASE("an element on a device is that of the host") {
  zero::PlainSgd const rule{};
  auto const scalars = rule.scalars(1, 0.25f, 0.5f, 1.f);
  Both<zero::PlainSgd, bf16> both(2000);
  auto rests = both.rest;
  auto parameters = both.split;
  for (std::size_t i = 1; i <= both.size; ++i) {
    float none[1]{};
    zero::device::update_element(
        rule, scalars, 0x1.2345p-3f, rests[i], parameters[i], both.gradient[i], none);
  }
  both.update<zero::kernel::native>(rule, scalars);
  std::size_t differing = 0;
  for (std::size_t i = 0; i < rests.size(); ++i) {
    differing += rests[i].bits != both.rest[i].bits || parameters[i].value != both.split[i].value;
  }
  CHECK(differing == 0);
}

}  // namespace remainder_update_test
