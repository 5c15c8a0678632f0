/// @file
/// The communicator slot: one verb, described by data, that every backend and decorator speaks.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/space.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// The equal-count collectives a backend offers.
enum class Op : std::uint8_t { reduce_scatter, all_gather, all_to_all, all_reduce, broadcast };

/// One collective, as data: what a schedule is made of and what decorators compare and count.
///
/// @par Shapes  `count` is the number of elements of one rank's block, N the world size:
///   | op             | send             | recv             | in place when                   |
///   |----------------|------------------|------------------|---------------------------------|
///   | reduce_scatter | [N * count]      | [count]          | recv == send + rank * count     |
///   | all_gather     | [count]          | [N * count]      | send == recv + rank * count     |
///   | all_to_all     | [N * count]      | [N * count]      | never                           |
///   | all_reduce     | [count]          | [count]          | recv == send                    |
///   | broadcast      | [count] on root  | [count]          | recv == send                    |
/// Any other overlap is a caller's mistake. Reductions are sums: averages belong in the update,
/// where 1/N is applied in fp32 instead of being rounded to the wire's dtype.
struct Collective {
  Op op = Op::all_gather;         ///< what is done
  DType dtype = DType::f32;       ///< type of the elements in both buffers
  DType accumulate = DType::f32;  ///< type in which sums are added, rounded to `dtype` once
  std::size_t count = 0;          ///< elements of one rank's block
  void const* send = nullptr;     ///< read; as many blocks as the table says
  void* recv = nullptr;           ///< written; as many blocks as the table says
  int root = 0;                   ///< broadcast only
  int bucket = -1;  ///< the bucket that travels, for error messages; negative for control traffic
  /// Of a reduce_scatter of fp32 or 16-bit types on a `SquaringCommunicator`: where to add this
  /// rank's squares, in the memory of the space; null if nobody asks. Read by nobody until `wait`.
  ExactSum* squares = nullptr;
  std::size_t squares_count = 0;  ///< squares of `recv[0, squares_count)` are added

