/// @file
/// How ranks' queues carry out a collective: by copies, sums and events, on whatever runtime.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/shares.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/space.hpp"
#include "zero/device/turns.hpp"

#include <concepts>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// One sum over ranks, as a runtime is asked for it: elements [first, first + count) of all
/// sources, in rank order, to the same elements of all targets. A target may be one of the sources.
struct DeviceSum {
  DType dtype = DType::f32;
  DType accumulate = DType::f32;
  void* const* targets = nullptr;
  int target_count = 1;
  void const* const* sources = nullptr;
  int source_count = 1;
  std::size_t first = 0;
  std::size_t count = 0;
  SumSquares squares{};
};

/// One rank's part of a gather, as a runtime is asked for it: `bytes` bytes of each source, to one
/// after the other at the target. A source may be where it belongs already. Begins at `first`.
struct DeviceGather {
  void* target = nullptr;
  void const* const* sources = nullptr;
  int source_count = 1;
  int first = 0;
  std::size_t bytes = 0;
};

/// What the ranks of a group over devices need of a runtime. Streams are queues of work in order;
/// an event notes how far one is, and another can wait for that. `load` gets all ready that `sum`
/// and `gather` take. All but `open`, `create`, `connect` and `load` only enqueue, and none throws:
/// what is returned is null, or what went wrong.
///
/// A space stands for a rank's device and for its trainer's stream. `taking` gives one whose calls,
/// and those of this API on it, take turns.
template <class A>
concept DeviceApi = std::copy_constructible<A> && MemorySpace<typename A::Space> &&
    requires(A const& api,
             typename A::Space const& space,
             typename A::Stream& stream,
             typename A::Event& event,
             void* to,
             void const* from,
             std::size_t bytes,
             DeviceSum const& sum,
             DeviceGather const& gather) {
  { A::max_ranks } -> std::convertible_to<int>;
  { api.taking(space, std::shared_ptr<device::Turns>()) } -> std::same_as<typename A::Space>;
  { api.connect(space, space) } -> std::same_as<char const*>;
  { api.stream(space) } -> std::same_as<typename A::Stream>;
  { api.open(space, stream) } -> std::same_as<char const*>;
  { api.load(space) } -> std::same_as<char const*>;
  { api.create(space, event) } -> std::same_as<char const*>;
  { api.record(space, stream, event) } -> std::same_as<char const*>;
  { api.wait(space, stream, event) } -> std::same_as<char const*>;
  { api.copy(space, stream, to, from, bytes) } -> std::same_as<char const*>;
  { api.sum(space, stream, sum) } -> std::same_as<char const*>;
  { api.gather(space, stream, gather) } -> std::same_as<char const*>;
  { api.close(stream) } -> std::same_as<void>;
  { api.destroy(event) } -> std::same_as<void>;
};

/// The queues and events of one group.
///
/// Every rank has a stream of its own for transfers beside its trainer's. A collective begins where
/// all trainers' streams have been when they posted it, and each rank's device does the share of
/// that rank; `finished` is when all shares are done, which is when a buffer of any rank may be
/// written again, since peers read it. A group of one needs none of this: its work is in the
/// trainer's stream itself.
/// @par Cost  of a collective of N ranks: 5 N events recorded or waited for, and one sum, gather or
///            copy per rank
template <DeviceApi Api>
class DeviceEngine {
 public:
  using Space = typename Api::Space;
  using Stream = typename Api::Stream;
  using Event = typename Api::Event;

  /// @param turns  of the whole family of groups
  DeviceEngine(Api api, std::vector<Space> const& spaces, std::shared_ptr<device::Turns> turns)
      : api_(std::move(api)), turns_(std::move(turns)) {
    for (Space const& space : spaces) {
      spaces_.push_back(spaces.size() == 1 ? space : api_.taking(space, turns_));
    }
  }
  DeviceEngine(DeviceEngine&&) noexcept = default;
  DeviceEngine& operator=(DeviceEngine&&) = delete;
  // What is still enqueued stays valid: runtimes let go of streams and events once they are idle.
  ~DeviceEngine() {
    for (Event& event : events_) api_.destroy(event);
    for (Stream& stream : streams_) api_.close(stream);
  }

