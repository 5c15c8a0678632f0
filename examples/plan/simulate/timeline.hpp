/// @file
/// Virtual time: a queue of computation and one of communication, as a device's streams.
#pragma once

#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace plan::simulate {

using namespace zero;

/// Seconds of one collective, and where they go.
struct CollectiveCost {
  double latency = 0.;   ///< seconds that do not depend on bytes
  double transfer = 0.;  ///< seconds that do
  /// Of both: at the end of it, in which links are free for other collectives.
  double free = 0.;

  /// Both.
  [[nodiscard]] double seconds() const noexcept { return latency + transfer; }
};

/// What was done, on which queue, from when to when.
struct Event {
  /// Of what kind the work is; each has its own queue in a trace.
  enum class Queue : std::uint8_t { compute, communication };

  std::string_view name{};       ///< outlives the timeline
  Queue queue = Queue::compute;  ///< that did it
  double begin = 0.;             ///< seconds
  double end = 0.;               ///< seconds
  int number = -1;               ///< of the bucket or unit; negative if it has none
};

/// What one kind of collective has cost.
struct OpTime {
  std::uint64_t calls = 0;  ///< collectives
  double busy = 0.;         ///< seconds that links worked on them
  double latency = 0.;      ///< of these, what would be left of them without a byte
  double exposed = 0.;      ///< seconds that computation waited for them
};

/// Virtual time of one rank. Work is put on a queue and done in order there; the host that puts it
/// takes no time.
class Timeline {
 public:
  /// @param by_ranks  collectives are carried out by the processors of those who wait for them, as
  ///   among threads of one process: nothing is under way beside a rank's computation
  explicit Timeline(bool by_ranks = false) : by_ranks_(by_ranks) {}

  /// Computation, after all that was put there before.
  /// @param seconds  that it takes
  /// @param name     outlives the timeline
  /// @param number   of its unit, for traces
  void compute(double seconds, std::string_view name, int number = -1) {
    record({name, Event::Queue::compute, now_, now_ + seconds, number});
    now_ += seconds;
    computed_ += seconds;
  }
  /// A collective, once links are free of those before it, and after all computation that was put
  /// on its queue until now. Links are one queue, whoever's group it is: what goes over them at
  /// once takes as long as one after another.
  /// @returns when it ends, for `await`
  double communicate(Op op, CollectiveCost const& cost, int number) {
    // By ranks, `links_` is all work so far instead of a time, and `done_` what is done of it.
    double const begin = by_ranks_ ? links_ : (std::max)(now_, links_);
    double const end = begin + cost.seconds();
    links_ = by_ranks_ ? end : end - cost.free;
    if (!by_ranks_) record({zero::name(op), Event::Queue::communication, begin, links_, number});
    OpTime& time = ops_[static_cast<std::size_t>(op)];
    ++time.calls;
    time.busy += cost.seconds();
    time.latency += cost.latency;
    return end - delayed_;
  }
  /// A collective of another group whose result is needed at once. Over links of its own those
  /// under way go on; on the same links both have half of them while both have bytes.
  /// @param op          which
  /// @param cost        what it takes where nothing else is under way
  /// @param same_links  does it share those of `communicate`?
  void block(Op op, CollectiveCost const& cost, bool same_links = false) {
    double const under_way = same_links ? (std::max)(0., links_ - now_) : 0.;
    double const delay = (std::min)(cost.transfer, under_way);
    double const seconds = cost.seconds() + delay;
    links_ += delay;
    // Of all under way; whatever had ended by now has still ended when this one does.
    delayed_ += delay;
    record({zero::name(op), Event::Queue::compute, now_, now_ + seconds, -1});
    now_ += seconds;
    OpTime& time = ops_[static_cast<std::size_t>(op)];
    ++time.calls;
    time.busy += seconds;
    time.latency += cost.latency;
    time.exposed += seconds;
  }
  /// Has computation that is put on its queue from now on wait for a collective.
  void await(Op op, double end) {
    end += delayed_;
    double const waits = end - (by_ranks_ ? done_ : now_);
    if (waits <= 0.) return;
    ops_[static_cast<std::size_t>(op)].exposed += waits;
    if (by_ranks_) {
      record({zero::name(op), Event::Queue::communication, now_, now_ + waits, -1});
      done_ = end;
    }
    now_ += waits;
  }

  /// When all computation so far has ended, in seconds from the beginning.
  [[nodiscard]] double now() const noexcept { return now_; }
  /// Seconds of computation.
  [[nodiscard]] double computed() const noexcept { return computed_; }
  /// What collectives of one kind have cost.
  [[nodiscard]] OpTime const& of(Op op) const noexcept {
    return ops_[static_cast<std::size_t>(op)];
  }
  /// Seconds that computation waited for collectives.
  [[nodiscard]] double exposed() const noexcept {
    double sum = 0.;
    for (OpTime const& time : ops_) sum += time.exposed;
    return sum;
  }

  /// Keeps events from now on, for a trace, or not; they take memory.
  /// @returns whether it did before
  bool keep_events(bool keeps = true) noexcept { return std::exchange(keeps_, keeps); }
  /// Those that were kept, in the order in which they were put on queues.
  [[nodiscard]] std::vector<Event> const& events() const noexcept { return events_; }

 private:
  void record(Event const& event) {
    if (keeps_ && event.end > event.begin) events_.push_back(event);
  }

  bool by_ranks_;
  double now_ = 0.;
  double links_ = 0.;    ///< when they are free
  double delayed_ = 0.;  ///< by which ends that `communicate` has told have moved
  double done_ = 0.;
  double computed_ = 0.;
  std::array<OpTime, op_count> ops_{};
  bool keeps_ = false;
  std::vector<Event> events_;
};

}  // namespace plan::simulate
