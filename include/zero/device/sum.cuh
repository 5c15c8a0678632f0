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

template <class T, class Acc, std::size_t width, class Source>
inline __device__ Vector<T, width> sum_vector(Source const& source, int ranks, std::size_t at) {
  // More would only be more code.
  constexpr int abreast = sizeof(T) == sizeof(Acc) ? 4 : 2;
  return sum_vectors<Acc, width, abreast>(
      [&](int rank) { return load<width>(source.template of<T>(rank), at); }, ranks);
}
template <class T, class Acc, std::size_t width, class Source>
__device__ inline void sum_vector(SumTargets const& targets,
                                  Source const& source,
                                  int ranks,
                                  std::size_t at) {
  Vector<T, width> const result = sum_vector<T, Acc, width>(source, ranks, at);
  ZERO_UNROLL(1)
  for (int i = 0; i < targets.count; ++i) store<width>(static_cast<T*>(targets.at[i]), at, result);
}
/// The same where some arrays are not aligned: those are accessed element by element, and ranks are
/// read one after the other.
template <class T, class Acc, std::size_t width, class Source>
__device__ inline void sum_apart(
    SumTargets const& targets, Source const& source, int ranks, std::size_t at, SumOrder aligned) {
  Vector<T, width> const result = sum_vectors<Acc, width, 1>(
      [&](int rank) { return load<width>(source.template of<T>(rank), at, aligned(rank)); }, ranks);
  ZERO_UNROLL(1)
  for (int i = 0; i < targets.count; ++i) {
    store<width>(static_cast<T*>(targets.at[i]), at, aligned(ranks + i), result);
  }
}

/// Not a cub::DeviceTransform: how many arrays it reads and writes is known when it is compiled,
/// and how many ranks there are is not.
///
/// Four blocks of threads at once are asked for: left to itself, the compiler spills registers to
/// have more of them.
template <class T, class Acc, class Source>
static __global__ void __launch_bounds__(block_threads, 4) sum_ranks(SumTargets const targets,
                                                                     Source const source,
                                                                     int ranks,
                                                                     std::size_t first,
                                                                     std::size_t count,
                                                                     Cut const cut) {
  constexpr std::size_t width = access_bytes / sizeof(T);
  std::size_t const thread = grid_thread();
  std::size_t const threads = grid_threads();
  // Two loops, so that the usual one need not tell arrays apart.
  if (cut.apart == 0) {
    for (std::size_t i = thread; i < cut.vectors; i += threads) {
      sum_vector<T, Acc, width>(targets, source, ranks, first + cut.head + i * width);
    }
  } else if constexpr (Source::anywhere) {
    SumOrder const aligned{cut.apart};
    for (std::size_t i = thread; i < cut.vectors; i += threads) {
      sum_apart<T, Acc, width>(targets, source, ranks, first + cut.head + i * width, aligned);
    }
  }
  std::size_t const inside = cut.vectors * width;
  for (std::size_t i = thread; i < count - inside; i += threads) {
    std::size_t const at = i < cut.head ? i : i + inside;
    sum_vector<T, Acc, 1>(targets, source, ranks, first + at);
  }
}

/// sum_ranks of whole blocks to one target, with the squares of the results added on the way: in
/// the order of add_squares, from registers. Buffers are aligned to 16 bytes at `first`.
///
/// Two blocks of threads at once are asked for, as above.
template <class T, class Acc, class Source>
static __global__ void __launch_bounds__(block_threads, 2) sum_ranks_and_square(T* target,
                                                                                Source const source,
                                                                                int ranks,
                                                                                std::size_t first,
                                                                                std::size_t count,
                                                                                ExactSum* squares) {
  constexpr std::size_t width = access_bytes / sizeof(T);
  add_blocks(squares, count, [&](std::size_t i, unsigned thread, auto const& transpose) {
    auto const sum = [&](std::size_t at) {
      std::size_t const place = first + i * block + at;
      Vector<T, width> const result = sum_vector<T, Acc, width>(source, ranks, place);
      store<width>(target, place, result);
      return result;
    };
    return block_squares<T, team / width>(sum, thread, transpose);
  });
}

}  // namespace kernels

