/// @file
/// Sums over ranks on a device: one kernel that reads all ranks' buffers, in rank order.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/device/buffers.hpp"
#include "zero/device/element.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/squares.hpp"
#include "zero/device/vector.hpp"
#include "zero/kernel/norm.hpp"
#include "zero/layout/placement.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Which arrays are aligned at the vectors of a cut: sources, then targets.
struct SumOrder {
  std::uint32_t apart;

  [[nodiscard]] __device__ bool operator()(int array) const {
    return (apart >> (array < 31 ? array : 31) & 1u) == 0;
  }
};

/// Ranks whose elements a thread asks for at once.
inline constexpr int ranks_abreast = 4;
/// The same if their sums are squared on the way: those in doubles take twice the registers.
template <class Acc>
inline constexpr int squared_abreast = sizeof(Acc) == sizeof(double) ? 2 : ranks_abreast;

template <class T, class Acc, std::size_t width, class Source>
__device__ inline void sum_vector(
    SumTargets const& targets, unsigned range, Source const& source, int ranks, std::size_t at) {
  Vector<T, width> result[1];
  sum_vectors<Acc, ranks_abreast>(
      [&](int rank, std::size_t) { return load<width>(source.template of<T>(rank), at); },
      ranks,
      result);
  ZERO_UNROLL(1)
  for (int i = 0; i < targets.count; ++i) store<width>(targets.of<T>(range, i), at, result[0]);
}
/// The same where some arrays are not aligned: those are accessed element by element, and ranks are
/// read one after the other.
template <class T, class Acc, std::size_t width, class Source>
__device__ inline void sum_apart(SumTargets const& targets,
                                 unsigned range,
                                 Source const& source,
                                 int ranks,
                                 std::size_t at,
                                 SumOrder aligned) {
  Vector<T, width> result[1];
  sum_vectors<Acc, 1>(
      [&](int rank, std::size_t) {
        return load<width>(source.template of<T>(rank), at, aligned(rank));
      },
      ranks,
      result);
  ZERO_UNROLL(1)
  for (int i = 0; i < targets.count; ++i) {
    store<width>(targets.of<T>(range, i), at, aligned(ranks + i), result[0]);
  }
}

/// Not a cub::DeviceTransform: how many arrays it reads and writes is known when it is compiled,
/// and how many ranks there are is not. A thread adds one vector.
///
/// Four blocks of threads at once are asked for: left to itself, the compiler spills registers to
/// have more of them.
template <class T, class Acc, class Source>
static __global__ void __launch_bounds__(block_threads, 4) sum_ranks(
    SumTargets const targets, Source const source, int ranks, std::size_t count, Cut const cut) {
  constexpr std::size_t width = access_bytes / sizeof(T);
  GridPart const part = grid_part(static_cast<unsigned>(targets.ranges));
  unsigned const range = part.group;
  std::size_t const i = part.thread;
  std::size_t const first = targets.first[range];
  if (i < cut.vectors) {
    std::size_t const at = first + cut.head + i * width;
    // Two ways, so that the usual one need not tell arrays apart.
    if (cut.apart == 0) {
      sum_vector<T, Acc, width>(targets, range, source, ranks, at);
    } else if constexpr (Source::anywhere) {
      sum_apart<T, Acc, width>(targets, range, source, ranks, at, SumOrder{cut.apart});
    }
  }
  std::size_t const inside = cut.vectors * width;
  if (i < count - inside) {
    std::size_t const at = i < cut.head ? i : i + inside;
    sum_vector<T, Acc, 1>(targets, range, source, ranks, first + at);
  }
}

/// Where the squares of each range of a sum are added, as far as they are added on the way.
struct RangeSquares {
  ExactSum* at[max_listed_ranks] = {};       ///< of each range
  std::size_t count[max_listed_ranks] = {};  ///< elements from the first on: whole blocks
};

/// sum_ranks of whole blocks to one target for each range, with the squares of the results added on
/// the way: in the order of add_squares, from registers. Buffers are aligned to 16 bytes.
///
/// Nothing is stored before everything of a step has been asked for: sums may be in place, so that
/// the compiler moves no load up over a store.
///
/// Two blocks of threads at once are asked for, as above.
template <class T, class Acc, class Source>
static __global__ void __launch_bounds__(block_threads, 2) sum_ranks_and_square(
    SumTargets const targets, Source const source, int ranks, RangeSquares const squares) {
  constexpr std::size_t width = access_bytes / sizeof(T);
  constexpr unsigned vectors = vectors_of<T, stage>;  // as many as there are registers for
  GridPart const part = grid_part(static_cast<unsigned>(targets.ranges));
  if (squares.count[part.group] == 0) return;
  T* const target = targets.of<T>(part.group);
  std::size_t const first = targets.first[part.group];
  auto const block_sum = [&](std::size_t i, unsigned thread, T* shared, auto const& wait) {
    auto const sums = [&](auto& results, auto const& place) {
      std::size_t const begin = first + i * block;
      sum_vectors<Acc, squared_abreast<Acc>>(
          [&](int rank, std::size_t k) {
            return load<width>(source.template of<T>(rank),
                               begin + place(static_cast<unsigned>(k)));
          },
          ranks,
          results);
      ZERO_UNROLL(vectors)
      for (unsigned k = 0; k < vectors; ++k) store<width>(target, begin + place(k), results[k]);
    };
    return block_squares<vectors>(sums, thread, shared, wait);
  };
  add_blocks<T>(part, squares.at[part.group], squares.count[part.group], block_sum);
}

}  // namespace kernels

