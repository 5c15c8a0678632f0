/// @file
/// The communicator between GPUs: NCCL itself behind `Nccl<>`.
///
/// The only header that includes NCCL's. It compiles with a host compiler; ordered sums need a
/// kernel, so a program that starts collectives has one translation unit that nvcc compiles
/// and that says `template struct zero::nccl::Kernels<>;`, or starts all of them in such units.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/communicator.hpp"
#include "zero/device/outside_capture.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/status.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3),
              "zero::Nccl needs NCCL 2.27.3, the first with ncclCommWindowRegister");

namespace zero::inline ZERO_NAMESPACE {

namespace nccl {

/// The library's own kernels beside NCCL's. Defined where nvcc compiles.
template <class = void>
struct Kernels {
  /// Enqueues an ordered sum on a stream of `device`; of no elements, only has loaded what sums
  /// take.
  static Status sum(RankSum const& sum, int device, cudaStream_t stream);
};

}  // namespace nccl

namespace detail {

[[nodiscard]] inline nccl::Status nccl_status(ncclResult_t result) noexcept {
  if (result == ncclSuccess) return {};
  if (result < 0 || result > ncclInProgress) return {nccl::Result::internal_error, "unknown"};
  return {static_cast<nccl::Result>(result), ncclGetErrorString(result)};
}

[[nodiscard]] inline nccl::Status cuda_status(cudaError_t error) noexcept {
  if (error == cudaSuccess) return {};
  // "Not ready" is an error to the runtime, too, which would tell the next that asks for its last.
  device::ignore(error);
  if (error == cudaErrorNotReady) return {nccl::Result::in_progress};
  return {nccl::Result::unhandled_cuda_error, cudaGetErrorString(error)};
}

[[nodiscard]] constexpr ncclDataType_t nccl_type(DType type) noexcept {
  switch (type) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
  }
  return ncclNumTypes;
}

}  // namespace detail

namespace nccl {

/// NCCL and the CUDA runtime, call by call.
struct Library {
  using Comm = ncclComm_t;                                  ///< NCCL's communicator
  using UniqueId = ncclUniqueId;                            ///< what ranks find each other by
  using Window = ncclWindow_t;                              ///< a symmetric window
  using Stream = cudaStream_t;                              ///< CUDA's stream
  using Event = cudaEvent_t;                                ///< CUDA's event, without timing
  using Space = space::Cuda;                                ///< buffers are of a device
  static constexpr int header_version = NCCL_VERSION_CODE;  ///< of nccl.h

