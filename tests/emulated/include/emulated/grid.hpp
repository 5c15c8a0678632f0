/// @file
/// The threads of a grid, one after the other on a thread of the host.
#pragma once

#include <functional>

// What the compiler knows of itself in device code. Shared memory is one block's, and blocks follow
// one another.
#define __host__
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local

struct uint3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

struct dim3 {
  unsigned x;
  unsigned y;
  unsigned z;
  constexpr dim3(unsigned xs = 1, unsigned ys = 1, unsigned zs = 1) : x(xs), y(ys), z(zs) {}
};

inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;

namespace emulated {

/// Calls `thread` once for each thread of the grid, which is one-dimensional.
///
/// A thread runs until it waits for others, and a warp until all of its threads wait for other
/// warps or have ended, so that a missing wait shows every time; threads and warps take turns from
/// the first to the last in even blocks, and from the last to the first in odd ones. A program
/// whose threads wait for one another for ever, or disagree about who takes part, is aborted with a
/// message.
void run_grid(dim3 grid, dim3 block, std::function<void()> const& thread);

/// Waits for all threads of the block that have not ended.
void synchronize_block();

/// `value` of the thread whose number in the warp differs by `distance`, once all of `mask` are
/// here.
double exchange(unsigned mask, double value, unsigned distance, unsigned width);

}  // namespace emulated

inline void __syncthreads() { emulated::synchronize_block(); }
inline void __syncwarp(unsigned mask = ~0u) {
  static_cast<void>(emulated::exchange(mask, 0., 1, 32));
}

inline double __shfl_xor_sync(unsigned mask, double value, int distance, int width = 32) {
  return emulated::exchange(
      mask, value, static_cast<unsigned>(distance), static_cast<unsigned>(width));
}

inline float __shfl_xor_sync(unsigned mask, float value, int distance, int width = 32) {
  return static_cast<float>(__shfl_xor_sync(mask, static_cast<double>(value), distance, width));
}

inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int distance, int width = 32) {
  return static_cast<unsigned>(__shfl_xor_sync(mask, static_cast<double>(value), distance, width));
}

/// No two threads of a grid ever run at once.
inline unsigned long long atomicAdd(unsigned long long* word, unsigned long long value) {
  unsigned long long const before = *word;
  *word += value;
  return before;
}
inline unsigned long long atomicMin(unsigned long long* word, unsigned long long value) {
  unsigned long long const before = *word;
  *word = value < before ? value : before;
  return before;
}
