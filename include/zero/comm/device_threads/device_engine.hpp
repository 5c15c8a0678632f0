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

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Sums over ranks, as a runtime is asked for them: some ranges of `count` elements of all sources,
/// in rank order, each to the same elements of targets of its own. A target may be one of the
/// sources.
struct DeviceSum {
  DType dtype = DType::f32;
  DType accumulate = DType::f32;
  void* const* targets = nullptr;  ///< `target_count` for each range
  int target_count = 1;
  void const* const* sources = nullptr;
  int source_count = 1;
  std::size_t const* first = nullptr;  ///< of each range: its first element
  int range_count = 1;
  std::size_t count = 0;
  SumSquares const* squares = nullptr;  ///< of each range; null: nobody asks
};

/// One device's part of a gather, as a runtime is asked for it: `bytes` bytes of each source,
/// behind what a target skips, to one after the other at each target. A source may be where it
/// belongs already. Begins at `first`.
struct DeviceGather {
  void* const* targets = nullptr;
  std::size_t const* skip = nullptr;  ///< of each target, in bytes
  int target_count = 1;
  void const* const* sources = nullptr;
  int source_count = 1;
  int first = 0;
  std::size_t bytes = 0;
};

/// What the ranks of a group over devices need of a runtime. Streams are queues of work in order;
/// an event notes how far one is, and another can wait for that. `load` gets all ready that `sum`
/// and `gather` take. All but `open`, `create`, `connect` and `load` only enqueue, and none throws:
/// what is returned is null, or what went wrong. `together` says whether two ranks share a device.
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
  { api.together(space, space) } -> std::same_as<bool>;
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
/// Every device has a stream for transfers beside those of its ranks' trainers. A collective begins
/// where all trainers' streams have been when they posted it. Each device does the shares of its
/// ranks, all of them at once; `finished` is when all shares are done, which is when a buffer of
/// any rank may be written again, since peers read it. A group of one needs none of this: its work
/// is in the trainer's stream itself.
/// @par Cost  of a collective of N ranks on one device: 3 N + 1 events recorded or waited for, and
///            one sum or gather; of D devices: 3 (D - 1) + 1 events more, and D sums or gathers
template <DeviceApi Api>
class DeviceEngine {
 public:
  using Space = typename Api::Space;
  using Stream = typename Api::Stream;
  using Event = typename Api::Event;

  /// @param turns  of the whole family of groups
  DeviceEngine(Api api, std::vector<Space> const& spaces, std::shared_ptr<device::Turns> turns)
      : api_(std::move(api)), turns_(std::move(turns)) {
    for (std::size_t rank = 0; rank < spaces.size(); ++rank) {
      spaces_.push_back(spaces.size() == 1 ? spaces[rank] : api_.taking(spaces[rank], turns_));
      auto const shared = std::find_if(sites_.begin(), sites_.end(), [&](Site const& site) {
        return api_.together(spaces[site.ranks.front()], spaces[rank]);
      });
      (shared == sites_.end() ? sites_.emplace_back() : *shared).ranks.push_back(rank);
    }
    targets_.resize(spaces.size());
    places_.resize(spaces.size());
    squares_.resize(spaces.size());
  }
  DeviceEngine(DeviceEngine&&) noexcept = default;
  DeviceEngine& operator=(DeviceEngine&&) = delete;
  // What is still enqueued stays valid: runtimes let go of streams and events once they are idle.
  ~DeviceEngine() {
    for (Event& event : events_) api_.destroy(event);
    for (Site& site : sites_) {
      if (site.opened) api_.close(site.stream);
    }
  }

