/// @file
/// Compares every collective on all ranks before data moves.
#pragma once

#include "zero/base/error.hpp"
#include "zero/comm/failure.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/wrapped.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline v0_1 {

/// A communicator whose ranks tell each other what they are about to do, and all throw the same
/// error if they differ: for backends that would hang or mix data up instead (MPI, NCCL).
///
/// `InProcess` compares calls by itself; there this decorator adds only the exchange.
/// `Checked checked{comm};` refers to `comm`, which must outlive it; an rvalue is kept instead.
/// @par Cost  one all_gather of 56 bytes per collective, for which `start` blocks; allocates at
///   construction only, 56 bytes per rank
template <Communicator C>
class Checked {
  static_assert(
      C::Space::host_accessible,
      "zero: Checked compares calls in host memory, which this communicator's collectives "
      "do not reach");

 public:
  using Space = typename C::Space;    ///< where buffers live: as in `C`
  using Ticket = typename C::Ticket;  ///< a collective under way: the inner communicator's own

  /// Refers to `comm`; not collective.
  explicit Checked(C& comm) : comm_(comm), calls_(static_cast<std::size_t>(size())) {}
  /// Keeps `comm`; not collective.
  explicit Checked(C&& comm) : comm_(std::move(comm)), calls_(static_cast<std::size_t>(size())) {}

  /// This rank's number in the group, from 0.
  [[nodiscard]] int rank() const noexcept { return comm_.get().rank(); }
  /// How many ranks the group has.
  [[nodiscard]] int size() const noexcept { return comm_.get().size(); }

  /// The memory space of the inner communicator.
  [[nodiscard]] Space space() const { return detail::space_of(comm_.get()); }

  /// Compares the call with all ranks' and starts it if they agree.
  /// @par Collective  yes; blocks until every rank has started its next collective
  /// @throws Error (communication) on every rank, naming two ranks and both calls, if any two ranks
  ///   differ in operation, dtype, accumulate, count, root, bucket or number of earlier calls;
  ///   every later call throws the same
  Ticket start(Collective const& op) {
    if (differing_ != 0) refuse(op);
    Call const mine{.sequence = sequence_,
                    .count = op.count,
                    .op = static_cast<std::int64_t>(op.op),
                    .dtype = static_cast<std::int64_t>(op.dtype),
                    .accumulate = static_cast<std::int64_t>(op.accumulate),
                    .root = op.root,
                    .bucket = op.bucket};
    Collective const exchange{.op = Op::all_gather,
                              .dtype = DType::i64,
                              .accumulate = DType::i64,
                              .count = sizeof(Call) / sizeof(std::int64_t),
                              .send = &mine,
                              .recv = calls_.data()};
    run(comm_.get(), exchange);
    for (std::size_t peer = 1; peer < calls_.size() && differing_ == 0; ++peer) {
      if (calls_[peer] != calls_[0]) differing_ = peer;
    }
    if (differing_ != 0) refuse(op);
    ++sequence_;
    return comm_.get().start(op);
  }

  /// Waits as the inner communicator does; there is nothing more to compare.
  void wait(Ticket& ticket) { comm_.get().wait(ticket); }

  /// Advances what is under way, where the inner communicator needs that.
  void progress() noexcept requires ProgressingCommunicator<C> { comm_.get().progress(); }

  /// A sub-group that is checked as well; the split itself is left to the inner communicator.
  [[nodiscard]] Checked split(int color, int key) requires SplittableCommunicator<C> {
    return Checked(comm_.get().split(color, key));
  }

 private:
  /// One call, as ranks exchange it: all members 64 bits, so that it can travel as integers.
  struct Call {
    std::uint64_t sequence = 0;
    std::uint64_t count = 0;
    std::int64_t op = 0;
    std::int64_t dtype = 0;
    std::int64_t accumulate = 0;
    std::int64_t root = 0;
    std::int64_t bucket = 0;
    friend bool operator==(Call const&, Call const&) = default;

    [[nodiscard]] Collective collective() const noexcept {
      return {.op = static_cast<Op>(op),
              .dtype = static_cast<DType>(dtype),
              .accumulate = static_cast<DType>(accumulate),
              .count = static_cast<std::size_t>(count),
              .root = static_cast<int>(root),
              .bucket = static_cast<int>(bucket)};
    }
  };

  [[noreturn]] void refuse(Collective const& op) const {
    Call const& theirs = calls_[differing_];
    std::string message;
    if (theirs.sequence != calls_[0].sequence) {
      message = "rank " + std::to_string(differing_) + " makes call " +
                std::to_string(theirs.sequence) + " [" + detail::describe(theirs.collective()) +
                "] where rank 0 makes call " + std::to_string(calls_[0].sequence) + " [" +
                detail::describe(calls_[0].collective()) + "]: they differ in earlier calls";
    } else {
      message = detail::describe(detail::Failure{.cause = detail::Failure::Cause::mismatch,
                                                 .rank = static_cast<int>(differing_),
                                                 .other = 0,
                                                 .call = theirs.collective(),
                                                 .other_call = calls_[0].collective()});
    }
    fail(ErrorKind::communication,
         std::move(message),
         {.rank = rank(), .operation = std::string(name(op.op)), .bucket = op.bucket});
  }

  detail::Wrapped<C> comm_;
  std::vector<Call> calls_;    ///< of all ranks, at the newest exchange
  std::size_t differing_ = 0;  ///< the first rank that disagreed with rank 0, once there is one
  std::uint64_t sequence_ = 0;
};

static_assert(SplittableCommunicator<Checked<InProcess>>);

}  // namespace zero::inline v0_1
