/// @file
/// A stream for each rank, on the devices there are, and memory of them.
#pragma once

#include "support/standard.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/device/allocators.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

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

/// For tests of one space.
struct OneStream {
  Streams streams{1};
  zero::space::Cuda const& space = streams.spaces[0];
};

/// Elements in memory of a space's device, from and to the host.
template <class T, class Allocator = zero::device::MallocAllocator>
class Array {
 public:
  Array(zero::space::Cuda space,
        std::vector<T> const& values,
        std::size_t offset,
        Allocator const& allocator)
      : space_(std::move(space)),
        allocator_(allocator),
        bytes_((values.size() + offset) * sizeof(T)),
        memory_(static_cast<T*>(allocator_.allocate(bytes_, 256))),
        offset_(offset),
        count_(values.size()) {
    space_.upload(data(), values.data(), count_ * sizeof(T));
  }
  Array(zero::space::Cuda const& space, std::vector<T> const& values)
      : Array(space, values, 0, Allocator(space.device())) {}
  ~Array() { allocator_.deallocate(memory_, bytes_, 256); }
  Array(Array const&) = delete;
  Array& operator=(Array const&) = delete;
  [[nodiscard]] T* data() const { return memory_ + offset_; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> result(count_);
    space_.download(result.data(), data(), count_ * sizeof(T));
    return result;
  }

 private:
  zero::space::Cuda space_;
  Allocator allocator_;
  std::size_t bytes_;
  T* memory_;
  std::size_t offset_;
  std::size_t count_;
};

/// Threads as ranks, each with its stream and memory of its device.
struct DeviceWorld {
  template <class Body>
  static void run(int ranks, Body const& body) {
    Streams const streams(ranks);
    zero::run_ranks(zero::InProcessCuda::group(streams.spaces), [&](zero::InProcessCuda& comm) {
      body(comm, zero::device::MallocAllocator(comm.space().device()));
    });
  }
};