  /// Obtains streams and events for `slots` collectives under way. Once.
  [[nodiscard]] char const* open(std::size_t slots) {
    if (spaces_.size() == 1) return nullptr;
    std::size_t const ranks = spaces_.size();
    streams_.reserve(ranks);
    sources_.resize(ranks);
    events_.reserve((slots + 1) * (ranks + 1));
    for (Space const& space : spaces_) {
      Stream stream{};
      if (char const* const problem = api_.open(space, stream)) return problem;
      streams_.push_back(stream);
    }
    for (std::size_t row = 0; row <= slots; ++row) {
      for (std::size_t rank = 0; rank <= ranks; ++rank) {
        // The last of a row is recorded in the first rank's stream.
        Event event{};
        char const* const problem = api_.create(spaces_[rank < ranks ? rank : 0], event);
        if (problem != nullptr) return problem;
        events_.push_back(event);
      }
    }
    return nullptr;
  }

  [[nodiscard]] Api const& api() const noexcept { return api_; }
  [[nodiscard]] std::shared_ptr<device::Turns> const& turns() const noexcept { return turns_; }
  [[nodiscard]] Space const& space(int rank) const noexcept {
    return spaces_[static_cast<std::size_t>(rank)];
  }

  /// Notes in the rank's queue that its buffers are ready for the collective in `slot`.
  [[nodiscard]] char const* ready(std::size_t slot, int rank) {
    if (spaces_.size() == 1) return nullptr;
    auto const at = static_cast<std::size_t>(rank);
    Stream stream = api_.stream(spaces_[at]);
    return api_.record(spaces_[at], stream, event(slot + 1, at));
  }

  /// Lets the rank's queue wait until the collective last enqueued from `slot` is finished.
  [[nodiscard]] char const* join(std::size_t slot, int rank) {
    if (spaces_.size() == 1) return nullptr;
    auto const at = static_cast<std::size_t>(rank);
    Stream stream = api_.stream(spaces_[at]);
    return api_.wait(spaces_[at], stream, finished(slot));
  }

  /// Lets the rank's queue wait for everything that the group has under way. For a rank that will
  /// free its buffers because something is wrong; hence as far as the runtime still does it.
  void settle(int rank) noexcept {
    auto const at = static_cast<std::size_t>(rank);
    Stream own = api_.stream(spaces_[at]);
    for (std::size_t peer = 0; peer < streams_.size(); ++peer) {
      if (api_.record(spaces_[peer], streams_[peer], done(peer)) != nullptr) continue;
      static_cast<void>(api_.wait(spaces_[at], own, done(peer)));
    }
  }

