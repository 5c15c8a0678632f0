// The other ways to write kernels that a benchmark measures: they have the library's bits, or their
// times would say nothing.
#include "../../bench/cuda/variants.cuh"

#include "cuda/streams.hpp"
#include "support/test.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/space/cuda.hpp"
#include "zero/space/host.hpp"

namespace variants_test {
namespace {

namespace ways = bench::variants;
using zero::bf16;
using zero::ExactSum;
using zero::device::Queue;

template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> result(count);
  for (T& value : result) {
    float const mantissa = static_cast<float>(random() >> 8) / 16777216.f - 0.5f;
    value = static_cast<T>(std::ldexp(mantissa, static_cast<int>(random() % 24) - 16));
  }
  return result;
}

template <class T>
bool same(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

bool same(ExactSum a, ExactSum b) {
  return std::equal(std::begin(a.words()), std::end(a.words()), std::begin(b.words()));
}

/// All that an update leaves, on memory that begins `offset` elements behind an aligned place.
template <class P>
struct Trained {
  Trained(zero::space::Cuda const& space, std::size_t count, std::size_t offset)
      : at(offset),
        master(space, numbers<float>(count + offset, 1)),
        m(space, std::vector<float>(count + offset)),
        v(space, std::vector<float>(count + offset)),
        gradient(space, numbers<P>(count + offset, 2)),
        parameter(space, std::vector<P>(count + offset)) {
    arrays = {.master = master.data() + at,
              .gradient = gradient.data() + at,
              .state = {m.data() + at, v.data() + at},
              .count = count};
    if constexpr (!std::is_same_v<P, float>) arrays.parameter = parameter.data() + at;
  }
  bool operator==(Trained const& other) const {
    return same(master.values(), other.master.values()) && same(m.values(), other.m.values()) &&
           same(v.values(), other.v.values()) && same(parameter.values(), other.parameter.values());
  }

  std::size_t at;
  Array<float> master, m, v;
  Array<P> gradient, parameter;
  zero::UpdateArrays<float, P, P, float, 2> arrays;
};

template <class P>
void check_updates(zero::space::Cuda const& space) {
  zero::AdamW const rule{};
  zero::StepTerms const terms{.step = 3, .learning_rate = 1e-2, .gradient_scale = 0.25};
  auto const scalars = rule.scalars(terms.step, 1e-2f, 0.5f, 1.f);
  Array<zero::StepTerms> const device_terms(space, {terms});
  Array<zero::StepScalars> const device_scalars(space, {scalars});
  auto const check = [&](std::size_t count, std::size_t offset, auto const& run) {
    Trained<P> expected(space, count, offset);
    space.update(rule, device_terms.data(), device_scalars.data(), expected.arrays);
    Trained<P> found(space, count, offset);
    ways::Update<P> work{rule, device_terms.data(), device_scalars.data(), found.arrays, {}};
    work.cut = ways::cut_at_vectors(work.arrays);
    CHECK(run(work) == cudaSuccess);
    CHECK(found == expected);
  };
  // Whole vectors.
  for (std::size_t const count : {4u, 4096u, 30'000u}) {
    check(count, 0, [&](auto const& w) { return ways::try_update_resident(space.queue(), w); });
    check(count, 0, [&](auto const& w) { return ways::try_update_tiles<1>(space.queue(), w); });
    check(count, 0, [&](auto const& w) { return ways::try_update_tiles<4>(space.queue(), w); });
  }
}

TEST_CASE_FIXTURE(OneStream, "variants: updates") {
  check_updates<float>(space);
  check_updates<bf16>(space);
}

/// Runs `run(target, sources, sum)` over four ranks' elements; holds results and sum against the
/// host's.
template <class T, class Run>
void check_squares(zero::space::Cuda const& space, std::size_t count, Run const& run) {
  std::vector<T> const all = numbers<T>(4 * count, 3);
  Array<T> const device(space, all);
  Array<T> const target(space, std::vector<T>(count));
  Array<ExactSum> const sum(space, {ExactSum{}});
  std::vector<void const*> inputs;
  zero::device::BufferList list;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    inputs.push_back(all.data() + rank * count);
    list.at[rank] = device.data() + rank * count;
  }
  std::vector<T> expected(count);
  zero::kernel::sum_function(zero::dtype_of<T>, zero::DType::f32)(
      expected.data(), inputs.data(), 0, 4, count, zero::kernel::Store::cached);
  bool const sums = run(target.data(), list, sum.data());
  ExactSum squares;
  zero::space::Host::add_squares(&squares, sums ? expected.data() : all.data(), count);
  CHECK(same(sum.values()[0], squares));
  if (sums) CHECK(same(target.values(), expected));
}

TEST_CASE_FIXTURE(OneStream, "variants: the norm, and sums with it") {
  Queue const& queue = space.queue();
  for (std::size_t const count : {512u, 2048u, 20'480u}) {
    std::size_t const teams = count / zero::block * zero::device::team;
    std::size_t const warps = count / zero::block * zero::device::warp_threads;
    auto const norm = [&](auto const& launch) {
      check_squares<float>(space, count, [&](float*, auto const& list, ExactSum* sum) {
        CHECK(launch(static_cast<float const*>(list.at[0]), sum) == cudaSuccess);
        return false;
      });
    };
    norm([&](float const* x, ExactSum* sum) {
      return ways::try_full_blocks<ways::norm_by_teams<4, float>>(queue, teams, sum, x, count);
    });
    norm([&](float const* x, ExactSum* sum) {
      return zero::device::try_launch_over<ways::norm_by_teams<8, float>>(
          queue, teams, sum, x, count);
    });
    norm([&](float const* x, ExactSum* sum) {
      return ways::try_full_blocks<ways::norm_by_warps>(queue, warps, sum, x, count);
    });
    auto const at_once = [&](auto* to, auto const& list, ExactSum* sum) {
      using T = std::remove_pointer_t<decltype(to)>;
      CHECK(ways::try_full_blocks<ways::sum_and_square_at_once<T>>(
                queue, teams, to, list, sum, count) == cudaSuccess);
      return true;
    };
    check_squares<float>(space, count, at_once);
    check_squares<bf16>(space, count, at_once);
    check_squares<float>(space, count, [&](float* to, auto const& list, ExactSum* sum) {
      ways::Sources of{.at = {}, .target = to};
      for (int i = 0; i < 4; ++i) of.at[i] = static_cast<float const*>(list.at[i]);
      CHECK(ways::try_full_blocks<ways::sum_and_square_by_warps>(queue, warps, of, sum, count) ==
            cudaSuccess);
      return true;
    });
  }
}

}  // namespace
}  // namespace variants_test
