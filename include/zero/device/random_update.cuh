/// @file
/// The update station on a device, where elements are rounded stochastically.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/update.cuh"
#include "zero/device/vector.hpp"
#include "zero/kernel/coded_element.hpp"
#include "zero/kernel/random_bits.hpp"
#include "zero/kernel/random_key.hpp"
#include "zero/kernel/rounding.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Arrays, and where their random bits are from.
template <class M, class P, class G, class S, std::size_t K>
struct KeyedArrays : UpdateArrays<M, P, G, S, K> {
  std::uint64_t keys[K + 1];  ///< of masters, then of each state
  RandomOrigin from;
};

/// The random numbers of masters, then of each state, in one update.
template <std::size_t K>
struct RandomStreams {
  /// Seed and count are read on the device.
  template <class Arrays>
  __device__ RandomStreams(Arrays const& arrays, StepTerms const& terms)
      : first(arrays.from.first) {
    std::uint64_t const seed = *arrays.from.seed;
    auto const count = static_cast<std::uint64_t>(terms.step);
    for (std::size_t k = 0; k <= K; ++k) {
      of[k] = kernel::random_stream(arrays.keys[k], seed, count);
    }
  }

  kernel::RandomStream of[K + 1];
  std::uint64_t first;  ///< number of the arrays' first element
};

/// The random bits of elements [at, at + width), whose numbers begin at a multiple of `width`.
template <std::size_t width, class M, class S, std::size_t K>
struct RandomDraw {
  __device__ RandomDraw(RandomStreams<K> const& from, std::size_t at) {
    if constexpr (kernel::RandomElement<M>) {
      of[0] = kernel::random_bits_from<typename M::Random, width>(from.of[0], from.first + at);
    }
    if constexpr (kernel::RandomElement<S>) {
      for (std::size_t k = 1; k <= K; ++k) {
        of[k] = kernel::random_bits_from<typename S::Random, width>(from.of[k], from.first + at);
      }
    }
  }
  template <std::size_t count>
  __device__ void operator()(std::size_t j, std::uint32_t (&random)[count]) const {
    if constexpr (kernel::RandomElement<M>) {
      random[0] = kernel::bits_of_block<typename M::Random>(of[0], j);
    }
    if constexpr (kernel::RandomElement<S>) {
      for (std::size_t k = 1; k <= K; ++k) {
        random[k] = kernel::bits_of_block<typename S::Random>(of[k], j);
      }
    }
  }

  kernel::RandomBlock of[K + 1];
};

/// Vectors that a thread updates, one after the other.
inline constexpr unsigned random_vectors = 4;
/// And those that a block does.
inline constexpr unsigned random_tile = random_vectors * block_threads;

/// As `update`, of vectors that begin at multiples of their elements in the tensor, so that a block
/// of random bits serves a whole one. A thread updates one after the other: random bits take so
/// many instructions that one vector in each thread's registers keeps the memory busy, and code for
/// two would not fit the caches for instructions.
template <std::size_t width, class R, class M, class P, class G, class S, std::size_t K>
ZERO_KERNEL update_with_random_bits(
    R const rule,
    StepTerms const* __restrict__ terms,
    BasicStepScalars<kernel::RealOf<M, G, S>> const* __restrict__ computed,
    KeyedArrays<M, P, G, S, K> const arrays,
    Cut const cut) {
  std::size_t const tile = static_cast<std::size_t>(blockIdx.x) * random_tile;
  std::size_t const end = (std::min)(tile + random_tile, cut.vectors);
  std::size_t vector = tile + threadIdx.x;
  UpdateInput<width, M, P, G, S, K> input;
  auto const load = [&] {
    with_order(
        cut, [&](UpdateOrder aligned) { input.load(arrays, cut.head + vector * width, aligned); });
  };
  if (vector < end) load();
  // As in `update`.
  __syncwarp();
  auto const gradient_scale = static_cast<kernel::RealOf<M, G, S>>(terms->gradient_scale);
  BasicStepScalars<kernel::RealOf<M, G, S>> const scalars = *computed;
  RandomStreams<K> const streams(arrays, *terms);
  if (terms->skipped != 0) return;

  ZERO_UNROLL(1)
  while (vector < end) {
    std::size_t const at = cut.head + vector * width;
    RandomDraw<width, M, S, K> const draw(streams, at);
    auto const published = update_vector(rule, scalars, gradient_scale, input, draw);
    with_order(cut, [&](UpdateOrder aligned) { input.store(arrays, at, aligned, published); });
    vector += block_threads;
    if (vector < end) load();
  }
  update_singles(arrays, cut, width, [&](auto& single, std::size_t at) {
    RandomDraw<1, M, S, K> const draw(streams, at);
    return update_vector(rule, scalars, gradient_scale, single, draw);
  });
}

}  // namespace kernels

/// Enqueues the update of arrays in which some elements are rounded stochastically, as the other
/// `update` does where none is. Random bits are those of the update that `terms->step` counts,
/// which is read on the device, as is the seed: the host's bits, wherever arrays begin in memory
/// and in their tensor, in a captured step as well.
/// @par Cost  one pass, in accesses of 16 bytes to the widest arrays; element by element to those
///            that are not aligned where the tensor has a multiple of as many elements. A step that
///            is skipped reads one vector for each thread, and writes nothing
template <Rule R, class M, class P, class G, class S, std::size_t K>
void update(Queue const& queue,
            R const& rule,
            StepTerms const* terms,
            BasicStepScalars<kernel::RealOf<M, G, S>> const* scalars,
            RandomUpdateArrays<M, P, G, S, K> const& arrays) {
  static_assert(kernel::LoneElement<M> && kernel::LoneElement<S>,
                "zero: elements that share a scale are updated in CodedUpdateArrays");
  constexpr std::size_t width = kernels::width_of<M, P, G, S>;
  kernels::KeyedArrays<M, P, G, S, K> keyed{arrays, {}, arrays.random};
  for (std::size_t k = 0; k <= K; ++k) {
    keyed.keys[k] = kernel::random_key(arrays.random.key, k);
  }
  auto const past = static_cast<std::size_t>(arrays.random.first % width);
  Cutter const cutter(width, (width - past) % width);
  kernels::enqueue_update<R>(queue, arrays, cutter, [&](Cut const& cut) {
    return try_launch_tiles<kernels::update_with_random_bits<width, R, M, P, G, S, K>>(
        queue, 1, cut.vectors, kernels::random_tile, rule, terms, scalars, keyed, cut);
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::device