  /// Enqueues a collective that all ranks have posted.
  /// @param squares  by rank, as `send` and `recv`
  [[nodiscard]] char const* run(std::size_t slot,
                                Collective const& op,
                                void const* const* send,
                                void* const* recv,
                                SumSquares const* squares) {
    if (op.count == 0) return nullptr;
    // The first collective is an optimizer's agreement: none of a step that may be captured.
    for (; loaded_ < spaces_.size(); ++loaded_) {
      if (char const* const problem = api_.load(spaces_[loaded_])) return problem;
    }
    if (spaces_.size() == 1) {
      Stream stream = api_.stream(spaces_[0]);
      if (squares[0].sum != nullptr) {
        return api_.sum(spaces_[0], stream, sum_of(op, recv, send, 0, op.count, squares[0]));
      }
      if (send[0] == recv[0]) return nullptr;
      return api_.copy(spaces_[0], stream, recv[0], send[0], op.block_bytes());
    }
    std::size_t const ranks = spaces_.size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (char const* const problem = wait(0, event(slot + 1, rank))) return problem;
    }
    if (char const* const problem = record(0, gate())) return problem;
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (char const* const problem = wait(rank, gate())) return problem;
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (char const* const problem = share(rank, op, send, recv, squares[rank])) return problem;
    }
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (char const* const problem = record(rank, done(rank))) return problem;
      if (char const* const problem = wait(0, done(rank))) return problem;
    }
    return record(0, finished(slot));
  }

 private:
  /// Enqueues what one rank's device does for a collective.
  [[nodiscard]] char const* share(std::size_t rank,
                                  Collective const& op,
                                  void const* const* send,
                                  void* const* recv,
                                  SumSquares const& squares) {
    auto const size = static_cast<int>(spaces_.size());
    auto const self = static_cast<int>(rank);
    std::size_t const bytes = op.block_bytes();
    switch (op.op) {
      case Op::reduce_scatter: {
        // Sources and targets are counted from the same element.
        std::size_t const first = rank * op.count;
        void* const target = offset_back(recv[rank], rank * bytes);
        return sum(rank, sum_of(op, &target, send, first, op.count, squares));
      }
      case Op::all_reduce: {
        // Each rank's share for all of them: in place, a buffer is read before it is written, since
        // nobody else reads or writes that share.
        std::size_t const length = share_length(op.count, self, size);
        std::size_t const first = share_begin(op.count, self, size);
        DeviceSum everywhere = sum_of(op, recv, send, first, length, {});
        everywhere.target_count = size;
        return sum(rank, everywhere);
      }
      case Op::all_gather: {
        return gather(rank, recv[rank], send, bytes);
      }
      case Op::all_to_all: {
        for (std::size_t peer = 0; peer < spaces_.size(); ++peer) {
          sources_[peer] = offset(send[peer], rank * bytes);
        }
        return gather(rank, recv[rank], sources_.data(), bytes);
      }
      case Op::broadcast: return copy(rank, recv[rank], send[op.root], bytes);
    }
    return "no such operation";
  }

  [[nodiscard]] char const* copy(std::size_t rank, void* to, void const* from, std::size_t bytes) {
    if (to == from) return nullptr;
    return api_.copy(spaces_[rank], streams_[rank], to, from, bytes);
  }
  [[nodiscard]] char const* gather(std::size_t rank,
                                   void* target,
                                   void const* const* sources,
                                   std::size_t bytes) {
    // Ranks begin with themselves, so that not all of them read the same memory at once.
    DeviceGather const gather{.target = target,
                              .sources = sources,
                              .source_count = static_cast<int>(spaces_.size()),
                              .first = static_cast<int>(rank),
                              .bytes = bytes};
    return api_.gather(spaces_[rank], streams_[rank], gather);
  }
  /// All ranks' elements from `first` on, to one target.
  [[nodiscard]] DeviceSum sum_of(Collective const& op,
                                 void* const* target,
                                 void const* const* sources,
                                 std::size_t first,
                                 std::size_t count,
                                 SumSquares const& squares) const noexcept {
    return {.dtype = op.dtype,
            .accumulate = op.accumulate,
            .targets = target,
            .sources = sources,
            .source_count = static_cast<int>(spaces_.size()),
            .first = first,
            .count = count,
            .squares = squares};
  }
  [[nodiscard]] char const* sum(std::size_t rank, DeviceSum const& sum) {
    return sum.count == 0 ? nullptr : api_.sum(spaces_[rank], streams_[rank], sum);
  }
  [[nodiscard]] char const* wait(std::size_t rank, Event& event) {
    return api_.wait(spaces_[rank], streams_[rank], event);
  }
  [[nodiscard]] char const* record(std::size_t rank, Event& event) {
    return api_.record(spaces_[rank], streams_[rank], event);
  }

  [[nodiscard]] static void* offset_back(void* buffer, std::size_t bytes) noexcept {
    return static_cast<std::byte*>(buffer) - bytes;
  }

  /// Row 0 has what a collective needs while it is enqueued; row s + 1 is of slot s.
  [[nodiscard]] Event& event(std::size_t row, std::size_t column) noexcept {
    return events_[row * (spaces_.size() + 1) + column];
  }
  [[nodiscard]] Event& done(std::size_t rank) noexcept { return event(0, rank); }
  [[nodiscard]] Event& gate() noexcept { return event(0, spaces_.size()); }
  [[nodiscard]] Event& finished(std::size_t slot) noexcept {
    return event(slot + 1, spaces_.size());
  }

  Api api_;
  std::shared_ptr<device::Turns> turns_;
  std::vector<Space> spaces_;  ///< by rank
  std::size_t loaded_ = 0;     ///< ranks whose device has what collectives take
  std::vector<Stream> streams_;
  std::vector<void const*> sources_;  ///< of one rank's all-to-all, while it is enqueued
  std::vector<Event> events_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
