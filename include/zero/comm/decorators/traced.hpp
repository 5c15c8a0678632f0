/// @file
/// Remembers the last collectives of a rank, and how long they kept it.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/decorators/wrapped.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// How far a rank has come with a collective. One that failed stays where it was.
enum class CallState : std::uint8_t {
  starting,  ///< `start` was called, and failed or is under way
  started,   ///< under way, and nobody has waited for it
  waiting,   ///< `wait` was called, and failed or is under way
  finished,  ///< `wait` has returned
};

/// What a rank remembers of one collective. Times are the host's, in seconds since the
/// communicator was decorated, and 0 where what they tell has not happened.
struct TracedCall {
  std::uint64_t number = 0;               ///< how many calls came before: the same on every rank
  Collective call{};                      ///< what was called; its buffers are left out, as null
  CallState state = CallState::starting;  ///< how far it has come
  double start_s = 0.;                    ///< when `start` was called
  double wait_s = 0.;                     ///< when `wait` was called
  double finish_s = 0.;                   ///< when `wait` returned
};

namespace detail {

/// The ring of calls and the clock of one rank; knows nothing of the communicator.
class CallTrace {
 public:
  /// The number of no call.
  static constexpr std::uint64_t none = ~std::uint64_t{0};

  /// Adds the time from here to the end of its scope to the seconds inside.
  class Inside {
   public:
    explicit Inside(CallTrace& trace) noexcept : trace_(trace), since_(trace.now()) {}
    Inside(Inside const&) = delete;
    Inside& operator=(Inside const&) = delete;
    ~Inside() { trace_.inside_ += trace_.now() - since_; }
    [[nodiscard]] double since() const noexcept { return since_; }

   private:
    CallTrace& trace_;
    double since_;
  };

  ZERO_APART ZERO_COLD explicit CallTrace(std::size_t capacity);

  /// A call that is refused has no number: the next one takes its place.
  ZERO_APART void starting(Collective const& op, double when) noexcept;
  /// The communicator has accepted the call; returns its number.
  std::uint64_t started() noexcept {
    slot(started_).state = CallState::started;
    return started_++;
  }
  void waiting(std::uint64_t number, double when) noexcept {
    if (!remembers(number)) return;
    slot(number).state = CallState::waiting;
    slot(number).wait_s = when;
  }
  void finished(std::uint64_t number) noexcept {
    if (number == none) return;
    last_finished_ = number;
    if (!remembers(number)) return;
    slot(number).state = CallState::finished;
    slot(number).finish_s = now();
  }

  [[nodiscard]] double now() const noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - epoch_).count();
  }
  [[nodiscard]] double seconds_inside() const noexcept { return inside_; }
  void reset_seconds() noexcept { inside_ = 0.; }
  [[nodiscard]] std::size_t capacity() const noexcept { return ring_.size(); }
  /// The call that is being started or, elsewhere, would be next.
  [[nodiscard]] std::uint64_t next() const noexcept { return started_; }
  /// The call that was started last, or none, which is one less than 0.
  [[nodiscard]] std::uint64_t last() const noexcept { return started_ - 1; }

  ZERO_APART [[nodiscard]] ZERO_COLD std::vector<TracedCall> calls() const;

  ZERO_APART [[nodiscard]] ZERO_COLD std::string describe(int rank, int size) const;

  /// Throws the error again with where this rank was, such as "waiting for " a call, in its
  /// message.
  ZERO_APART [[noreturn]] ZERO_COLD void fail_here(
      Error const& error, int rank, int size, std::string_view doing, std::uint64_t number) const;

 private:
  [[nodiscard]] TracedCall& slot(std::uint64_t number) noexcept {
    return ring_[static_cast<std::size_t>(number % ring_.size())];
  }
  [[nodiscard]] TracedCall const& slot(std::uint64_t number) const noexcept {
    return ring_[static_cast<std::size_t>(number % ring_.size())];
  }
  [[nodiscard]] std::uint64_t oldest() const noexcept {
    return asked_ - std::min<std::uint64_t>(asked_, ring_.size());
  }
  [[nodiscard]] bool remembers(std::uint64_t number) const noexcept {
    return number >= oldest() && number < asked_;
  }
  ZERO_APART [[nodiscard]] std::string named(std::uint64_t number) const;
  ZERO_APART [[nodiscard]] std::string finished_words() const;
  [[nodiscard]] static std::string seconds(char const* what, double when) {
    return Message({what, " at ", std::to_string(when), " s"}).text();
  }

  std::vector<TracedCall> ring_;
  std::uint64_t started_ = 0;
  std::uint64_t asked_ = 0;  ///< those started and, if the last one was refused, that one
  std::uint64_t last_finished_ = none;
  double inside_ = 0.;
  std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
};

}  // namespace detail

