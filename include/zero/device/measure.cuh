/// @file
/// What a rule measures of a tensor on a device: the host's sums, however many threads add.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/device/addends.hpp"
#include "zero/device/element.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/squares.hpp"
#include "zero/device/update.cuh"
#include "zero/device/vector.hpp"
#include "zero/kernel/rounding.hpp"
#include "zero/layout/placement.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Measures what `input` was loaded from.
template <std::size_t width, class R, class M, class P, class G, class S, std::size_t K>
inline __device__ void measure_vector(
    R const& rule,
    BasicStepScalars<kernel::RealOf<M, G, S>> const& scalars,
    kernel::RealOf<M, G, S> gradient_scale,
    UpdateInput<width, M, P, G, S, K> const& input,
    Vector<kernel::RealOf<M, G, S>, width> (&measured)[measured_numbers]) {
  using Input = UpdateInput<width, M, P, G, S, K>;
#pragma unroll
  for (std::size_t j = 0; j < width; ++j) {
    S state[Input::states];
    for (std::size_t k = 0; k < Input::states; ++k) state[k] = input.state[k].values[j];
    P parameter{};
    if constexpr (Input::reads_parameter) parameter = input.parameter.values[j];
    kernel::RealOf<M, G, S> numbers[measured_numbers];
    measure_element(rule,
                    scalars,
                    gradient_scale,
                    input.master.values[j],
                    parameter,
                    input.gradient.values[j],
                    state,
                    numbers);
    for (std::size_t n = 0; n < measured_numbers; ++n) measured[n].values[j] = numbers[n];
  }
}

/// Numbers from one block to the next: those that a warp reads at once are in different banks.
inline constexpr unsigned measured_stride = unsigned{tensor_alignment} + team;

/// A warp measures as many blocks of 32 elements at once as its threads have in a vector each. Its
/// teams then square one block each, in the order of the host. All threads of a team have the
/// block's sums, and the first of them keep one each.
template <std::size_t width, class R, class M, class P, class G, class S, std::size_t K>
ZERO_KERNEL measure(R const rule,
                    StepTerms const* __restrict__ terms,
                    BasicStepScalars<kernel::RealOf<M, G, S>> const* __restrict__ computed,
                    UpdateArrays<M, P, G, S, K> const arrays,
                    Cut const cut,
                    std::int64_t* words) {
  using Number = kernel::RealOf<M, G, S>;
  constexpr unsigned warp = warp_threads;
  constexpr std::size_t tile = warp * width;
  constexpr unsigned alignment = tensor_alignment;
  constexpr std::size_t blocks = tile / alignment;
  static_assert(blocks <= warp / team && measured_numbers <= team);
  __shared__ Addends of_warps[block_threads / warp][measured_numbers];
  __shared__ Vector<Number, width> staged[block_threads / warp][measured_numbers]
                                         [blocks * measured_stride / width];
  if (terms->skipped != 0) return;
  auto const gradient_scale = static_cast<Number>(terms->gradient_scale);
  BasicStepScalars<Number> const scalars = *computed;

  unsigned const lane = threadIdx.x % warp;
  unsigned const thread = lane % team;
  unsigned const own = lane * unsigned{width};
  unsigned const place = own / alignment * measured_stride + own % alignment;
  auto const numbers = [&](std::size_t n) {
    return reinterpret_cast<Number*>(staged[threadIdx.x / warp][n]);
  };
  unsigned const mask = 0xffu << (lane / team * team);
  auto const exchange = [mask](double value, unsigned distance) {
    return __shfl_xor_sync(mask, value, static_cast<int>(distance), static_cast<int>(team));
  };
  // As in `add_blocks`, but without keeping an address: registers are few while a rule computes.
  auto const put = [words](unsigned word, std::int64_t part) {
    unsigned const at = threadIdx.x % team * unsigned{ExactSum::word_count} + word;
    auto* const total = reinterpret_cast<unsigned long long*>(words) + at;
    atomicAdd(total, static_cast<unsigned long long>(part));
  };
  Addends added{};
  for (std::size_t first = grid_thread() / warp * tile; first < arrays.count;
       first += grid_threads() / warp * tile) {
    bool const whole = arrays.count - first >= tile;
    UpdateInput<width, M, P, G, S, K> input;
    if (whole) {
      with_order(cut, [&](UpdateOrder aligned) { input.load(arrays, first + own, aligned); });
    }
    __syncwarp();  // others may read what was there
    if (whole) {
      Vector<Number, width> measured[measured_numbers];
      measure_vector(rule, scalars, gradient_scale, input, measured);
      for (std::size_t n = 0; n < measured_numbers; ++n) share(numbers(n), place, measured[n]);
    } else {
      ZERO_UNROLL(1)
      for (std::size_t j = 0; j < width; ++j) {
        Vector<Number, 1> measured[measured_numbers]{};  // the square of 0 adds nothing
        if (first + own + j < arrays.count) {
          UpdateInput<1, M, P, G, S, K> single{};
          single.load(arrays, first + own + j, {});
          measure_vector(rule, scalars, gradient_scale, single, measured);
        }
        for (std::size_t n = 0; n < measured_numbers; ++n) {
          numbers(n)[place + j] = measured[n].values[0];
        }
      }
    }
    __syncwarp();
    if (std::size_t const b = lane / team; b < blocks) {
      double sum = 0.;
      ZERO_UNROLL(measured_numbers)
      for (std::size_t n = 0; n < measured_numbers; ++n) {
        Number const* const from = numbers(n) + b * measured_stride + thread;
        double lane_sum = 0.;
        ZERO_UNROLL(tensor_alignment / team)
        for (std::size_t i = 0; i < tensor_alignment; i += team) lane_sum += square(from[i]);
        double const all = team_sum(lane_sum, exchange);
        if (thread == n) sum = all;
      }
      if (thread < measured_numbers) added.add(ExactSum::addend(sum), put);
    }
  }
  put_together(of_warps, added, put);
}

}  // namespace kernels

/// Enqueues: adds what the rule measures of `arrays.count` elements to the words of accumulators,
/// one for each number; nothing happens where `terms->skipped`. Terms and scalars are read on the
/// device, as those of `update`.
///
/// The accumulators' values are those that kernel::measure makes on a host with a fused
/// multiply-add, with the exceptions that `update` names. Words are added to as integers, by less
/// than 2³³ for a block of 32 elements and not normalized: they hold tensors of 2³⁵ elements, on
/// all ranks together.
/// @par Cost  one pass, in accesses of 16 bytes to the widest arrays; element by element to those
///            that are not aligned at their first element. A step that is skipped reads its terms
template <MeasuringRule R, class M, class P, class G, class S, std::size_t K>
void measure(Queue const& queue,
             R const& rule,
             StepTerms const* terms,
             BasicStepScalars<kernel::RealOf<M, G, S>> const* scalars,
             UpdateArrays<M, P, G, S, K> const& arrays,
             std::int64_t* words) {
  static_assert(kernel::LoneElement<M> && kernel::LoneElement<S>,
                "zero: a device has no kernels yet for elements that share a scale");
  constexpr std::size_t width = kernels::width_of<M, P, G, S, kernel::RealOf<M, G, S>>;
  std::size_t const threads = (arrays.count + width - 1) / width;
  kernels::enqueue_update<R>(queue, arrays, Cutter(width, 0), [&](Cut const& cut) {
    return try_launch_over<kernels::measure<width, R, M, P, G, S, K>>(
        queue, threads, rule, terms, scalars, arrays, cut, words);
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::device
