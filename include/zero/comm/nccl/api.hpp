/// @file
/// What the NCCL communicator asks of NCCL and CUDA, as one type that tests can replace.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/exact_sum.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::nccl {

/// ncclResult_t, number by number. A CUDA error is an unhandled_cuda_error.
enum class Result : std::uint8_t {
  success,
  unhandled_cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress,
};

/// What messages call the result.
[[nodiscard]] constexpr std::string_view name(Result result) noexcept {
  switch (result) {
    case Result::success: return "success";
    case Result::unhandled_cuda_error: return "unhandled CUDA error";
    case Result::system_error: return "system error";
    case Result::internal_error: return "internal error";
    case Result::invalid_argument: return "invalid argument";
    case Result::invalid_usage: return "invalid usage";
    case Result::remote_error: return "remote error";
    case Result::in_progress: return "in progress";
  }
  return "unknown result";
}

/// How a call ended, with what the library behind it says about it.
struct Status {
  Result result = Result::success;  ///< in NCCL's terms
  char const* text = "";            ///< of static lifetime; may be empty

  /// Neither pending nor failed.
  [[nodiscard]] constexpr bool ok() const noexcept { return result == Result::success; }
  /// Accepted, but not over: poll.
  [[nodiscard]] constexpr bool pending() const noexcept { return result == Result::in_progress; }
  /// Failed.
  [[nodiscard]] constexpr bool failed() const noexcept { return !ok() && !pending(); }
};

/// The blocks of one ordered sum. `staged` holds one block of `count` elements per rank, in rank
/// order, `stride` elements after the one before; the block of `rank` is in `own` instead. `out`
/// may be `own`.
struct RankSum {
  DType dtype = DType::f32;       ///< of all blocks and of the result
  DType accumulate = DType::f32;  ///< in which they are added, rounded to `dtype` once
  void* out = nullptr;            ///< [count]
  void const* staged = nullptr;   ///< [ranks * stride]
  void const* own = nullptr;      ///< [count]
  int rank = 0;                   ///< whose staged block is not to be read
  int ranks = 1;                  ///< added in ascending order
  std::size_t count = 0;          ///< elements of a block
  std::size_t stride = 0;         ///< from one staged block to the next, in elements
  SumSquares squares{};           ///< of the result
};

/// NCCL and the CUDA runtime as static functions. `Library` in zero/comm/nccl.hpp is the real one.
///
/// Every function returns at once or after a bounded time, but for `abort` and `destroy`. Those
/// named as NCCL's or CUDA's do what these do. What `init` and `split` build never blocks, shares
/// nothing with its parent and has so many CTAs at most (0: NCCL's own). `event_query` and
/// `stream_query` say in_progress while there is work left. `capturing` tells whether a stream's
/// work goes to a graph. `sum_ranks` enqueues the sum of a `RankSum`, with the squares it asks for,
/// on the stream; of no elements, it enqueues nothing and gets ready what a later one takes.
/// `host_alloc` gives memory of the host that kernels read, and `poke` writes a number there while
/// they do. `download` is only called once the stream has nothing to do. `use_device` sets the
/// calling thread's device: the library calls it on threads of its own only. `is_symmetric` tells
/// whether a window is one, and not what NCCL gives where it has none.
template <class A>
concept Api = requires(typename A::Comm comm,
                       typename A::Stream stream,
                       typename A::Event event,
                       typename A::Window window,
                       typename A::UniqueId id,
                       Result result,
                       RankSum const& sum,
                       void* memory,
                       void const* data,
                       std::size_t n,
                       int number,
                       std::int64_t* word,
                       bool flag) {
  typename A::Space;
  { A::header_version } -> std::convertible_to<int>;
  { A::version(&number) } -> std::same_as<Status>;
  { A::unique_id(&id) } -> std::same_as<Status>;
  { A::init(&comm, number, id, number, number) } -> std::same_as<Status>;
  { A::split(comm, number, number, &comm, number) } -> std::same_as<Status>;
  { A::finalize(comm) } -> std::same_as<Status>;
  { A::destroy(comm) } -> std::same_as<Status>;
  { A::abort(comm) } -> std::same_as<Status>;
  { A::revoke(comm) } -> std::same_as<Status>;
  { A::async_error(comm, &result) } -> std::same_as<Status>;
  { A::last_error(comm) } -> std::convertible_to<std::string_view>;
  { A::count(comm, &number) } -> std::same_as<Status>;
  { A::user_rank(comm, &number) } -> std::same_as<Status>;
  { A::device(comm, &number) } -> std::same_as<Status>;
  { A::group_start() } -> std::same_as<Status>;
  { A::group_end() } -> std::same_as<Status>;
  { A::reduce_scatter(data, memory, n, DType{}, comm, stream) } -> std::same_as<Status>;
  { A::all_gather(data, memory, n, DType{}, comm, stream) } -> std::same_as<Status>;
  { A::all_reduce(data, memory, n, DType{}, comm, stream) } -> std::same_as<Status>;
  { A::broadcast(data, memory, n, DType{}, number, comm, stream) } -> std::same_as<Status>;
  { A::send(data, n, DType{}, number, comm, stream) } -> std::same_as<Status>;
  { A::recv(memory, n, DType{}, number, comm, stream) } -> std::same_as<Status>;
  { A::sum_ranks(sum, stream) } -> std::same_as<Status>;
  { A::mem_alloc(&memory, n) } -> std::same_as<Status>;
  { A::mem_free(memory) } -> std::same_as<Status>;
  { A::host_alloc(&memory, n) } -> std::same_as<Status>;
  { A::host_free(memory) } -> std::same_as<Status>;
  { A::poke(word, std::int64_t{}) } -> std::same_as<void>;
  { A::register_buffer(comm, memory, n, &memory) } -> std::same_as<Status>;
  { A::deregister_buffer(comm, memory) } -> std::same_as<Status>;
  { A::register_window(comm, memory, n, &window) } -> std::same_as<Status>;
  { A::deregister_window(comm, window) } -> std::same_as<Status>;
  { A::is_symmetric(window, &flag) } -> std::same_as<Status>;
  { A::current_device(&number) } -> std::same_as<Status>;
  { A::use_device(number) } -> std::same_as<Status>;
  { A::is_per_thread(stream) } -> std::same_as<bool>;
  { A::stream_create(&stream) } -> std::same_as<Status>;
  { A::stream_destroy(stream) } -> std::same_as<Status>;
  { A::stream_query(stream) } -> std::same_as<Status>;
  { A::stream_wait(stream, event) } -> std::same_as<Status>;
  { A::capturing(stream, &flag) } -> std::same_as<Status>;
  { A::event_create(&event) } -> std::same_as<Status>;
  { A::event_destroy(event) } -> std::same_as<Status>;
  { A::event_record(event, stream) } -> std::same_as<Status>;
  { A::event_query(event) } -> std::same_as<Status>;
  { A::upload(memory, data, n, stream) } -> std::same_as<Status>;
  { A::download(memory, data, n, stream) } -> std::same_as<Status>;
};

}  // namespace zero::inline ZERO_NAMESPACE::nccl
