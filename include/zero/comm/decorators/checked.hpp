/// @file
/// Compares every collective on all ranks before data moves.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/decorators/wrapped.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// One call, as ranks exchange it: all members 64 bits, so that it can travel as integers.
struct ComparedCall {
  std::int64_t made = 0;  ///< 1; 0 where the rank has not told its call
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::int64_t op = 0;
  std::int64_t dtype = 0;
  std::int64_t accumulate = 0;
  std::int64_t root = 0;
  std::int64_t bucket = 0;
  friend bool operator==(ComparedCall const&, ComparedCall const&) = default;

  [[nodiscard]] static ComparedCall of(Collective const& op, std::uint64_t sequence) noexcept {
    return {.made = 1,
            .sequence = sequence,
            .count = op.count,
            .op = static_cast<std::int64_t>(op.op),
            .dtype = static_cast<std::int64_t>(op.dtype),
            .accumulate = static_cast<std::int64_t>(op.accumulate),
            .root = op.root,
            .bucket = op.bucket};
  }
  [[nodiscard]] Collective collective() const noexcept {
    return {.op = static_cast<Op>(op),
            .dtype = static_cast<DType>(dtype),
            .accumulate = static_cast<DType>(accumulate),
            .count = static_cast<std::size_t>(count),
            .root = static_cast<int>(root),
            .bucket = static_cast<int>(bucket)};
  }
};

/// The calls of all ranks, in the memory of the communicator's space while they travel.
template <class Space, class A>
class GatheredCalls {
 public:
  GatheredCalls(int size, A allocator)
      : calls_(static_cast<std::size_t>(size)),
        memory_(static_cast<ComparedCall*>(allocator.allocate(bytes(), alignment)),
                Return{allocator, bytes()}) {
    if (memory_ == nullptr) {
      fail(ErrorKind::resource, {"cannot allocate ", bytes(), " bytes to compare calls in"});
    }
  }

  /// Tells all ranks this rank's call, and returns theirs. The host waits for them.
  template <Communicator C>
  [[nodiscard]] std::vector<ComparedCall> const& exchange(C& comm, ComparedCall const& mine) {
    // A communicator that fails may let its queue go on without having written: what is blank then
    // has not come.
    for (ComparedCall& call : calls_) call = {};
    calls_[static_cast<std::size_t>(comm.rank())] = mine;
    Space const space = space_of(comm);
    space.upload(memory_.get(), calls_.data(), bytes());
    run(comm, gather(memory_.get() + comm.rank(), memory_.get()));
    space.download(calls_.data(), memory_.get(), bytes());
    confirm(comm);
    return calls_;
  }

  [[nodiscard]] std::vector<ComparedCall> const& calls() const noexcept { return calls_; }
  /// For the board of a sub-group.
  [[nodiscard]] A allocator() const { return memory_.get_deleter().allocator; }

  [[nodiscard]] static Collective gather(ComparedCall const* send, ComparedCall* recv) noexcept {
    return {.op = Op::all_gather,
            .dtype = DType::i64,
            .accumulate = DType::i64,
            .count = sizeof(ComparedCall) / sizeof(std::int64_t),
            .send = send,
            .recv = recv};
  }

 private:
  /// What the fastest paths of any backend ask for.
  static constexpr std::size_t alignment = 4096;
  struct Return {
    A allocator;
    std::size_t bytes;
    void operator()(ComparedCall* memory) noexcept {
      allocator.deallocate(memory, bytes, alignment);
    }
  };
  [[nodiscard]] std::size_t bytes() const noexcept { return calls_.size() * sizeof(ComparedCall); }

  std::vector<ComparedCall> calls_;
  std::unique_ptr<ComparedCall, Return> memory_;
};

/// Stands for the allocator where host memory is the space's.
struct NoAllocator {};

/// The calls of all ranks where collectives reach host memory: they need no other.
template <class Space>
class GatheredCalls<Space, NoAllocator> {
 public:
  explicit GatheredCalls(int size, NoAllocator /*none*/ = {})
      : calls_(static_cast<std::size_t>(size)) {}

  template <Communicator C>
  [[nodiscard]] std::vector<ComparedCall> const& exchange(C& comm, ComparedCall const& mine) {
    run(comm, GatheredCalls<Space, HostAllocator>::gather(&mine, calls_.data()));
    return calls_;
  }

  [[nodiscard]] std::vector<ComparedCall> const& calls() const noexcept { return calls_; }
  [[nodiscard]] NoAllocator allocator() const noexcept { return {}; }

 private:
  std::vector<ComparedCall> calls_;
};

}  // namespace detail