  /// Bytes of one rank's block.
  [[nodiscard]] ZERO_ALWAYS_INLINE constexpr std::size_t block_bytes() const noexcept {
    return count * size_of(dtype);
  }
};

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE {

/// Number of operations: the values of Op are [0, op_count).
inline constexpr int op_count = 5;

/// What messages call the operation.
[[nodiscard]] constexpr std::string_view name(Op op) noexcept {
  switch (op) {
    case Op::reduce_scatter: return "reduce_scatter";
    case Op::all_gather: return "all_gather";
    case Op::all_to_all: return "all_to_all";
    case Op::all_reduce: return "all_reduce";
    case Op::broadcast: return "broadcast";
  }
  return "unknown";
}

/// Elements a rank sends in one collective by the algorithms the paper's volumes assume
/// (ring or direct exchange): N-1 blocks, and two passes of one N-th for an all-reduce.
[[nodiscard]] constexpr std::uint64_t elements_sent(Op op, std::uint64_t count, int size) noexcept {
  auto const peers = static_cast<std::uint64_t>(size) - 1;
  if (op == Op::broadcast) return peers == 0 ? 0 : count;
  if (op == Op::all_reduce) {
    auto const ranks = static_cast<std::uint64_t>(size);
    return 2 * ((count + ranks - 1) / ranks) * peers;
  }
  return count * peers;
}

/// A communicator that says which memory its buffers are in, and on which queue of work: where
/// `Space{}` does not.
template <class C>
concept OwnSpace = requires(C const& comm) {
  { comm.space() } -> std::convertible_to<typename C::Space>;
};

/// A group of ranks that move data together.
///
/// `start` begins a collective and may return before it is done; `wait` blocks until its result is
/// in `recv` AND `send` may be overwritten. Several collectives may be under way at once; all ranks
/// start the same ones in the same order, and may wait for them in any order. A ticket that is
/// destroyed without being waited for leaves its collective unfinished: the communicator must then
/// be discarded. A default-constructed ticket is already done.
///
/// `Space` is a `MemorySpace`: buffers lie in its memory. Over a space that queues its work,
/// `start` takes its place in the queue, and `wait` may return before the collective is done: all
/// that is queued from then on comes after it.
///
/// `kernel::sum_function` (zero/kernel/reduce.hpp) has the sums a backend over host memory needs.
///
/// @par Axioms  all_gather after reduce_scatter leaves the same sum on every rank as all_reduce;
///   the sum does not depend on timing. After any Error of kind communication every later call
///   throws. All calls of one communicator come from one thread.
template <class C>
concept Communicator =
    requires(C& comm, C const& view, Collective const& op, typename C::Ticket ticket) {
  requires std::default_initializable<typename C::Ticket>;
  requires std::movable<typename C::Ticket>;
  requires MemorySpace<typename C::Space>;
  requires OwnSpace<C> || std::default_initializable<typename C::Space>;
  { view.rank() } -> std::same_as<int>;
  { view.size() } -> std::same_as<int>;
  requires noexcept(view.rank());
  requires noexcept(view.size());
  { comm.start(op) } -> std::same_as<typename C::Ticket>;
  { comm.wait(ticket) } -> std::same_as<void>;
};

/// A communicator that can be divided into sub-groups, such as the rows and columns of a grid.
///
/// `split` is collective: ranks of the same color form a new group, ordered by key, then by rank.
template <class C>
concept SplittableCommunicator = Communicator<C> && requires(C& comm, int color, int key) {
  { comm.split(color, key) } -> std::same_as<C>;
};

/// A communicator that gives names to the groups it is divided into, which their errors carry.
///
/// A name is words for people, such as "model axis (data 1 of 2)"; the first group has none.
template <class C>
concept NamingCommunicator = SplittableCommunicator<C> &&
    requires(C& comm, C const& asked, int color, std::string_view name) {
  { comm.split(color, color, name) } -> std::same_as<C>;
  { asked.group_name() } -> std::convertible_to<std::string_view>;
};

namespace detail {

/// Divides a group, whose parts have this name if their communicator is one that gives names.
template <SplittableCommunicator C>
[[nodiscard]] C split(C& comm, int color, int key, std::string_view name) {
  if constexpr (NamingCommunicator<C>) {
    return comm.split(color, key, name);
  } else {
    return comm.split(color, key);
  }
}

/// What a group is called; empty if it has no name.
template <Communicator C>
[[nodiscard]] std::string_view group_name(C const& comm) {
  if constexpr (NamingCommunicator<C>) return comm.group_name();
  return {};
}

/// The space a communicator's buffers are in.
template <Communicator C>
[[nodiscard]] typename C::Space space_of(C const& comm) {
  if constexpr (OwnSpace<C>) {
    return comm.space();
  } else {
    return {};
  }
}

}  // namespace detail

/// A communicator whose transfers advance only while somebody calls it. `progress` is cheap and
/// never blocks; the optimizer calls it between the buckets of its own loops.
template <class C>
concept ProgressingCommunicator = Communicator<C> && requires(C& comm) {
  { comm.progress() }
  noexcept;
};

/// A communicator that holds memory beside what it is given: staging, windows, exchange buffers.
/// `held` is how much on this rank, in bytes: what it hands out to optimizers is theirs and does
/// not count. Optimizers over one communicator share it, and each shows it.
template <class C>
concept HoldingCommunicator = Communicator<C> && requires(C const& comm) {
  { comm.held() } -> std::convertible_to<std::uint64_t>;
};

/// Bytes that a communicator holds on this rank; 0 where it does not say.
template <Communicator C>
[[nodiscard]] std::uint64_t held_by(C const& comm) {
  if constexpr (HoldingCommunicator<C>) return comm.held();
  return 0;
}

/// Advances what is under way where that needs a call, else does nothing.
template <Communicator C>
void progress(C& comm) noexcept {
  if constexpr (ProgressingCommunicator<C>) comm.progress();
}

/// A communicator over a space that queues its work. Should its group end while work is queued, the
/// work runs on with collectives that have moved nothing. `confirm` throws if that may be so; it
/// never blocks. `ended` is a word in memory that the space reads, not zero from before the first
/// such collective is let go; valid as long as the communicator.
template <class C>
concept ConfirmingCommunicator = Communicator<C> && requires(C& comm, C const& asked) {
  { comm.confirm() } -> std::same_as<void>;
  { asked.ended() } -> std::same_as<std::int64_t const*>;
};

/// A communicator that adds squares to `Collective::squares` while the elements pass: what
/// `add_squares` of its space adds, bit for bit, without reading the result once more.
template <class C>
concept SquaringCommunicator = Communicator<C> && C::adds_squares;

/// Throws if what was read from the space may be of no collective that took place.
/// @throws Error (communication) if the group has ended
template <Communicator C>
void confirm(C& comm) {
  if constexpr (ConfirmingCommunicator<C> && !C::Space::host_accessible) comm.confirm();
}

/// Starts a collective and waits for it. Collective; blocks.
template <Communicator C>
void run(C& comm, Collective const& op) {
  typename C::Ticket ticket = comm.start(op);
  comm.wait(ticket);
}

/// The sum of a value that every rank has, such as a loss or a number of tokens: the same on all of
/// them. Collective; blocks. Takes one all-reduce of 8 bytes.
/// @param comm   over memory that the host can reach
/// @param value  of this rank; a floating-point number is added in double, an integer in 64 bits,
///   which the sum has to fit into
/// @throws Error (communication) as the communicator
template <Communicator C, class T>
  requires std::is_arithmetic_v<T>
[[nodiscard]] auto sum(C& comm, T value) {
  static_assert(C::Space::host_accessible,
                "zero: sum() is for values in memory of the host; reduce in the space's own");
  using Sum = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  constexpr DType dtype = std::is_integral_v<T> ? DType::i64 : DType::f64;
  auto total = static_cast<Sum>(value);
  run(comm,
      {.op = Op::all_reduce,
       .dtype = dtype,
       .accumulate = dtype,
       .count = 1,
       .send = &total,
       .recv = &total});
  return total;
}

/// Blocks until all ranks have called it: of the host's threads or processes, such as before a file
/// is read that another rank has written. Collective; blocks. Takes one all-reduce of 8 bytes.
/// @param comm  over memory that the host can reach. Over a device's, a collective in that memory
///   and a `download` of its result do the same
/// @throws Error (communication) as the communicator
template <Communicator C>
void barrier(C& comm) {
  static_assert(C::Space::host_accessible,
                "zero: barrier() is for ranks that meet on the host; over a device, reduce in the "
                "space's own memory and download the result");
  static_cast<void>(sum(comm, 0));
}

}  // namespace zero::inline ZERO_NAMESPACE