namespace detail {

/// One range of several.
[[nodiscard]] inline SumTargets range_of(SumTargets const& targets, int range, std::size_t past) {
  SumTargets one{.count = targets.count};
  std::copy_n(targets.at + range * targets.count, targets.count, one.at);
  one.first[0] = targets.first[range] + past;
  return one;
}

/// Calls sum(targets, count) for all ranges at once, without the first `past[range]` elements of
/// each: for one after the other where they have different lengths then.
template <class Sum>
[[nodiscard]] cudaError_t by_length(SumTargets const& targets,
                                    std::size_t count,
                                    std::size_t const (&past)[max_listed_ranks],
                                    Sum const& sum) {
  if (std::count(past, past + targets.ranges, past[0]) == targets.ranges) {
    SumTargets all = targets;
    for (int range = 0; range < targets.ranges; ++range) all.first[range] += past[0];
    return sum(all, count - past[0]);
  }
  cudaError_t status = cudaSuccess;
  for (int range = 0; range < targets.ranges && status == cudaSuccess; ++range) {
    status = sum(range_of(targets, range, past[range]), count - past[range]);
  }
  return status;
}

template <class T, class Acc, class Source>
[[nodiscard]] cudaError_t sum_typed(Queue const& queue,
                                    SumTargets const& targets,
                                    Source const& source,
                                    int ranks,
                                    std::size_t count) {
  if (count == 0) return cudaSuccess;
  constexpr std::size_t width = access_bytes / sizeof(T);
  auto const cut_of = [&](int range) {
    std::size_t const first = targets.first[range];
    auto const met = [&](Cutter cutter) {
      for (int rank = 0; rank < ranks; ++rank) cutter.meet(source.template of<T>(rank) + first);
      for (int i = 0; i < targets.count; ++i) {
        cutter.meet(targets.of<T>(static_cast<unsigned>(range), i) + first);
      }
      return cutter;
    };
    Cut const cut = met(met(Cutter(width)).where_most()).cut(count);
    return !Source::anywhere && cut.apart != 0 ? Cut{} : cut;
  };
  Cut const cut = cut_of(0);
  bool alike = true;
  for (int range = 1; range < targets.ranges; ++range) alike = alike && cut_of(range) == cut;
  if (!alike) {
    cudaError_t status = cudaSuccess;
    for (int range = 0; range < targets.ranges && status == cudaSuccess; ++range) {
      status = sum_typed<T, Acc>(queue, range_of(targets, range, 0), source, ranks, count);
    }
    return status;
  }
  std::size_t const items = cut.vectors != 0 ? cut.vectors : count;
  return try_launch_tiles<kernels::sum_ranks<T, Acc, Source>>(queue,
                                                              static_cast<unsigned>(targets.ranges),
                                                              items,
                                                              block_threads,
                                                              targets,
                                                              source,
                                                              ranks,
                                                              count,
                                                              cut);
}

/// Whole blocks are squared on the way; what is left of them, and what is not aligned, in a pass.
template <class T, class Acc, class Source>
[[nodiscard]] cudaError_t sum_and_square(Queue const& queue,
                                         SumTargets const& targets,
                                         Source const& source,
                                         int ranks,
                                         std::size_t count,
                                         SumSquares const* squares) {
  kernels::RangeSquares whole;
  std::size_t most = 0;
  // Doubles are squared in a pass: hardly anybody trains in them, and kernels take time to load.
  if constexpr (sizeof(T) < sizeof(double)) {
    for (int range = 0; range < targets.ranges; ++range) {
      std::size_t const first = targets.first[range];
      bool aligned = is_aligned(targets.of<T>(static_cast<unsigned>(range)) + first);
      for (int rank = 0; rank < ranks; ++rank) {
        aligned = aligned && is_aligned(source.template of<T>(rank) + first);
      }
      if (!aligned || squares[range].sum == nullptr) continue;
      whole.at[range] = squares[range].sum;
      whole.count[range] = squares[range].count / block * block;
      most = (std::max)(most, whole.count[range]);
    }
    if (most != 0) {
      cudaError_t const status = try_launch_groups<kernels::sum_ranks_and_square<T, Acc, Source>>(
          queue,
          static_cast<unsigned>(targets.ranges),
          blocks_of(most) * team,
          targets,
          source,
          ranks,
          whole);
      if (status != cudaSuccess) return status;
    }
  }
  cudaError_t status =
      by_length(targets, count, whole.count, [&](SumTargets const& rest, std::size_t length) {
        return sum_typed<T, Acc>(queue, rest, source, ranks, length);
      });
  for (int range = 0; range < targets.ranges && status == cudaSuccess; ++range) {
    if (squares[range].sum == nullptr) continue;
    std::size_t const done = whole.count[range];
    T const* const results = targets.of<T>(static_cast<unsigned>(range));
    status = try_add_squares(queue,
                             squares[range].sum,
                             results + targets.first[range] + done,
                             squares[range].count - done);
  }
  return status;
}

}  // namespace detail