  /// ncclGetVersion.
  static Status version(int* out) { return of(ncclGetVersion(out)); }
  /// ncclGetUniqueId.
  static Status unique_id(UniqueId* id) { return of(ncclGetUniqueId(id)); }
  /// ncclCommInitRankConfig, non-blocking.
  static Status init(Comm* out, int size, UniqueId const& id, int rank, int max_ctas) {
    ncclConfig_t config = configured(max_ctas);
    return of(ncclCommInitRankConfig(out, size, id, rank, &config));
  }
  /// ncclCommSplit, sharing nothing.
  static Status split(Comm parent, int color, int key, Comm* out, int max_ctas) {
    ncclConfig_t config = configured(max_ctas);
    return begun(of(ncclCommSplit(parent, color, key, out, &config)));
  }
  /// ncclCommFinalize.
  static Status finalize(Comm comm) { return of(ncclCommFinalize(comm)); }
  /// ncclCommDestroy.
  static Status destroy(Comm comm) { return of(ncclCommDestroy(comm)); }
  /// ncclCommAbort.
  static Status abort(Comm comm) { return of(ncclCommAbort(comm)); }
  /// ncclCommRevoke, where NCCL has it: since 2.28.7.
  static Status revoke(Comm comm) {
#if NCCL_VERSION_CODE >= 22807
    return of(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
#else
    static_cast<void>(comm);
    return {Result::invalid_usage, "this NCCL cannot revoke"};
#endif
  }
  /// ncclCommGetAsyncError.
  static Status async_error(Comm comm, Result* out) {
    ncclResult_t state = ncclSuccess;
    Status const status = of(ncclCommGetAsyncError(comm, &state));
    *out = of(state).result;
    return status;
  }
  /// ncclGetLastError.
  static std::string_view last_error(Comm comm) {
    char const* const text = ncclGetLastError(comm);
    return text != nullptr ? std::string_view(text) : std::string_view();
  }
  /// ncclCommCount.
  static Status count(Comm comm, int* out) { return of(ncclCommCount(comm, out)); }
  /// ncclCommUserRank.
  static Status user_rank(Comm comm, int* out) { return of(ncclCommUserRank(comm, out)); }
  /// ncclCommCuDevice.
  static Status device(Comm comm, int* out) { return of(ncclCommCuDevice(comm, out)); }
  /// ncclGroupStart.
  static Status group_start() { return of(ncclGroupStart()); }
  /// ncclGroupEnd.
  static Status group_end() { return of(ncclGroupEnd()); }

  /// ncclReduceScatter, sums.
  static Status reduce_scatter(
      void const* send, void* recv, std::size_t n, DType type, Comm comm, Stream stream) {
    return of(ncclReduceScatter(send, recv, n, detail::nccl_type(type), ncclSum, comm, stream));
  }
  /// ncclAllGather.
  static Status all_gather(
      void const* send, void* recv, std::size_t n, DType type, Comm comm, Stream stream) {
    return of(ncclAllGather(send, recv, n, detail::nccl_type(type), comm, stream));
  }
  /// ncclAllReduce, sums.
  static Status all_reduce(
      void const* send, void* recv, std::size_t n, DType type, Comm comm, Stream stream) {
    return of(ncclAllReduce(send, recv, n, detail::nccl_type(type), ncclSum, comm, stream));
  }
  /// ncclBroadcast.
  static Status broadcast(
      void const* send, void* recv, std::size_t n, DType type, int root, Comm comm, Stream stream) {
    return of(ncclBroadcast(send, recv, n, detail::nccl_type(type), root, comm, stream));
  }
  /// ncclSend.
  static Status send(
      void const* data, std::size_t n, DType type, int peer, Comm comm, Stream stream) {
    return of(ncclSend(data, n, detail::nccl_type(type), peer, comm, stream));
  }
  /// ncclRecv.
  static Status recv(void* data, std::size_t n, DType type, int peer, Comm comm, Stream stream) {
    return of(ncclRecv(data, n, detail::nccl_type(type), peer, comm, stream));
  }
  /// One kernel of the library's on the current device, which is the communicator's.
  static Status sum_ranks(RankSum const& sum, Stream stream) {
    int current = 0;
    Status const status = current_device(&current);
    return status.ok() ? Kernels<>::sum(sum, current, stream) : status;
  }

  /// ncclMemAlloc: memory that windows can be made of.
  static Status mem_alloc(void** out, std::size_t bytes) { return of(ncclMemAlloc(out, bytes)); }
  /// ncclMemFree.
  static Status mem_free(void* memory) { return of(ncclMemFree(memory)); }
  /// cudaHostAlloc, mapped.
  static Status host_alloc(void** out, std::size_t bytes) {
    return of(cudaHostAlloc(out, bytes, cudaHostAllocMapped));
  }
  /// cudaFreeHost.
  static Status host_free(void* memory) { return of(cudaFreeHost(memory)); }
  /// Writes what a kernel may be reading.
  static void poke(std::int64_t* word, std::int64_t value) noexcept {
    std::atomic_ref<std::int64_t>(*word).store(value, std::memory_order_seq_cst);
  }
  /// ncclCommRegister.
  static Status register_buffer(Comm comm, void* memory, std::size_t bytes, void** handle) {
    return of(ncclCommRegister(comm, memory, bytes, handle));
  }
  /// ncclCommDeregister.
  static Status deregister_buffer(Comm comm, void* handle) {
    return of(ncclCommDeregister(comm, handle));
  }
  /// ncclCommWindowRegister, symmetric.
  static Status register_window(Comm comm, void* memory, std::size_t bytes, Window* out) {
    return begun(of(ncclCommWindowRegister(comm, memory, bytes, out, NCCL_WIN_COLL_SYMMETRIC)));
  }
  /// ncclCommWindowDeregister.
  static Status deregister_window(Comm comm, Window window) {
    return of(ncclCommWindowDeregister(comm, window));
  }
  /// A symmetric window is known by a structure on the device. Where NCCL cannot make one, it
  /// registers the memory on this rank only, says nothing, and gives a pointer of the host's.
  static Status is_symmetric(Window window, bool* out) {
    cudaPointerAttributes attributes{};
    Status const status = of(cudaPointerGetAttributes(&attributes, window));
    *out = attributes.type == cudaMemoryTypeDevice;
    return status;
  }
  /// cudaGetDevice.
  static Status current_device(int* out) { return of(cudaGetDevice(out)); }
  /// cudaSetDevice.
  static Status use_device(int device) { return of(cudaSetDevice(device)); }
  /// The handle that means another stream in each thread.
  static bool is_per_thread(Stream stream) noexcept { return stream == cudaStreamPerThread; }
  /// A stream of the highest priority that does not wait for the legacy default stream.
  static Status stream_create(Stream* out) { return of(device::create_communication_stream(out)); }
  /// cudaStreamDestroy.
  static Status stream_destroy(Stream stream) { return of(cudaStreamDestroy(stream)); }
  /// cudaStreamQuery.
  static Status stream_query(Stream stream) {
    device::OutsideCapture const outside;
    return of(cudaStreamQuery(stream));
  }
  /// cudaStreamWaitEvent.
  static Status stream_wait(Stream stream, Event event) {
    return of(cudaStreamWaitEvent(stream, event, 0));
  }
  /// cudaStreamIsCapturing.
  static Status capturing(Stream stream, bool* out) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    Status const result = of(cudaStreamIsCapturing(stream, &status));
    *out = status != cudaStreamCaptureStatusNone;
    return result;
  }
  /// An event without timing, which is cheaper.
  static Status event_create(Event* out) {
    return of(cudaEventCreateWithFlags(out, cudaEventDisableTiming));
  }
  /// cudaEventDestroy.
  static Status event_destroy(Event event) { return of(cudaEventDestroy(event)); }
  /// cudaEventRecord.
  static Status event_record(Event event, Stream stream) {
    return of(cudaEventRecord(event, stream));
  }
  /// cudaEventQuery.
  static Status event_query(Event event) {
    device::OutsideCapture const outside;
    return of(cudaEventQuery(event));
  }
  /// cudaMemcpyAsync from pageable memory, which is copied before it returns.
  static Status upload(void* to, void const* from, std::size_t bytes, Stream stream) {
    return of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  }
  /// cudaMemcpyAsync to pageable memory, which blocks for the copy alone on an idle stream.
  static Status download(void* to, void const* from, std::size_t bytes, Stream stream) {
    return of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
  }

