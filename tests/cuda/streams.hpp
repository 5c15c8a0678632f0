/// @file
/// A stream for each rank, on the devices there are.
#pragma once

#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

#include <vector>

/// Ranks take turns on the devices.
struct Streams {
  explicit Streams(int ranks) {
    int devices = 1;
    zero::device::check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    for (int rank = 0; rank < ranks; ++rank) {
      zero::device::Scope const scope(rank % devices);
      handles.emplace_back();
      zero::device::check(cudaStreamCreateWithFlags(&handles.back(), cudaStreamNonBlocking),
                          "cudaStreamCreateWithFlags");
      spaces.emplace_back(rank % devices, handles.back());
    }
  }
  Streams(Streams const&) = delete;
  Streams& operator=(Streams const&) = delete;
  ~Streams() {
    for (cudaStream_t const stream : handles) cudaStreamDestroy(stream);
  }
  std::vector<cudaStream_t> handles;
  std::vector<zero::space::Cuda> spaces;
};
