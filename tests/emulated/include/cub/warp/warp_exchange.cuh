/// @file
/// What device/norm.cuh asks of CUB: a stand-in for the toolkit's header of this name.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

namespace cub {

enum WarpExchangeAlgorithm { WARP_EXCHANGE_SMEM, WARP_EXCHANGE_SHUFFLE };

template <class T, int items, int threads, WarpExchangeAlgorithm>
class WarpExchange {
  static_assert(items == threads, "as with shuffles");

 public:
  struct TempStorage {};
  explicit WarpExchange(TempStorage&) {}

  /// Item k of thread i becomes item i of thread k.
  void BlockedToStriped(T const (&in)[items], T (&out)[items]) {
    unsigned const thread = threadIdx.x % threads;
    unsigned const mask = ((1u << threads) - 1u) << (threadIdx.x % 32 / threads * threads);
    T given[items];
    std::copy(in, in + items, given);
    for (unsigned distance = 0; distance < threads; ++distance) {
      unsigned const other = thread ^ distance;
      out[other] = __shfl_xor_sync(mask, given[other], static_cast<int>(distance), threads);
    }
  }
};

}  // namespace cub