/// Enqueues, for i in [first, first + count) of each range of targets,
/// targets[.][i] = source(0)[i] + source(1)[i] + ... in this order: added in `accumulate` and
/// rounded to `dtype` once, with the bits of kernel::sum_ranks, but for which NaN a sum is. A
/// target may be one of the sources, with the same first element. For callers that have made the
/// queue's device current; never throws.
/// @par Shapes  every buffer [first + count] at least; `source` a BufferList or BufferBlocks
/// @par Cost    one launch for all ranges that begin alike in a vector, as those of an optimizer
/// do.
///   Reads ranks * count elements and writes count to each target of a range, in accesses of 16
///   bytes where most buffers are aligned; element by element only to those of a list that are not
///   aligned there, but to all if blocks and targets are not aligned together. Squares take a pass
///   of their own only of doubles, of what is no whole block, and where buffers are not aligned to
///   16 bytes
/// @param squares  of each range, which then has one target: where to add those of the results;
///                 null: nobody asks
/// @return cudaErrorInvalidValue for a pair of types that kernel::sum_function has no kernel for
template <class Source>
[[nodiscard]] cudaError_t try_sum_ranks(Queue const& queue,
                                        DType dtype,
                                        DType accumulate,
                                        SumTargets const& targets,
                                        Source const& source,
                                        int ranks,
                                        std::size_t count,
                                        SumSquares const* squares = nullptr) {
  auto const sum = [&]<class T, class Acc>(T, Acc) {
    if constexpr (kernel::has_squares(dtype_of<T>)) {
      if (squares != nullptr) {
        return detail::sum_and_square<T, Acc>(queue, targets, source, ranks, count, squares);
      }
    }
    return detail::sum_typed<T, Acc>(queue, targets, source, ranks, count);
  };
  bool const wide = accumulate == DType::f64;
  if (dtype == DType::f32 && wide) return sum(float{}, double{});
  if (dtype == DType::f64 && wide) return sum(double{}, double{});
  if (dtype == DType::i32 && accumulate == dtype) return sum(std::int32_t{}, std::int32_t{});
  if (dtype == DType::i64 && accumulate == dtype) return sum(std::int64_t{}, std::int64_t{});
  if (accumulate != DType::f32) return cudaErrorInvalidValue;
  if (dtype == DType::f32) return sum(float{}, float{});
  if (dtype == DType::bf16) return sum(bf16{}, float{});
  if (dtype == DType::f16) return sum(fp16{}, float{});
  return cudaErrorInvalidValue;
}

/// Has all kernels loaded that `try_sum_ranks` may launch, and enqueues nothing. For callers that
/// have made the queue's device current; never throws.
/// @param source  any of that type
/// @par Cost  once about 10 microseconds for each of some 17 kernels; may wait for the device
template <class Source>
[[nodiscard]] cudaError_t try_load_sums(Queue queue, Source const& source) {
  queue.loads = true;
  static constexpr DType pairs[][2] = {{DType::f32, DType::f32},
                                       {DType::f32, DType::f64},
                                       {DType::f64, DType::f64},
                                       {DType::bf16, DType::f32},
                                       {DType::f16, DType::f32},
                                       {DType::i32, DType::i32},
                                       {DType::i64, DType::i64}};
  // Whole blocks, which are squared on the way, and one element more, which is not.
  constexpr std::size_t count = block + 1;
  alignas(access_bytes) ExactSum nowhere;
  SumTargets targets;
  targets.at[0] = &nowhere;
  for (auto const& [dtype, accumulate] : pairs) {
    SumSquares const squares{&nowhere, count};
    for (SumSquares const* const wanted : {static_cast<SumSquares const*>(nullptr), &squares}) {
      cudaError_t const status =
          try_sum_ranks(queue, dtype, accumulate, targets, source, 0, count, wanted);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

}  // namespace zero::inline ZERO_NAMESPACE::device