namespace detail {

template <class T, class Acc, class Source>
[[nodiscard]] cudaError_t sum_typed(Queue const& queue,
                                    SumTargets const& targets,
                                    Source const& source,
                                    int ranks,
                                    std::size_t first,
                                    std::size_t count) {
  if (count == 0) return cudaSuccess;
  constexpr std::size_t width = access_bytes / sizeof(T);
  auto const met = [&](Cutter cutter) {
    for (int rank = 0; rank < ranks; ++rank) cutter.meet(source.template of<T>(rank) + first);
    for (int i = 0; i < targets.count; ++i) cutter.meet(static_cast<T*>(targets.at[i]) + first);
    return cutter;
  };
  Cut cut = met(met(Cutter(width)).where_most()).cut(count);
  if (!Source::anywhere && cut.apart != 0) cut = {};
  std::size_t const items = cut.vectors != 0 ? cut.vectors : count;
  return try_launch_over<kernels::sum_ranks<T, Acc, Source>>(
      queue, items, targets, source, ranks, first, count, cut);
}

/// Whole blocks are squared on the way; what is left of them, and what is not aligned, in a pass.
template <class T, class Acc, class Source>
[[nodiscard]] cudaError_t sum_and_square(Queue const& queue,
                                         SumTargets const& targets,
                                         Source const& source,
                                         int ranks,
                                         std::size_t first,
                                         std::size_t count,
                                         SumSquares const& squares) {
  T* const target = static_cast<T*>(targets.at[0]);
  bool aligned = is_aligned(target + first);
  for (int rank = 0; rank < ranks; ++rank) {
    aligned = aligned && is_aligned(source.template of<T>(rank) + first);
  }
  // Doubles are squared in a pass: see add_squares.
  constexpr bool on_the_way = sizeof(T) < sizeof(double);
  std::size_t const whole = on_the_way && aligned ? squares.count / block * block : 0;
  cudaError_t status = cudaSuccess;
  if constexpr (on_the_way) {
    if (whole != 0) {
      status = try_launch_over<kernels::sum_ranks_and_square<T, Acc, Source>>(
          queue, blocks_of(whole) * team, target, source, ranks, first, whole, squares.sum);
    }
  }
  if (status != cudaSuccess) return status;
  status = sum_typed<T, Acc>(queue, targets, source, ranks, first + whole, count - whole);
  if (status != cudaSuccess) return status;
  return try_add_squares(queue, squares.sum, target + first + whole, squares.count - whole);
}

}  // namespace detail

/// Enqueues targets[.][i] = source(0)[i] + source(1)[i] + ... in this order, for i in
/// [first, first + count): added in `accumulate` and rounded to `dtype` once, with the bits of
/// kernel::sum_ranks, but for which NaN a sum is. A target may be one of the sources, with the same
/// first element. For callers that have made the queue's device current; never throws.
/// @par Shapes  every buffer [first + count] at least; `source` a BufferList or BufferBlocks
/// @par Cost    reads ranks * count elements and writes count to each target, in accesses of 16
///   bytes where most buffers are aligned; element by element only to those of a list that are not
///   aligned there, but to all if blocks and targets are not aligned together. Squares take a pass
///   of their own only of doubles, of what is no whole block, and where buffers are not aligned to
///   16 bytes
/// @param squares  where to add those of the results, with one target
/// @return cudaErrorInvalidValue for a pair of types that kernel::sum_function has no kernel for
template <class Source>
[[nodiscard]] cudaError_t try_sum_ranks(Queue const& queue,
                                        DType dtype,
                                        DType accumulate,
                                        SumTargets const& targets,
                                        Source const& source,
                                        int ranks,
                                        std::size_t first,
                                        std::size_t count,
                                        SumSquares const& squares = {}) {
  auto const sum = [&]<class T, class Acc>(T, Acc) {
    if constexpr (kernel::has_squares(dtype_of<T>)) {
      if (squares.sum != nullptr) {
        return detail::sum_and_square<T, Acc>(queue, targets, source, ranks, first, count, squares);
      }
    }
    return detail::sum_typed<T, Acc>(queue, targets, source, ranks, first, count);
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
    for (ExactSum* const squares : {static_cast<ExactSum*>(nullptr), &nowhere}) {
      SumSquares const wanted{squares, count};
      cudaError_t const status =
          try_sum_ranks(queue, dtype, accumulate, targets, source, 0, 0, count, wanted);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

}  // namespace zero::inline ZERO_NAMESPACE::device
