#include "support/test.hpp"
#include <zero/kernel/update.hpp>
#include <zero/rule/adagrad.hpp>
#include <zero/rule/adam.hpp>
#include <zero/rule/adamw.hpp>
#include <zero/rule/lion.hpp>
#include <zero/rule/sgd.hpp>

namespace update_test {
namespace {

using zero::bf16;
using zero::fp16;

/// Products and sums that a compiler may fuse in any of several ways.
struct Careless {
  static constexpr std::string_view name = "careless";
  static constexpr std::array states{
      zero::StateArray{"s0"}, zero::StateArray{"s1"}, zero::StateArray{"s2"}};
  float lr = 0.1f;
  [[nodiscard]] zero::StepScalars scalars(long, float lr_now, float, float) const noexcept {
    return {.learning_rate = lr_now};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    state[0] = state[0] * 0.9f + g * 0.1f;
    state[1] = state[1] * 0.99f + g * g * 0.01f - p * 0.001f;
    state[2] = state[2] + (g - state[2]) * 0.3f;
    p = p - s.learning_rate * state[0] - state[2] * state[1] * 0.5f;
  }
  bool operator==(Careless const&) const = default;
};

/// Adds the gradient to something: what a compiler likes to fuse with the scaling before it.
struct Sum {
  static constexpr std::string_view name = "sum";
  static constexpr std::array<zero::StateArray, 0> states{};
  float lr = 0.f;
  [[nodiscard]] zero::StepScalars scalars(long, float, float, float) const noexcept { return {}; }
  template <class V>
  void update(zero::StepScalars const&, V& p, V const& g, V*) const noexcept {
    p = p + g;
  }
  bool operator==(Sum const&) const = default;
};

constexpr float scale = 0x1.2345p-3f;

/// All arrays of one update, as separate vectors, with canaries around every array.
template <class R, class M, class P, class G>
struct Buffers {
  static constexpr auto states = R::states.size();
  static constexpr std::size_t margin = 40;

  explicit Buffers(std::size_t count) : size(count) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < count + 2 * margin; ++i) {
      master.push_back(M(normal(random)));
      parameter.push_back(P(normal(random)));
      gradient.push_back(G(normal(random)));
      for (auto& s : state) s.push_back(0.f);
    }
  }

  [[nodiscard]] auto arrays(std::size_t first, std::size_t count, std::size_t shift = 0) {
    std::size_t const at = margin + first + shift;
    zero::kernel::UpdateArrays<M, P, G, float, states> result;
    result.master = master.data() + at;
    if (!std::is_same_v<M, P>) result.parameter = parameter.data() + at;
    result.gradient = gradient.data() + at;
    for (std::size_t k = 0; k < states; ++k) result.state[k] = state[k].data() + at;
    result.count = count;
    return result;
  }

  /// Moves the payload by `shift` elements, so that every element stands elsewhere.
  void rotate(std::size_t shift) {
    auto const move = [&](auto& array) {
      for (std::size_t i = size; i-- > 0;) array[margin + shift + i] = array[margin + i];
    };
    move(master);
    move(parameter);
    move(gradient);
    for (auto& s : state) move(s);
  }

  [[nodiscard]] bool same(Buffers const& other, std::size_t shift = 0) const {
    auto const equal = [&](auto const& a, auto const& b) {
      return std::memcmp(a.data() + margin, b.data() + margin + shift, size * sizeof(a[0])) == 0;
    };
    bool result = equal(master, other.master) && equal(parameter, other.parameter);
    for (std::size_t k = 0; k < states; ++k) result = result && equal(state[k], other.state[k]);
    return result;
  }

  std::size_t size;
  std::vector<M> master;
  std::vector<P> parameter;
  std::vector<G> gradient;
  std::array<std::vector<float>, states> state;
};

template <class R, class M, class P, class G>
struct Case {
  using Rule = R;
  using Data = Buffers<R, M, P, G>;
};

}  // namespace

TEST_CASE_TEMPLATE("where an element stands does not change a bit of it",
                   T,
                   Case<zero::AdamW, float, float, float>,
                   Case<zero::AdamW, float, bf16, bf16>,
                   Case<zero::Adam, float, fp16, fp16>,
                   Case<zero::Adam, float, fp16, float>,
                   Case<zero::Sgd, float, float, bf16>,
                   Case<zero::PlainSgd, float, bf16, bf16>,
                   Case<zero::Adagrad, float, float, float>,
                   Case<zero::Lion, float, bf16, float>,
                   Case<Careless, float, float, float>,
                   Case<Careless, float, bf16, fp16>) {
  typename T::Rule const rule{};
  constexpr std::size_t count = 133;
  typename T::Data const initial(count);
  // Three steps in calls of one size, the first of them another one; and at any alignment.
  auto const after = [&](std::size_t first, std::size_t size, std::size_t shift = 0) {
    auto data = initial;
    data.rotate(shift);
    for (int t = 1; t <= 3; ++t) {
      auto const scalars = rule.scalars(t, static_cast<float>(rule.lr), 1.f, 1.f);
      std::size_t piece = first;
      for (std::size_t i = 0; i < count; i += piece, piece = size) {
        piece = std::min(piece, count - i);
        zero::kernel::update(rule, scalars, scale, data.arrays(i, piece, shift));
      }
    }
    return data;
  };
  auto const whole = after(count, count);
  REQUIRE(!whole.same(initial));
  for (std::size_t cut = 1; cut < count; ++cut) CHECK(whole.same(after(cut, count)));
  for (std::size_t size = 1; size <= 35; ++size) CHECK(whole.same(after(size, size)));
  for (std::size_t shift = 0; shift <= 33; ++shift) {
    CHECK(whole.same(after(count, count, shift), shift));
  }
}

