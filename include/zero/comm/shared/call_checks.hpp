/// @file
/// What every host communicator asks of a collective before it moves data.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// True if the operation adds elements, so that `accumulate` matters.
[[nodiscard]] constexpr bool is_reduction(Op op) noexcept {
  return op == Op::reduce_scatter || op == Op::all_reduce;
}

/// Elements of the send buffer of `op` in a group of `size` ranks.
[[nodiscard]] constexpr std::size_t send_count(Collective const& op, int size) noexcept {
  bool const whole = op.op == Op::reduce_scatter || op.op == Op::all_to_all;
  return whole ? op.count * static_cast<std::size_t>(size) : op.count;
}

/// Elements of the receive buffer of `op` in a group of `size` ranks.
[[nodiscard]] constexpr std::size_t receive_count(Collective const& op, int size) noexcept {
  bool const whole = op.op == Op::all_gather || op.op == Op::all_to_all;
  return whole ? op.count * static_cast<std::size_t>(size) : op.count;
}

/// Bytes of the larger of a rank's buffers, all of which it reads or writes: where those do not fit
/// the cache, they leave no room there for a smaller result either.
[[nodiscard]] constexpr std::size_t larger_bytes(Collective const& op, int size) noexcept {
  return (std::max)(send_count(op, size), receive_count(op, size)) * size_of(op.dtype);
}

/// True if two ranks' calls are the same collective; their buffers are their own business.
[[nodiscard]] constexpr bool is_same_call(Collective const& a, Collective const& b) noexcept {
  return a.op == b.op && a.dtype == b.dtype && a.accumulate == b.accumulate && a.count == b.count &&
         a.root == b.root && a.bucket == b.bucket;
}

/// One collective in words, such as "reduce_scatter of 512 bf16 summed in fp32, bucket 3".
ZERO_APART [[nodiscard]] ZERO_COLD std::string describe(Collective const& op);

/// What distinguishes two calls that `describe` may print alike.
ZERO_APART [[nodiscard]] char const* difference(Collective const& a, Collective const& b);

[[nodiscard]] inline bool is_aligned(void const* address, std::size_t bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

/// True if the two buffers share memory in a way the operation's in-place rule does not allow.
ZERO_APART [[nodiscard]] bool overlaps_badly(Collective const& op, int rank, int size) noexcept;

/// @param group  what the group is called
/// @throws Error (invalid_argument) if this rank alone can tell that the call is wrong
ZERO_APART void check_arguments(Collective const& op,
                                int rank,
                                int size,
                                std::string_view group = {});

/// @param problem  what is wrong with the call
/// @throws Error (invalid_argument) always
ZERO_APART [[noreturn]] ZERO_COLD void refuse_call(char const* problem,
                                                   Collective const& op,
                                                   int rank,
                                                   std::string_view group);

#if ZERO_BODIES

ZERO_BODY std::string describe(Collective const& op) {
  Message const summed{" summed in ", name(op.accumulate)};
  Message const from{" from rank ", op.root};
  Message const bucket{", bucket ", op.bucket};
  return Message({name(op.op),
                  " of ",
                  op.count,
                  " ",
                  name(op.dtype),
                  is_reduction(op.op) ? std::string_view(summed.text()) : std::string_view(),
                  op.op == Op::broadcast ? std::string_view(from.text()) : std::string_view(),
                  op.bucket >= 0 ? std::string_view(bucket.text()) : ", no bucket"})
      .text();
}

ZERO_BODY bool overlaps_badly(Collective const& op, int rank, int size) noexcept {
  auto const send = reinterpret_cast<std::uintptr_t>(op.send);
  auto const recv = reinterpret_cast<std::uintptr_t>(op.recv);
  std::size_t const element = size_of(op.dtype);
  std::size_t const send_bytes = send_count(op, size) * element;
  std::size_t const recv_bytes = receive_count(op, size) * element;
  if (send + send_bytes <= recv || recv + recv_bytes <= send) return false;
  std::size_t const own = static_cast<std::size_t>(rank) * op.block_bytes();
  switch (op.op) {
    case Op::reduce_scatter: return recv != send + own;
    case Op::all_gather: return send != recv + own;
    case Op::all_to_all: return true;
    case Op::all_reduce: return recv != send;
    case Op::broadcast: return rank == op.root && recv != send;
  }
  return true;
}

ZERO_BODY void check_arguments(Collective const& op, int rank, int size, std::string_view group) {
  char const* problem = nullptr;
  bool const sends = op.op != Op::broadcast || rank == op.root;
  if (static_cast<int>(op.op) >= op_count) {
    problem = "no such operation";
  } else if (size_of(op.dtype) == 0) {
    problem = "no such element type";
  } else if (is_reduction(op.op) && kernel::sum_function(op.dtype, op.accumulate) == nullptr) {
    problem = "elements cannot be summed in this type";
  } else if (op.squares != nullptr &&
             (op.op != Op::reduce_scatter || !kernel::has_squares(op.dtype) ||
              op.squares_count > op.count)) {
    problem = "squares are of a reduce_scatter's result of fp32 or 16 bits";
  } else if (op.op == Op::broadcast && (op.root < 0 || op.root >= size)) {
    problem = "the root is not a rank of the group";
  } else if (op.count > SIZE_MAX / size_of(op.dtype) / static_cast<std::size_t>(size)) {
    problem = "the buffers do not fit in memory";
  } else if (op.count != 0) {
    if (op.recv == nullptr || (sends && op.send == nullptr)) {
      problem = "a buffer is null";
    } else if (!is_aligned(op.recv, size_of(op.dtype)) ||
               (sends && !is_aligned(op.send, size_of(op.dtype)))) {
      problem = "a buffer is not aligned to its elements";
    } else if (sends && overlaps_badly(op, rank, size)) {
      problem = "the buffers overlap, but not as the in-place rule says";
    }
  }
  if (problem != nullptr) refuse_call(problem, op, rank, group);
}

ZERO_BODY void refuse_call(char const* problem,
                           Collective const& op,
                           int rank,
                           std::string_view group) {
  fail(ErrorKind::invalid_argument,
       {problem, " (", describe(op), ")"},
       {.rank = rank,
        .operation = std::string(name(op.op)),
        .bucket = op.bucket,
        .group = std::string(group)});
}

ZERO_BODY char const* difference(Collective const& a, Collective const& b) {
  if (a.op != b.op) return "operation";
  if (a.dtype != b.dtype) return "dtype";
  if (a.count != b.count) return "count";
  if (a.bucket != b.bucket) return "bucket";
  if (a.accumulate != b.accumulate) return "accumulate dtype";
  return "root";
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