/// A communicator whose ranks tell each other what they are about to do, and all throw the same
/// error if they differ: for backends that would hang or mix data up instead (MPI, NCCL).
///
/// `InProcess` compares calls by itself; there this decorator adds only the exchange.
/// `Checked checked{comm};` refers to `comm`, which must outlive it; an rvalue is kept instead.
/// Over memory that the host cannot reach it takes an allocator of such memory, for 64 bytes per
/// rank: `Checked checked{comm, comm.allocator()};`. The host waits there for what is in the queue
/// before each `start`, so that a step is neither asynchronous nor can it be captured in a graph:
/// for finding mistakes, not for speed.
/// @par Cost  one all_gather of 64 bytes per collective, for which `start` blocks; allocates at
///   construction only, 64 bytes per rank, and as many of the space's memory if that is not the
///   host's
/// @tparam A  source of the space's memory, in 4096-byte alignment; deduced
template <Communicator C, class A = detail::NoAllocator>
class Checked : public detail::Wrapped<C> {
  static_assert(C::Space::host_accessible || !std::same_as<A, detail::NoAllocator>,
                "zero: Checked over memory that the host cannot reach takes an allocator of it: "
                "Checked checked{comm, allocator}");
  using Base = detail::Wrapped<C>;

 public:
  /// Refers to `comm`; not collective.
  explicit Checked(C& comm) requires std::same_as<A, detail::NoAllocator>
      : Base(comm), gathered_(this->size()) {}
  /// Keeps `comm`; not collective.
  explicit Checked(C&& comm) requires std::same_as<A, detail::NoAllocator>
      : Base(std::move(comm)), gathered_(this->size()) {}
  /// Refers to `comm`; collective if `allocator` is.
  /// @throws Error (resource) if there is no memory
  Checked(C& comm, A allocator) : Base(comm), gathered_(this->size(), std::move(allocator)) {}
  /// Keeps `comm`; collective if `allocator` is.
  /// @throws Error (resource) if there is no memory
  Checked(C&& comm, A allocator)
      : Base(std::move(comm)), gathered_(this->size(), std::move(allocator)) {}

  /// Compares the call with all ranks' and starts it if they agree.
  /// @par Collective  yes; blocks until every rank has started its next collective
  /// @throws Error (communication) on every rank, naming two ranks and both calls, if any two ranks
  ///   differ in operation, dtype, accumulate, count, root, bucket or number of earlier calls;
  ///   every later call throws the same
  typename C::Ticket start(Collective const& op) {
    if (differing_ != 0) refuse(op);
    auto const& calls = gathered_.exchange(this->inner(), detail::ComparedCall::of(op, sequence_));
    for (detail::ComparedCall const& call : calls) {
      if (call.made == 0) lose(op);
    }
    for (std::size_t peer = 1; peer < calls.size() && differing_ == 0; ++peer) {
      if (calls[peer] != calls[0]) differing_ = peer;
    }
    if (differing_ != 0) refuse(op);
    ++sequence_;
    return this->inner().start(op);
  }

  /// What the inner communicator holds, and the calls of all ranks.
  [[nodiscard]] std::uint64_t held() const {
    return held_by(this->inner()) + gathered_.calls().size() * sizeof(detail::ComparedCall);
  }

  /// A sub-group that is checked as well; the split itself is left to the inner communicator.
  /// @param color  of the group that this rank will be in
  /// @param key    its place among the ranks of that color
  /// @param name   of the group, for messages
  [[nodiscard]] Checked split(int color,
                              int key,
                              std::string_view name = {}) requires SplittableCommunicator<C> {
    return Checked(detail::split(this->inner(), color, key, name), gathered_.allocator());
  }

 private:
  /// The inner communicator has failed since it said that the exchange would take place: its own
  /// words for that are better than any.
  [[noreturn]] void lose(Collective const& op) {
    run(this->inner(), Collective{});
    fail(ErrorKind::communication, "the calls of some ranks have not arrived", context(op));
  }

  [[noreturn]] void refuse(Collective const& op) const {
    auto const& calls = gathered_.calls();
    detail::ComparedCall const& theirs = calls[differing_];
    std::string message;
    if (theirs.sequence != calls[0].sequence) {
      message = "rank " + std::to_string(differing_) + " makes call " +
                std::to_string(theirs.sequence) + " [" + detail::describe(theirs.collective()) +
                "] where rank 0 makes call " + std::to_string(calls[0].sequence) + " [" +
                detail::describe(calls[0].collective()) + "]: they differ in earlier calls" +
                detail::on_group(this->group_name());
    } else {
      message = detail::describe(detail::Failure{.cause = detail::Failure::Cause::mismatch,
                                                 .rank = static_cast<int>(differing_),
                                                 .other = 0,
                                                 .call = theirs.collective(),
                                                 .other_call = calls[0].collective(),
                                                 .group = std::string(this->group_name())});
    }
    fail(ErrorKind::communication, std::move(message), context(op));
  }

  [[nodiscard]] ErrorContext context(Collective const& op) const {
    return {.rank = this->rank(),
            .operation = std::string(name(op.op)),
            .bucket = op.bucket,
            .group = std::string(this->group_name())};
  }

  detail::GatheredCalls<typename C::Space, A> gathered_;
  std::size_t differing_ = 0;  ///< the first rank that disagreed with rank 0, once there is one
  std::uint64_t sequence_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE
