/// @file
/// Streams and events of a device whose order of work is as bad as it may be.
///
/// Work is done when somebody waits for it, and then no more of it than the waits demand. What was
/// enqueued without the wait it needed then reads too early or is overwritten too early, every
/// time.
#pragma once

#include "support/standard.hpp"

namespace fake {

struct Stream;

/// A piece of work, a wait for another stream, or work that other threads may not be ready for.
struct Work {
  std::function<void()> run;
  Stream* other = nullptr;
  std::size_t upto = 0;
  std::function<bool()> attempt;  ///< false: not yet
};

/// When transfers are done.
enum class Transfers { late, early };

/// Work in order, done up to somewhere.
struct Stream {
  bool early = false;
  std::deque<Work> work;
  std::size_t enqueued = 0;
  std::size_t done = 0;
};

/// How far a stream had come when the event was recorded.
struct Event {
  Stream* stream = nullptr;
  std::size_t upto = 0;
};

/// All streams of all devices, behind one lock.
class Machine {
 public:
  explicit Machine(Transfers transfers = Transfers::late) : transfers_(transfers) {}

  /// A trainer's stream.
  Stream* open() {
    std::lock_guard const lock(mutex_);
    return &streams_.emplace_back();
  }
  /// A stream for transfers.
  Stream* open_transfers() {
    std::lock_guard const lock(mutex_);
    streams_.emplace_back().early = transfers_ == Transfers::early;
    return &streams_.back();
  }
  Event* create() {
    std::lock_guard const lock(mutex_);
    return &events_.emplace_back();
  }
  void enqueue(Stream* stream, std::function<void()> work) {
    std::lock_guard const lock(mutex_);
    push(stream, {.run = std::move(work), .other = nullptr, .attempt = {}});
  }
  /// Enqueues work that is tried until it says it is done, behind so many pieces of work.
  std::size_t enqueue_attempt(Stream* stream, std::function<bool()> attempt) {
    std::lock_guard const lock(mutex_);
    std::size_t const position = stream->enqueued;
    push(stream, {.run = {}, .other = nullptr, .attempt = std::move(attempt)});
    return position;
  }
  void record(Stream* stream, Event* event) {
    std::lock_guard const lock(mutex_);
    *event = {.stream = stream, .upto = stream->enqueued};
  }
  void wait(Stream* stream, Event* event) {
    std::lock_guard const lock(mutex_);
    if (event->stream == nullptr) return;  // never recorded: as the CUDA runtime has it
    push(stream, {.run = {}, .other = event->stream, .upto = event->upto, .attempt = {}});
  }
  /// Does all that was enqueued to a stream, and what it waits for. False if that takes work that
  /// other threads have not enqueued yet.
  bool synchronize(Stream* stream) {
    std::lock_guard const lock(mutex_);
    return reach(stream, stream->enqueued);
  }
  /// Does what was enqueued before an event, and what that waits for, or no more than `most` pieces
  /// of it; false if not all of it is done.
  bool synchronize(Event const* event, std::size_t most = ~std::size_t{0}) {
    std::lock_guard const lock(mutex_);
    Stream* const stream = event->stream;
    if (stream == nullptr || stream->done >= event->upto) return true;
    std::size_t const end = event->upto - stream->done > most ? stream->done + most : event->upto;
    return reach(stream, end) && stream->done >= event->upto;
  }
  /// Does some work of some stream, if it has any.
  template <class Random>
  void progress(Random& random) {
    std::lock_guard const lock(mutex_);
    if (streams_.empty()) return;
    Stream& stream = streams_[random() % streams_.size()];
    reach(&stream, std::min(stream.enqueued, stream.done + random() % 4));
  }

  /// Does the first `upto` pieces of a stream's work, unless they cannot be done yet. For work that
  /// runs, which has the lock.
  static bool reach(Stream* stream, std::size_t upto) {
    while (stream->done < upto) {
      Work& next = stream->work.front();
      if (next.other != nullptr && !reach(next.other, next.upto)) return false;
      if (next.attempt && !next.attempt()) return false;
      Work const work = std::move(next);
      stream->work.pop_front();
      ++stream->done;
      if (work.run) work.run();
    }
    return true;
  }

  /// Forgets work that was not done.
  void drop(Stream* stream) {
    std::lock_guard const lock(mutex_);
    stream->work.clear();
    stream->done = stream->enqueued;
  }

  /// Counts calls of the runtime; the call with this number fails, and so many after it.
  std::size_t fail_at = ~std::size_t{0};
  std::size_t fail_more = ~std::size_t{0};
  bool call() {
    std::lock_guard const lock(mutex_);
    std::size_t const number = calls_++;
    return number < fail_at || number - fail_at > fail_more;
  }
  [[nodiscard]] std::size_t calls() const { return calls_; }

 private:
  static void push(Stream* stream, Work work) {
    stream->work.push_back(std::move(work));
    ++stream->enqueued;
    while (stream->early && stream->done < stream->enqueued) {
      Work const& next = stream->work.front();
      if (next.other != nullptr && next.other->done < next.upto) return;
      if (!reach(stream, stream->done + 1)) return;
    }
  }
  Transfers transfers_;
  std::mutex mutex_;
  std::deque<Stream> streams_;
  std::deque<Event> events_;
  std::size_t calls_ = 0;
};

}  // namespace fake