/// A communicator that remembers its last calls: a flight recorder, and a clock for communication
/// that nothing hides. The data path is untouched.
///
/// An Error of the inner communicator goes on with its kind, rank, operation, bucket and place; its
/// message ends with where this rank was: "...; rank 2 of 4 was waiting for call 41 [reduce_scatter
/// of 512 bf16 summed in fp32, bucket 3], last finished call 40 [...]". A trainer that catches it
/// can write `describe()` to a file. Numbers of calls are the same on every rank of a group that is
/// decorated at the same time on all of them, so that the files of several ranks can be compared.
///
/// `Traced traced{comm};` refers to `comm`, which must outlive it; an rvalue is kept instead.
/// Nothing here is collective. Everything is asked for on the thread that makes the calls.
///
/// Over a space that queues its work all times are the host's: a call is finished when the queue
/// goes on with it, and seconds inside are not those that the queue waits. What is captured in a
/// graph is seen once, whatever is launched.
/// @par Cost  two readings of a clock per `start` and three per `wait`; about 100 bytes per
///   remembered call, allocated at construction
template <Communicator C>
class Traced : public detail::Wrapped<C> {
 public:
  /// How many calls are remembered unless the constructor says otherwise.
  static constexpr std::size_t default_calls = 2048;

  /// A collective under way: the inner communicator's ticket and the call's number.
  class Ticket {
   public:
    /// Of no collective.
    Ticket() = default;
    /// Takes over the collective; `other` has nothing left to wait for.
    Ticket(Ticket&& other) noexcept
        : inner_(std::move(other.inner_)),
          number_(std::exchange(other.number_, detail::CallTrace::none)) {}
    /// Takes over the collective. What becomes of one that this ticket still held is the inner
    /// ticket's affair.
    Ticket& operator=(Ticket&& other) noexcept {
      if (this != &other) {
        inner_ = std::move(other.inner_);
        number_ = std::exchange(other.number_, detail::CallTrace::none);
      }
      return *this;
    }
    ~Ticket() = default;

   private:
    friend class Traced;
    typename C::Ticket inner_{};
    std::uint64_t number_ = detail::CallTrace::none;  ///< of no call where nobody need wait
  };

  /// Refers to `comm`, and remembers its last `calls` calls.
  /// @throws Error (invalid_argument) if `calls` is 0
  explicit Traced(C& comm, std::size_t calls = default_calls)
      : detail::Wrapped<C>(comm), trace_(calls) {}
  /// Keeps `comm`; otherwise the same.
  /// @throws Error (invalid_argument) if `calls` is 0
  explicit Traced(C&& comm, std::size_t calls = default_calls)
      : detail::Wrapped<C>(std::move(comm)), trace_(calls) {}

  /// Starts as the inner communicator does, and remembers the call, even one that is refused until
  /// the next one takes its place.
  /// @throws Error as the inner communicator does, and where this rank was
  Ticket start(Collective const& op) {
    detail::CallTrace::Inside const inside(trace_);
    trace_.starting(op, inside.since());
    Ticket ticket;
    with_trace("starting ", trace_.next(), [&] { ticket.inner_ = this->inner().start(op); });
    ticket.number_ = trace_.started();
    return ticket;
  }

  /// Waits as the inner communicator does.
  /// @throws Error as the inner communicator does, and where this rank was
  void wait(Ticket& ticket) {
    detail::CallTrace::Inside const inside(trace_);
    trace_.waiting(ticket.number_, inside.since());
    with_trace("waiting for ", ticket.number_, [&] { this->inner().wait(ticket.inner_); });
    trace_.finished(std::exchange(ticket.number_, detail::CallTrace::none));
  }

  /// Advances what is under way, where the inner communicator needs that.
  void progress() noexcept requires ProgressingCommunicator<C> {
    detail::CallTrace::Inside const inside(trace_);
    this->inner().progress();
  }
  /// As the inner communicator does.
  /// @throws Error as the inner communicator does, and where this rank was
  void confirm() requires ConfirmingCommunicator<C> {
    detail::CallTrace::Inside const inside(trace_);
    with_trace("confirming all up to ", trace_.last(), [&] { this->inner().confirm(); });
  }