 private:
  static Status of(ncclResult_t result) noexcept { return detail::nccl_status(result); }
  static Status of(cudaError_t error) noexcept { return detail::cuda_status(error); }

  /// Some calls say that they have succeeded when they have begun, and write their result from
  /// another thread when they are over.
  static Status begun(Status status) noexcept {
    return status.ok() ? Status{Result::in_progress} : status;
  }

  /// Never blocking, so that it can be aborted, and sharing nothing, so that the abort of one does
  /// not break the others.
  static ncclConfig_t configured(int max_ctas) noexcept {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0;
    if (max_ctas > 0) config.maxCTAs = max_ctas;
    return config;
  }
};

static_assert(Api<Library>);

}  // namespace nccl

/// One rank of a group of GPUs, one per process or thread. See BasicNccl.
///
///     zero::Nccl<> comm{zero::nccl::NewGroup<zero::nccl::Library>{id, rank, size, stream}, {}};
///     zero::ShardedOptimizer optimizer{comm, tensors, zero::Owned{comm.allocator()}};
template <class R = nccl::Ordered>
using Nccl = BasicNccl<nccl::Library, R>;

static_assert(NamingCommunicator<Nccl<>>);

}  // namespace zero::inline ZERO_NAMESPACE

#if defined(__CUDACC__)
#include "zero/device/sum.cuh"

namespace zero::inline ZERO_NAMESPACE::nccl {

/// Addresses of all blocks fit into the kernel's parameters up to a number of ranks; above it the
/// own block joins the others in staging memory first.
template <class T>
Status Kernels<T>::sum(RankSum const& sum, int device, cudaStream_t stream) {
  device::Queue queue{.device = device, .stream = stream};
  Status const asked = detail::cuda_status(
      cudaDeviceGetAttribute(&queue.multiprocessors, cudaDevAttrMultiProcessorCount, device));
  if (!asked.ok()) return asked;
  if (sum.count == 0) {
    // A pass over squares is a sum of one.
    cudaError_t status = device::try_load_sums(queue, device::BufferList{});
    if (status == cudaSuccess && sum.ranks > device::max_listed_ranks) {
      status = device::try_load_sums(queue, device::BufferBlocks{});
    }
    return detail::cuda_status(status);
  }
  std::size_t const stride = sum.stride * size_of(sum.dtype);
  device::SumTargets targets;
  targets.at[0] = sum.out;
  auto* const staged = static_cast<std::byte*>(const_cast<void*>(sum.staged));
  std::byte* const own = staged + static_cast<std::size_t>(sum.rank) * stride;
  SumSquares const* const squares = sum.squares.sum != nullptr ? &sum.squares : nullptr;
  auto const add = [&](auto const& sources) {
    return detail::cuda_status(device::try_sum_ranks(
        queue, sum.dtype, sum.accumulate, targets, sources, sum.ranks, sum.count, squares));
  };
  if (sum.ranks > device::max_listed_ranks) {
    std::size_t const bytes = sum.count * size_of(sum.dtype);
    Status const copied =
        detail::cuda_status(cudaMemcpyAsync(own, sum.own, bytes, cudaMemcpyDeviceToDevice, stream));
    return copied.ok() ? add(device::BufferBlocks{.first = staged, .stride = sum.stride}) : copied;
  }
  device::BufferList list;
  for (int rank = 0; rank < sum.ranks; ++rank) {
    list.at[rank] = staged + static_cast<std::size_t>(rank) * stride;
  }
  list.at[sum.rank] = sum.own;
  return add(list);
}

}  // namespace zero::inline ZERO_NAMESPACE::nccl
#endif