  /// Obtains streams and events for `slots` collectives under way. Once.
  [[nodiscard]] char const* open(std::size_t slots) {
    if (spaces_.size() == 1) return nullptr;
    std::size_t const ranks = spaces_.size();
    events_.reserve((slots + 1) * (ranks + 1));
    for (Site& site : sites_) {
      if (char const* const problem = api_.open(space_of(site), site.stream)) return problem;
      site.opened = true;
    }
    for (std::size_t row = 0; row <= slots; ++row) {
      for (std::size_t rank = 0; rank <= ranks; ++rank) {
        // The last of a row is recorded in the first device's stream.
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
    for (Site& site : sites_) {
      if (!site.opened || record(site, done(site)) != nullptr) continue;
      static_cast<void>(api_.wait(spaces_[at], own, done(site)));
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
    for (; loaded_ < sites_.size(); ++loaded_) {
      if (char const* const problem = api_.load(space_of(sites_[loaded_]))) return problem;
    }
    if (spaces_.size() == 1) {
      Stream stream = api_.stream(spaces_[0]);
      if (squares[0].sum != nullptr) {
        DeviceSum sum = sum_of(op, recv, send, op.count);
        sum.squares = squares;
        return api_.sum(spaces_[0], stream, sum);
      }
      if (send[0] == recv[0]) return nullptr;
      return api_.copy(spaces_[0], stream, recv[0], send[0], op.block_bytes());
    }
    Site& first = sites_.front();
    for (std::size_t rank = 0; rank < spaces_.size(); ++rank) {
      if (char const* const problem = wait(first, event(slot + 1, rank))) return problem;
    }
    if (sites_.size() > 1) {
      if (char const* const problem = record(first, gate())) return problem;
    }
    for (std::size_t site = 1; site < sites_.size(); ++site) {
      if (char const* const problem = wait(sites_[site], gate())) return problem;
    }
    for (std::size_t site = 0; site < sites_.size(); ++site) {
      if (char const* const problem = share(site, op, send, recv, squares)) return problem;
    }
    for (std::size_t site = 1; site < sites_.size(); ++site) {
      if (char const* const problem = record(sites_[site], done(sites_[site]))) return problem;
      if (char const* const problem = wait(first, done(sites_[site]))) return problem;
    }
    return record(first, finished(slot));
  }

 private:
  /// A device, and the ranks on it.
  struct Site {
    std::vector<std::size_t> ranks{};
    Stream stream{};
    bool opened = false;
  };

  /// Enqueues what one device does for a collective.
  [[nodiscard]] char const* share(std::size_t number,
                                  Collective const& op,
                                  void const* const* send,
                                  void* const* recv,
                                  SumSquares const* squares) {
    Site& site = sites_[number];
    std::size_t const bytes = op.block_bytes();
    switch (op.op) {
      case Op::reduce_scatter: {
        DeviceSum sum = sum_of(op, targets_.data(), send, op.count);
        sum.range_count = static_cast<int>(site.ranks.size());
        for (std::size_t i = 0; i < site.ranks.size(); ++i) {
          std::size_t const rank = site.ranks[i];
          // Sources and targets are counted from the same element.
          targets_[i] = offset_back(recv[rank], rank * bytes);
          places_[i] = rank * op.count;
          squares_[i] = squares[rank];
          if (squares[rank].sum != nullptr) sum.squares = squares_.data();
        }
        return api_.sum(space_of(site), site.stream, sum);
      }
      case Op::all_reduce: {
        // Each device's share for all ranks: in place, a buffer is read before it is written, since
        // nobody else reads or writes that share.
        auto const self = static_cast<int>(number);
        auto const all = static_cast<int>(sites_.size());
        places_[0] = share_begin(op.count, self, all);
        DeviceSum sum = sum_of(op, recv, send, share_length(op.count, self, all));
        sum.target_count = sum.source_count;
        return sum.count == 0 ? nullptr : api_.sum(space_of(site), site.stream, sum);
      }
      case Op::all_gather:
      case Op::all_to_all: {
        std::size_t const stride = op.op == Op::all_to_all ? bytes : 0;
        return gather(site, recv, send, static_cast<int>(spaces_.size()), bytes, stride);
      }
      case Op::broadcast: return gather(site, recv, send + op.root, 1, bytes, 0);
    }
    return "no such operation";
  }

  /// To the ranks of one device, of which rank r skips r * stride bytes of each source.
  [[nodiscard]] char const* gather(Site& site,
                                   void* const* recv,
                                   void const* const* sources,
                                   int source_count,
                                   std::size_t bytes,
                                   std::size_t stride) {
    for (std::size_t i = 0; i < site.ranks.size(); ++i) {
      targets_[i] = recv[site.ranks[i]];
      places_[i] = site.ranks[i] * stride;
    }
    // Devices begin with their own rank, so that not all of them read the same memory at once.
    DeviceGather const gather{.targets = targets_.data(),
                              .skip = places_.data(),
                              .target_count = static_cast<int>(site.ranks.size()),
                              .sources = sources,
                              .source_count = source_count,
                              .first = static_cast<int>(site.ranks.front()) % source_count,
                              .bytes = bytes};
    return api_.gather(space_of(site), site.stream, gather);
  }
  /// Elements of all ranks, from places_ on.
  [[nodiscard]] DeviceSum sum_of(Collective const& op,
                                 void* const* targets,
                                 void const* const* sources,
                                 std::size_t count) const noexcept {
    return {.dtype = op.dtype,
            .accumulate = op.accumulate,
            .targets = targets,
            .sources = sources,
            .source_count = static_cast<int>(spaces_.size()),
            .first = places_.data(),
            .count = count};
  }
  [[nodiscard]] Space const& space_of(Site const& site) const noexcept {
    return spaces_[site.ranks.front()];
  }
  [[nodiscard]] char const* wait(Site& site, Event& event) {
    return api_.wait(space_of(site), site.stream, event);
  }
  [[nodiscard]] char const* record(Site& site, Event& event) {
    return api_.record(space_of(site), site.stream, event);
  }

  [[nodiscard]] static void* offset_back(void* buffer, std::size_t bytes) noexcept {
    return static_cast<std::byte*>(buffer) - bytes;
  }

  /// Row 0 has what a collective needs while it is enqueued; row s + 1 is of slot s.
  [[nodiscard]] Event& event(std::size_t row, std::size_t column) noexcept {
    return events_[row * (spaces_.size() + 1) + column];
  }
  [[nodiscard]] Event& done(Site const& site) noexcept { return event(0, site.ranks.front()); }
  [[nodiscard]] Event& gate() noexcept { return event(0, spaces_.size()); }
  [[nodiscard]] Event& finished(std::size_t slot) noexcept {
    return event(slot + 1, spaces_.size());
  }

  Api api_;
  std::shared_ptr<device::Turns> turns_;
  std::vector<Space> spaces_;  ///< by rank
  std::vector<Site> sites_;    ///< by device, in the order of their first ranks
  std::size_t loaded_ = 0;     ///< devices that have what collectives take
  // Of one device's share, while it is enqueued.
  std::vector<void*> targets_;
  std::vector<std::size_t> places_;
  std::vector<SumSquares> squares_;
  std::vector<Event> events_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