  /// A sub-group that remembers as many calls of its own, with a clock of its own; the split itself
  /// is neither remembered nor timed.
  /// @throws Error as the inner communicator does, and where this rank was
  /// @param color  of the group that this rank will be in
  /// @param key    its place among the ranks of that color
  /// @param name   of the group, for messages
  [[nodiscard]] Traced split(int color,
                             int key,
                             std::string_view name = {}) requires SplittableCommunicator<C> {
    return with_trace("splitting after ", trace_.last(), [&] {
      return Traced(detail::split(this->inner(), color, key, name), trace_.capacity());
    });
  }

  /// The calls that are remembered, oldest first: a copy.
  [[nodiscard]] std::vector<TracedCall> calls() const { return trace_.calls(); }

  /// The calls that are remembered as text: one line about the rank, and one per call, oldest
  /// first. Seconds are those of `TracedCall`.
  [[nodiscard]] std::string describe() const { return trace_.describe(this->rank(), this->size()); }

  /// Seconds that this rank's host has spent in `start`, `wait`, `progress` and `confirm` since
  /// construction or the last `reset_seconds`: exposed communication, during which it has computed
  /// nothing but what the communicator adds up.
  [[nodiscard]] double seconds_inside() const noexcept { return trace_.seconds_inside(); }
  /// Counts the seconds inside from 0; what is remembered of calls stays.
  void reset_seconds() noexcept { trace_.reset_seconds(); }

 private:
  /// Calls `work()`, whose errors go on with what this rank was doing.
  template <class Work>
  decltype(auto) with_trace([[maybe_unused]] std::string_view doing,
                            [[maybe_unused]] std::uint64_t number,
                            Work const& work) {
#if defined(__cpp_exceptions)
    try {
      return work();
    } catch (Error const& error) {
      trace_.fail_here(error, this->rank(), this->size(), doing, number);
    }
#else
    return work();
#endif
  }

  detail::CallTrace trace_;
};

#if ZERO_BODIES

ZERO_BODY detail::CallTrace::CallTrace(std::size_t capacity) {
  if (capacity == 0) fail(ErrorKind::invalid_argument, "a trace has room for no call");
  ring_.resize(capacity);
}

ZERO_BODY void detail::CallTrace::starting(Collective const& op, double when) noexcept {
  TracedCall& record = slot(started_);
  record = {.number = started_, .call = op, .start_s = when};
  record.call.send = nullptr;
  record.call.recv = nullptr;
  asked_ = started_ + 1;
}

ZERO_BODY std::vector<TracedCall> detail::CallTrace::calls() const {
  std::vector<TracedCall> result;
  for (std::uint64_t i = oldest(); i < asked_; ++i) result.push_back(slot(i));
  return result;
}

ZERO_BODY std::string detail::CallTrace::describe(int rank, int size) const {
  Message const head{"rank ", rank, " of ", size, ": ", started_, " calls started"};
  std::string text = head.text() + finished_words() + '\n';
  for (std::uint64_t i = oldest(); i < asked_; ++i) {
    TracedCall const& record = slot(i);
    text += named(i) + seconds(": start", record.start_s);
    if (record.state == CallState::starting) text += ", did not succeed";
    if (record.state >= CallState::waiting) text += seconds(", wait", record.wait_s);
    if (record.state == CallState::waiting) text += ", did not succeed";
    if (record.state == CallState::finished) text += seconds(", finished", record.finish_s);
    text += '\n';
  }
  return text;
}

ZERO_BODY void detail::CallTrace::fail_here(
    Error const& error, int rank, int size, std::string_view doing, std::uint64_t number) const {
  Message const place{"; rank ",
                      rank,
                      " of ",
                      size,
                      " was ",
                      doing,
                      number == none ? std::string("no call") : named(number),
                      finished_words()};
  zero::detail::fail_again(error, place.text());
}

ZERO_BODY std::string detail::CallTrace::named(std::uint64_t number) const {
  Message const text{"call ", number};
  if (!remembers(number)) return text.text();
  return Message({text, " [", zero::detail::describe(slot(number).call), "]"}).text();
}

ZERO_BODY std::string detail::CallTrace::finished_words() const {
  if (last_finished_ == none) return ", no call finished";
  return ", last finished " + named(last_finished_);
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
