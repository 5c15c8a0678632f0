/// @file
/// The exact sum of squares: the host's bits, however many threads add.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/device/addends.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/squares.hpp"
#include "zero/layout/placement.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

/// Blocks of the norm in so many elements, the last one shorter.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::size_t blocks_of(std::size_t count) noexcept {
  return count / block + (count % block != 0 ? 1 : 0);
}

/// True for memory that is accessed 16 bytes at once.
[[nodiscard]] ZERO_HOST_DEVICE inline bool is_aligned(void const* memory) noexcept {
  return reinterpret_cast<std::uintptr_t>(memory) % access_bytes == 0;
}

namespace kernels {

/// Adds to sums what the first threads of each team have added up, each for a sum of its own. For
/// all threads of a block.
/// @tparam sums     such threads of a team
/// @param of_warps  memory that the block shares
/// @param put       put(word, part) adds to a word of this thread's sum
template <unsigned sums, class Put>
__device__ inline void put_together(Addends (&of_warps)[block_threads / warp_threads][sums],
                                    Addends& added,
                                    Put const& put) {
  constexpr unsigned warp = warp_threads;
  unsigned const thread = threadIdx.x % team;
  unsigned const lane = threadIdx.x % warp;
  ZERO_UNROLL(1)
  for (unsigned distance = warp / 2; distance >= team; distance /= 2) {
    Addends const other = added.of_another(
        [distance](auto value) { return __shfl_xor_sync(~0u, value, static_cast<int>(distance)); });
    if (lane < distance && thread < sums) added.add(other, put);
  }
  if (lane < sums) of_warps[threadIdx.x / warp][lane] = added;
  __syncthreads();
  if (threadIdx.x >= sums) return;
  ZERO_UNROLL(1)
  for (unsigned w = 1; w < blockDim.x / warp; ++w) added.add(of_warps[w][threadIdx.x], put);
  added.put_out(put);
}

/// Adds squares(block, thread, shared, wait), a lane's sum of squares, over the lanes of each block
/// of the norm, and the blocks exactly. For all threads of a part of a grid. A team shares a stage
/// of elements of type T: `wait` waits for its threads.
///
/// Not CUB's reductions: cub::WarpReduce adds lanes in another order than MemorySpace says, and
/// cub::DeviceReduce promises none.
///
/// Eight threads share a block of the norm. The first of them keeps what it has added in registers;
/// threads, then warps, put theirs together at the end, so that few additions meet in the sum
/// itself: additions of 64 bits in a block's memory would be loops of compare-and-swap.
template <class T, class Squares>
__device__ inline void add_blocks(GridPart const& grid,
                                  ExactSum* sum,
                                  std::size_t count,
                                  Squares const& squares) {
  constexpr unsigned warp = warp_threads;
  constexpr std::size_t staged = stage_stride * sizeof(T) / access_bytes;
  __shared__ Addends of_warps[block_threads / warp][1];
  __shared__ Vector<float, 4> of_teams[block_threads / team][staged];

  unsigned const thread = threadIdx.x % team;
  unsigned const mask = 0xffu << (threadIdx.x % warp / team * team);
  auto const exchange = [mask](double value, unsigned distance) {
    return __shfl_xor_sync(mask, value, static_cast<int>(distance), static_cast<int>(team));
  };
  auto* const shared = reinterpret_cast<T*>(of_teams[threadIdx.x / team]);
  auto const wait = [mask] { __syncwarp(mask); };
  auto* const total = reinterpret_cast<unsigned long long*>(sum->accumulators());
  // Two's complement: the same addition as of signed words.
  auto const put = [total](unsigned word, std::int64_t part) {
    atomicAdd(total + word, static_cast<unsigned long long>(part));
  };
  Addends added{};
  for (std::size_t i = grid.thread / team; i < blocks_of(count); i += grid.threads / team) {
    double const whole = team_sum(squares(i, thread, shared, wait), exchange);
    if (thread == 0) added.add(ExactSum::addend(whole), put);
  }

  put_together(of_warps, added, put);
}

template <class T>
ZERO_KERNEL add_squares(ExactSum* sum, T const* x, std::size_t count) {
  bool const aligned = is_aligned(x);
  auto const squares = [&](std::size_t i, unsigned thread, T* shared, auto const& wait) {
    T const* const begin = x + i * block;
    std::size_t const rest = count - i * block;
    if (rest < block || !aligned) {
      return lane_squares(begin, rest < block ? rest : block, thread);
    }
    // All of a thread's share of the block is asked for at once, of doubles half of it.
    constexpr unsigned vectors = (std::min)(vectors_of<T, block>, 16u);
    auto const read = [&](auto& loaded, auto const& place) {
      ZERO_UNROLL(vectors)
      for (unsigned k = 0; k < vectors; ++k) {
        loaded[k] = load<access_bytes / sizeof(T)>(begin, place(k));
      }
    };
    return block_squares<vectors>(read, thread, shared, wait);
  };
  add_blocks<T>(grid_part(1), sum, count, squares);
}

}  // namespace kernels

/// add_squares for callers that have made the queue's device current; never throws.
template <class T>
[[nodiscard]] cudaError_t try_add_squares(Queue const& queue,
                                          ExactSum* sum,
                                          T const* x,
                                          std::size_t count) {
  if (count == 0) return cudaSuccess;
  return try_launch_over<kernels::add_squares<T>>(queue, blocks_of(count) * team, sum, x, count);
}

/// Enqueues sum += Σ x[i]², as MemorySpace says. At most ExactSum::max_pending blocks may be added
/// before the sum is normalized: more elements than any device holds.
/// @par Cost  one pass, in loads of 16 bytes where `x` is aligned to them
template <class T>
void add_squares(Queue const& queue, ExactSum* sum, T const* x, std::size_t count) {
  QueueScope const scope(queue);
  check(try_add_squares(queue, sum, x, count), "add_squares");
}

}  // namespace zero::inline ZERO_NAMESPACE::device
