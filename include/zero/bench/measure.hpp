/// @file
/// One collective on one rank of a group, as the others do the same: in step, beside its raw
/// baseline, with its result checked.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/bench/cases.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// Seconds on a clock that only goes forward.
[[nodiscard]] inline double seconds_now() {
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// busbw over algbw: the part of the larger buffer that a rank's link has to carry.
[[nodiscard]] constexpr double bus_factor(Op op, int ranks) noexcept {
  double const peers = static_cast<double>(ranks - 1) / ranks;
  if (op == Op::broadcast) return 1.;
  return op == Op::all_reduce ? 2. * peers : peers;
}

/// Elements of a rank's block where its larger buffer has `bytes`, rounded down, but at least one.
[[nodiscard]] constexpr std::size_t block_count(Op op,
                                                DType dtype,
                                                std::size_t bytes,
                                                int ranks) noexcept {
  bool const whole = op == Op::all_reduce || op == Op::broadcast;
  std::size_t const blocks = whole ? 1 : static_cast<std::size_t>(ranks);
  return (std::max)(bytes / size_of(dtype) / blocks, std::size_t{1});
}

/// What one round has found. Times are of one collective, and of the slowest rank.
struct Round {
  std::size_t count = 0;      ///< elements of one rank's block
  std::size_t bytes = 0;      ///< of the larger buffer of one rank, nccl-tests' size
  double seconds = 0;         ///< from when the last rank began
  double raw_seconds = 0;     ///< of the baseline
  std::size_t wrong = 0;      ///< elements that differ, on all ranks; 0 if nobody looked
  std::string_view raw = {};  ///< what the baseline is called
};

/// The baseline of a communicator that says nothing else: a copy of the larger buffer.
struct CopyOfBuffer {
  static constexpr std::string_view name = "copy";  ///< what the table calls it
  /// Runs it once on this rank, as if it were `op`, whose buffers have the larger buffer's size.
  template <Communicator C>
  void operator()(C& comm, Collective const& op) const {
    zero::detail::space_of(comm).copy(
        op.recv, op.send, zero::detail::larger_bytes(op, comm.size()));
  }
};

/// Its only value.
inline constexpr CopyOfBuffer copy_of_buffer{};

namespace detail {

/// What rank `rank` sends at `i`: small enough for sums to be exact in 16 bits on 40 ranks, and
/// without a period that a shifted block could hide in.
[[nodiscard]] inline float sent_value(Op op, int rank, std::size_t i) noexcept {
  std::uint32_t const mixed = (static_cast<std::uint32_t>(i) * 2654435761u) >> 13;
  std::uint32_t const range = zero::detail::is_reduction(op) ? 7 : 251;
  return static_cast<float>((mixed + static_cast<std::uint32_t>(rank) * 3) % range);
}

/// What has to arrive on rank `rank` at `i`.
[[nodiscard]] inline float expected_value(Collective const& op, int rank, int size, std::size_t i) {
  auto const own = static_cast<std::size_t>(rank);
  auto const peer = static_cast<int>(i / op.count);
  if (op.op == Op::all_gather) return sent_value(op.op, peer, i % op.count);
  if (op.op == Op::all_to_all) return sent_value(op.op, peer, own * op.count + i % op.count);
  if (op.op == Op::broadcast) return sent_value(op.op, op.root, i);
  float sum = 0;
  std::size_t const at = op.op == Op::reduce_scatter ? own * op.count + i : i;
  for (int from = 0; from < size; ++from) sum += sent_value(op.op, from, at);
  return sum;
}

/// Stands for the communicator's own allocator, or ordinary memory where it has none.
struct OwnMemory {};

/// Where a rank's buffers are from.
template <Communicator C, class A>
[[nodiscard]] auto memory_of(C const& comm, A const& allocator) {
  if constexpr (!std::same_as<A, OwnMemory>) {
    return allocator;
  } else if constexpr (requires { comm.allocator(); }) {
    return comm.allocator();
  } else {
    static_assert(C::Space::host_accessible,
                  "zero: hand an allocator of the space's memory to the body, after the baseline");
    return HostAllocator();
  }
}

/// Memory that goes back to where it is from.
template <Allocator A>
[[nodiscard]] std::shared_ptr<std::byte> buffer(A allocator, std::size_t bytes) {
  constexpr std::size_t alignment = 4096;
  auto* const memory = static_cast<std::byte*>(allocator.allocate(bytes, alignment));
  return {memory, [allocator, bytes](std::byte* data) mutable {
            allocator.deallocate(data, bytes, alignment);
          }};
}

/// One rank of a group that measures in step. Rank 0 says what, through the communicator that is
/// measured; the others do the same. Every call is collective and blocks.
template <Communicator C, class Raw = CopyOfBuffer const, class A = OwnMemory>
class Rank {
 public:
  explicit Rank(C& comm, Raw& raw = copy_of_buffer, A const& allocator = {})
      : comm_(comm),
        space_(zero::detail::space_of(comm)),
        raw_(raw),
        memory_(memory_of(comm, allocator)),
        order_(buffer(memory_, (static_cast<std::size_t>(comm.size()) + 1) * sizeof(Order))) {}

  /// A round on all ranks. Rank 0's, as the next one.
  [[nodiscard]] Round ask(Case const& work) { return measure(tell({work, 0}).work); }
  /// There is nothing more to measure.
  void dismiss(int status) { tell({{.iterations = 0}, status}); }

  /// Does what rank 0 says, until there is nothing more. @return rank 0's status
  int serve() {
    for (;;) {
      Order const order = tell({});
      if (order.work.iterations == 0) return order.status;
      measure(order.work);
    }
  }

 private:
  struct Order {
    Case work{};
    int status = 0;
  };

  /// A value of every rank, on every rank: nobody has it before all have arrived.
  template <class T>
  std::vector<T> all(T const& own) {
    static_assert(sizeof(T) <= sizeof(Order));
    std::vector<T> values(static_cast<std::size_t>(comm_.size()));
    std::byte* const to = order_.get() + sizeof(T);
    space_.upload(order_.get(), &own, sizeof(T));
    zero::run(comm_,
              {.op = Op::all_gather,
               .dtype = DType::u8,
               .count = sizeof(T),
               .send = order_.get(),
               .recv = to});
    space_.download(values.data(), to, values.size() * sizeof(T));
    confirm(comm_);
    return values;
  }
  /// Rank 0's order, on every rank.
  Order tell(Order const& order) { return all(order).front(); }

  Round measure(Case const& work) {
    if (!work.is_like(work_)) prepare(work);
    double const own = timed(work.iterations, [&] { zero::run(comm_, op_); });
    double const raw = timed(work.iterations, [&] { raw_(comm_, std::as_const(apart_)); });
    return {.count = op_.count,
            .bytes = zero::detail::larger_bytes(op_, comm_.size()),
            .seconds = own,
            .raw_seconds = raw,
            .wrong = wrong_,
            .raw = Raw::name};
  }

  void prepare(Case const& work) {
    work_ = work;
    apart_ = Collective{.op = work.op,
                        .dtype = work.dtype,
                        .count = block_count(work.op, work.dtype, work.bytes, comm_.size()),
                        .bucket = 0};
    std::size_t const bytes = zero::detail::larger_bytes(apart_, comm_.size());
    send_ = recv_ = nullptr;  // one case's memory at a time
    send_ = buffer(memory_, bytes);
    recv_ = buffer(memory_, bytes);
    space_.zero(send_.get(), bytes);
    apart_.send = send_.get();
    apart_.recv = recv_.get();
    op_ = apart_;
    if (work.in_place) {
      // Both are in `recv_`, of which the smaller one may be a block.
      std::size_t const own = static_cast<std::size_t>(comm_.rank()) * op_.block_bytes();
      op_.send = recv_.get() + (work.op == Op::all_gather ? own : 0);
      op_.recv = recv_.get() + (work.op == Op::reduce_scatter ? own : 0);
    }
    wrong_ = 0;
    if (work.check) {
      std::size_t const own = work.dtype == DType::bf16  ? wrong<bf16>()
                              : work.dtype == DType::f16 ? wrong<fp16>()
                                                         : wrong<float>();
      for (std::size_t const count : all(own)) wrong_ += count;
    }
    space_.zero(recv_.get(), bytes);  // sums in place stay what they are
    if constexpr (requires { raw_.prepare(comm_, std::as_const(apart_)); }) {
      raw_.prepare(comm_, std::as_const(apart_));
    }
    Case first = work;
    first.iterations = 1;
    measure(first);  // what is slow at first does not count
  }

  /// Seconds of one call of `work`, made again and again on all ranks at once: the slowest rank's,
  /// from when the last one began.
  template <class Work>
  double timed(std::int64_t iterations, Work const& work) {
    all(0.);
    double const start = seconds_now() + 1e-6 * static_cast<double>(work_.late_us);
    while (comm_.rank() + 1 == comm_.size() && seconds_now() < start) continue;
    for (std::int64_t i = 0; i < iterations; ++i) work();
    if constexpr (!C::Space::host_accessible) {
      std::byte last;  // the host waits for what was queued
      space_.download(&last, order_.get(), sizeof(last));
    }
    auto const ranks = all(seconds_now() - start);
    return *std::max_element(ranks.begin(), ranks.end()) / static_cast<double>(iterations);
  }

  /// Elements that one collective leaves wrong on this rank.
  template <class T>
  std::size_t wrong() {
    bool const sends = op_.op != Op::broadcast || comm_.rank() == op_.root;
    std::vector<T> values(zero::detail::send_count(op_, comm_.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<T>(sent_value(op_.op, comm_.rank(), i));
    }
    std::vector<std::byte> const poison(zero::detail::larger_bytes(op_, comm_.size()),
                                        std::byte{0xff});  // not a number
    space_.upload(recv_.get(), poison.data(), poison.size());
    if (sends) space_.upload(const_cast<void*>(op_.send), values.data(), values.size() * sizeof(T));
    zero::run(comm_, op_);
    values.resize(zero::detail::receive_count(op_, comm_.size()));
    space_.download(values.data(), op_.recv, values.size() * sizeof(T));
    std::size_t count = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto const expected = static_cast<T>(expected_value(op_, comm_.rank(), comm_.size(), i));
      if (static_cast<float>(values[i]) != static_cast<float>(expected)) ++count;
    }
    return count;
  }

  C& comm_;
  typename C::Space space_;
  Raw& raw_;
  decltype(memory_of(std::declval<C const&>(), std::declval<A const&>())) memory_;
  std::shared_ptr<std::byte> order_;  ///< what this rank says, and what all have said
  Case work_{};                       ///< what buffers and checks are of
  Collective op_{};
  Collective apart_{};  ///< what the baseline gets: out of place
  std::shared_ptr<std::byte> send_;
  std::shared_ptr<std::byte> recv_;
  std::size_t wrong_ = 0;
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE::bench
