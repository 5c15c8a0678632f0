/// What a rule measures of a tensor: the squares of its numbers, of every element once, whatever
/// pieces the tensor is cut into.
#include "support/test.hpp"
#include <zero/kernel/half_away.hpp>
#include <zero/kernel/measure.hpp>
#include <zero/kernel/remainder.hpp>

namespace measure_test {
namespace {

using zero::ExactSum;
using Words = std::vector<std::int64_t>;

/// A parameter, and the gradient plus twice its state: what is measured can be told from outside.
struct Sums {
  static constexpr std::string_view name = "sums";
  static constexpr std::array states{zero::StateArray{"twice"}};
  double lr = 1.;
  template <class Real>
  [[nodiscard]] zero::BasicStepScalars<Real> scalars(long, Real, Real, Real) const noexcept {
    return {};
  }
  template <class V>
  void measure(zero::ScalarsOf<V> const&, V const& p, V const& g, V const* state, V (&numbers)[2])
      const noexcept {
    numbers[0] = p;
    numbers[1] = g + (state[0] + state[0]);
  }
  template <class Real>
  void adjust(zero::BasicStepScalars<Real>&, double const (&)[2]) const noexcept {}
  template <class V>
  void update(zero::ScalarsOf<V> const&, V&, V const&, V*) const noexcept {}
  bool operator==(Sums const&) const = default;
};

template <class T>
std::vector<T> drawn(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-30, 10);
  std::vector<T> result;
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(static_cast<T>(std::ldexp(normal(random), exponent(random))));
  }
  return result;
}

template <class M, class G>
struct Tensor {
  explicit Tensor(std::size_t count)
      : p(drawn<M>(count, 1)), g(drawn<G>(count, 2)), state(drawn<M>(count, 3)) {}
  [[nodiscard]] zero::UpdateArrays<M, M, G, M, 1> piece(std::size_t first, std::size_t count) {
    return {p.data() + first, nullptr, g.data() + first, {state.data() + first}, count};
  }
  std::vector<M> p;
  std::vector<G> g;
  std::vector<M> state;
};

/// Sums, whatever the digits that make them.
Words values_of(Words const& words) {
  Words values;
  for (std::size_t k = 0; k < 2; ++k) {
    double const value = ExactSum::value(words.data() + k * ExactSum::word_count);
    values.push_back(std::bit_cast<std::int64_t>(value));
  }
  return values;
}
template <class M, class G>
Words measured(Tensor<M, G>& tensor, std::vector<std::size_t> const& cuts, double scale = 0.25) {
  Words words(2 * ExactSum::word_count);
  std::size_t first = 0;
  auto const take = [&](std::size_t end) {
    auto const arrays = tensor.piece(first, end - first);
    zero::kernel::measure(Sums{}, {}, scale, arrays, words.data());
    first = end;
  };
  for (std::size_t const cut : cuts) take(cut);
  take(tensor.p.size());
  return values_of(words);
}

/// Blocks of 32 elements in eight lanes, and their sums exactly.
template <class Of>
std::int64_t blocks(std::size_t count, Of const& of) {
  ExactSum sum;
  for (std::size_t first = 0; first < count; first += 32) {
    double lanes[8] = {};
    for (std::size_t i = first; i < std::min(count, first + 32); ++i) {
      double const volatile square = of(i) * of(i);
      lanes[i % 8] += square;
    }
    sum.add(((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
            ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])));
  }
  return std::bit_cast<std::int64_t>(sum.value());
}

template <class M, class G>
void check() {
  for (std::size_t const count : {0u, 1u, 15u, 16u, 31u, 33u, 1024u, 1025u, 5003u}) {
    CAPTURE(count);
    Tensor<M, G> tensor(count);
    auto const before = tensor.p;
    Words const wanted{
        blocks(count, [&](std::size_t i) { return static_cast<double>(tensor.p[i]); }),
        blocks(count, [&](std::size_t i) {
          M const g = static_cast<M>(static_cast<float>(tensor.g[i])) * M(0.25);
          return static_cast<double>(g + (tensor.state[i] + tensor.state[i]));
        })};
    CHECK(measured(tensor, {}) == wanted);
    std::vector<std::size_t> cuts;
    for (std::size_t at = 32; at < count; at += 32 * (1 + at % 7)) cuts.push_back(at);
    CHECK(measured(tensor, cuts) == wanted);
    CHECK(tensor.p == before);
  }
}

}  // namespace

TEST_CASE("every element counts once, in blocks of 32 from a tensor's first one") {
  check<float, float>();
  check<float, zero::bf16>();
  check<double, float>();
}

TEST_CASE("elements that are coded count as what they stand for") {
  namespace kernel = zero::kernel;
  std::size_t const count = 3001;
  Tensor<float, float> whole(count);
  std::vector<kernel::HalfAwayBf16> parameters(count);
  std::vector<kernel::RestOfMaster> rests(count);
  kernel::split_masters(
      &parameters[0].value, &rests[0].bits, static_cast<float const*>(whole.p.data()), count);
  Words words(2 * ExactSum::word_count);
  zero::UpdateArrays<kernel::RestOfMaster, kernel::HalfAwayBf16, float, float, 1> const arrays{
      rests.data(), parameters.data(), whole.g.data(), {whole.state.data()}, count};
  kernel::measure(Sums{}, {}, 0.25, arrays, words.data());
  CHECK(values_of(words) == measured(whole, {}));
}

TEST_CASE("what is not finite shows in the sum of its number alone") {
  Tensor<float, float> tensor(100);
  tensor.g[77] = std::numeric_limits<float>::infinity();
  Words words(2 * ExactSum::word_count);
  zero::kernel::measure(Sums{}, {}, 1., tensor.piece(0, 100), words.data());
  CHECK(ExactSum::finite(words.data()));
  CHECK(!ExactSum::finite(words.data() + ExactSum::word_count));
}

}  // namespace measure_test
