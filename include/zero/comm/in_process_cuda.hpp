/// @file
/// Threads as ranks over the memory of one or several GPUs.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/device_threads/device_engine.hpp"
#include "zero/comm/device_threads/device_group.hpp"
#include "zero/device/buffers.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/turns.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// The CUDA runtime as DeviceGroup asks for it.
///
/// `sum` and `gather` launch kernels: a translation unit in which they are called is compiled by
/// nvcc.
struct CudaApi {
  using Space = space::Cuda;
  using Stream = cudaStream_t;
  using Event = cudaEvent_t;
  static constexpr int max_ranks = device::max_listed_ranks;

  [[nodiscard]] bool together(Space const& a, Space const& b) const noexcept {
    return a.device() == b.device();
  }
  /// Gives the device of `own` access to the memory of that of `peer`. For memory of cudaMalloc;
  /// pools of cudaMallocAsync have accesses of their own.
  [[nodiscard]] char const* connect(Space const& own, Space const& peer) const {
    if (together(own, peer)) return nullptr;
    int possible = 0;
    char const* const problem =
        status(cudaDeviceCanAccessPeer(&possible, own.device(), peer.device()));
    if (problem != nullptr) return problem;
    if (possible == 0) return "two of the devices have no access to one another's memory";
    return on(own, [&] {
      cudaError_t const answer = cudaDeviceEnablePeerAccess(peer.device(), 0);
      if (answer != cudaErrorPeerAccessAlreadyEnabled) return answer;
      static_cast<void>(cudaGetLastError());
      return cudaSuccess;
    });
  }
  /// The space, with calls that take turns.
  [[nodiscard]] Space taking(Space const& space, std::shared_ptr<device::Turns> turns) const {
    return space.taking(std::move(turns));
  }
  [[nodiscard]] Stream stream(Space const& space) const { return space.stream(); }
  [[nodiscard]] char const* open(Space const& space, Stream& stream) const {
    return on(space, [&] { return device::create_communication_stream(&stream); });
  }
  [[nodiscard]] char const* create(Space const& space, Event& event) const {
    return on(space, [&] { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming); });
  }
  [[nodiscard]] char const* record(Space const& space, Stream stream, Event event) const {
    return on(space, [&] { return cudaEventRecord(event, stream); });
  }
  [[nodiscard]] char const* wait(Space const& space, Stream stream, Event event) const {
    return on(space, [&] { return cudaStreamWaitEvent(stream, event, 0); });
  }
  [[nodiscard]] char const* copy(
      Space const& space, Stream stream, void* to, void const* from, std::size_t bytes) const {
    return on(space, [&] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream); });
  }
  template <class Of>
  [[nodiscard]] char const* load(Of const& space) const;
  template <class Sum>
  [[nodiscard]] char const* sum(Space const& space, Stream stream, Sum const& sum) const;
  template <class Gather>
  [[nodiscard]] char const* gather(Space const& space, Stream stream, Gather const& gather) const;
  void close(Stream stream) const { device::ignore(cudaStreamDestroy(stream)); }
  void destroy(Event event) const { device::ignore(cudaEventDestroy(event)); }

 private:
  /// Null, or what the runtime says is wrong.
  [[nodiscard]] static char const* status(cudaError_t answer) noexcept {
    device::ignore(answer);
    return answer == cudaSuccess ? nullptr : cudaGetErrorString(answer);
  }
  template <class Call>
  [[nodiscard]] static char const* on(Space const& space, Call const& call) noexcept {
    std::shared_ptr<device::Turns> const& turns = space.queue().turns;
    device::Turns::Turn const turn = turns == nullptr ? device::Turns::Turn() : turns->take();
    device::TryScope const scope(space.device());
    return status(scope.status() == cudaSuccess ? call() : scope.status());
  }
};

}  // namespace detail

/// Threads as ranks over device memory: `InProcessCuda::group(spaces)` makes a rank of each
/// `space::Cuda`. Four ranks on one GPU are four streams of it; ranks on several GPUs of a process
/// read each other's memory, which must be from cudaMalloc (`device::MallocAllocator`) or from a
/// pool that they have access to.
using InProcessCuda = DeviceGroup<detail::CudaApi>;

static_assert(NamingCommunicator<InProcessCuda>);

}  // namespace zero::inline ZERO_NAMESPACE

#if defined(__CUDACC__)
#include "zero/device/gather.cuh"
#include "zero/device/sum.cuh"

namespace zero::inline ZERO_NAMESPACE::detail {

template <class Of>
char const* CudaApi::load(Of const& space) const {
  return on(space, [&] {
    cudaError_t const sums = device::try_load_sums(space.queue(), device::BufferList{});
    return sums == cudaSuccess ? device::try_load_gathers(space.queue()) : sums;
  });
}

template <class Sum>
char const* CudaApi::sum(Space const& space, Stream stream, Sum const& sum) const {
  device::SumTargets targets{.count = sum.target_count, .ranges = sum.range_count};
  std::copy_n(sum.targets, sum.target_count * sum.range_count, targets.at);
  std::copy_n(sum.first, sum.range_count, targets.first);
  device::BufferList sources;
  std::copy_n(sum.sources, sum.source_count, sources.at);
  device::Queue queue = space.queue();
  queue.stream = stream;
  return on(space, [&] {
    return device::try_sum_ranks(queue,
                                 sum.dtype,
                                 sum.accumulate,
                                 targets,
                                 sources,
                                 sum.source_count,
                                 sum.count,
                                 sum.squares);
  });
}

template <class Gather>
char const* CudaApi::gather(Space const& space, Stream stream, Gather const& gather) const {
  device::GatherTargets targets{.count = gather.target_count};
  std::copy_n(gather.targets, gather.target_count, targets.at);
  std::copy_n(gather.skip, gather.target_count, targets.skip);
  device::BufferList sources;
  std::copy_n(gather.sources, gather.source_count, sources.at);
  device::Queue queue = space.queue();
  queue.stream = stream;
  return on(space, [&] {
    return device::try_gather_ranks(
        queue, targets, sources, gather.source_count, gather.first, gather.bytes);
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
#endif