TEST_CASE_TEMPLATE("nothing is written outside [0, count)",
                   T,
                   Case<zero::AdamW, float, float, float>,
                   Case<zero::AdamW, float, bf16, bf16>,
                   Case<zero::PlainSgd, float, fp16, float>) {
  typename T::Rule const rule{};
  typename T::Data const before(80);
  for (std::size_t count = 0; count <= 67; ++count) {
    auto data = before;
    zero::kernel::update(
        rule, rule.scalars(1, static_cast<float>(rule.lr), 1.f, 1.f), scale, data.arrays(5, count));
    // Restoring what may have changed must restore everything.
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t const at = data.margin + 5 + i;
      data.master[at] = before.master[at];
      data.parameter[at] = before.parameter[at];
      for (std::size_t k = 0; k < data.states; ++k) data.state[k][at] = before.state[k][at];
    }
    CHECK((data.master == before.master && data.parameter == before.parameter));
    CHECK((data.state == before.state));
  }
}

TEST_CASE_TEMPLATE("a pack computes what a float computes",
                   T,
                   zero::Adam,
                   zero::AdamW,
                   zero::Sgd,
                   zero::PlainSgd,
                   zero::Adagrad,
                   zero::Lion) {
  T rule{};
  rule.weight_decay = 0.03f;
  constexpr std::size_t count = 67;
  Buffers<T, float, bf16, bf16> data(count);
  auto expected = data;
  for (int t = 1; t <= 5; ++t) {
    auto const scalars = rule.scalars(t, static_cast<float>(rule.lr), 1.f, 1.f);
    zero::kernel::update(rule, scalars, scale, data.arrays(0, count));
    for (std::size_t i = data.margin; i < data.margin + count; ++i) {
      // volatile: a product the compiler cannot fuse into the rule
      float const volatile g = static_cast<float>(expected.gradient[i]) * scale;
      std::array<float, T::states.size() + 1> state{};
      for (std::size_t k = 0; k < data.states; ++k) state[k] = expected.state[k][i];
      rule.template update<float>(scalars, expected.master[i], float{g}, state.data());
      for (std::size_t k = 0; k < data.states; ++k) expected.state[k][i] = state[k];
      expected.parameter[i] = bf16(expected.master[i]);
    }
  }
  CHECK(data.same(expected));
}

TEST_CASE("a large narrow output is the same around the caches as through them") {
  // Beyond the threshold of streaming; odd, and once misaligned so that it cannot be streamed.
  constexpr std::size_t count = (std::size_t{1} << 21) + 3;
  zero::AdamW const rule{};
  Buffers<zero::AdamW, float, bf16, bf16> data(count);
  auto pieces = data;
  auto const scalars = rule.scalars(1, static_cast<float>(rule.lr), 1.f, 1.f);
  zero::kernel::update(rule, scalars, scale, data.arrays(0, count));
  for (std::size_t i = 0; i < count; i += 4099) {
    zero::kernel::update(
        rule, scalars, scale, pieces.arrays(i, std::min<std::size_t>(4099, count - i)));
  }
  CHECK(data.same(pieces));
}

TEST_CASE("a rule is given the gradient scaled and rounded") {
  // 1/3 · 3 is exactly 1 after rounding and a little more before.
  float p[20];
  float g[20];
  std::fill_n(&p[0], 20, -1.f);
  std::fill_n(&g[0], 20, 3.f);
  zero::kernel::UpdateArrays<float, float, float, float, 0> arrays;
  arrays.master = &p[0];
  arrays.gradient = &g[0];
  arrays.count = 20;
  zero::kernel::update(Sum{}, {}, 1.f / 3.f, arrays);
  for (float x : p) CHECK(x == 0.f);
}

TEST_CASE("without a separate array of parameters none is written") {
  zero::Sgd const rule{};
  Buffers<zero::Sgd, float, bf16, float> data(50);
  auto const before = data;
  auto arrays = data.arrays(0, 50);
  arrays.parameter = nullptr;
  zero::kernel::update(rule, rule.scalars(1, 0.1f, 1.f, 1.f), 1.f, arrays);
  CHECK(data.parameter == before.parameter);
  CHECK(data.master != before.master);
}

TEST_CASE("narrow states and masters are rounded once per step") {
  zero::Sgd const rule{.lr = 0.5f, .momentum = 0.5f};
  bf16 master(1.f);
  float const gradient = 0x1.01p0f;  // a tie of bf16: rounds to even, down
  bf16 momentum(0.f);
  zero::kernel::UpdateArrays<bf16, bf16, float, bf16, 1> arrays;
  arrays.master = &master;
  arrays.gradient = &gradient;
  arrays.state[0] = &momentum;
  arrays.count = 1;
  zero::kernel::update(rule, rule.scalars(1, 0.5f, 1.f, 1.f), 1.f, arrays);
  CHECK(static_cast<float>(momentum) == 1.f);
  CHECK(static_cast<float>(master) == static_cast<float>(bf16(1.f - 0.5f * gradient)));
}

}  // namespace update_test
