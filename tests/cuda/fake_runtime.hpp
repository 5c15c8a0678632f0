/// @file
/// A device runtime over host memory whose order of work is as bad as it may be.
///
/// A trainer's work is done when somebody waits for it, and then no more of it than the waits
/// demand; transfers are as late as that, or as early as their waits allow. What was enqueued
/// without the wait it needed then reads too early or is overwritten too early, every time.
#pragma once

#include "zero/comm/device_engine.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/space/host.hpp"

#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace fake {

struct Stream;

/// A piece of work, or a wait for another stream.
struct Work {
  std::function<void()> run;
  Stream* other = nullptr;
  std::size_t upto = 0;
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
    push(stream, {.run = std::move(work)});
  }
  void record(Stream* stream, Event* event) {
    std::lock_guard const lock(mutex_);
    *event = {.stream = stream, .upto = stream->enqueued};
  }
  void wait(Stream* stream, Event* event) {
    std::lock_guard const lock(mutex_);
    if (event->stream == nullptr) return;  // never recorded: as the CUDA runtime has it
    push(stream, {.run = {}, .other = event->stream, .upto = event->upto});
  }
  /// Does all that was enqueued to a stream, and what it waits for.
  void synchronize(Stream* stream) {
    std::lock_guard const lock(mutex_);
    advance(stream, stream->enqueued);
  }

  /// Counts calls of the runtime; the call with this number fails, and those after it.
  std::size_t fail_at = ~std::size_t{0};
  bool call() {
    std::lock_guard const lock(mutex_);
    return calls_++ < fail_at;
  }
  [[nodiscard]] std::size_t calls() const { return calls_; }

 private:
  static void push(Stream* stream, Work work) {
    stream->work.push_back(std::move(work));
    ++stream->enqueued;
    while (stream->early && stream->done < stream->enqueued) {
      Work const& next = stream->work.front();
      if (next.other != nullptr && next.other->done < next.upto) return;
      advance(stream, stream->done + 1);
    }
  }
  static void advance(Stream* stream, std::size_t upto) {
    while (stream->done < upto) {
      Work const work = std::move(stream->work.front());
      stream->work.pop_front();
      ++stream->done;
      if (work.other != nullptr) {
        advance(work.other, work.upto);
      } else {
        work.run();
      }
    }
  }

  Transfers transfers_;
  std::mutex mutex_;
  std::deque<Stream> streams_;
  std::deque<Event> events_;
  std::size_t calls_ = 0;
};

/// The space of one rank: its trainer's stream. Counts what makes a host wait.
class Space {
 public:
  static constexpr std::string_view name = "fake device";
  static constexpr bool host_accessible = false;

  explicit Space(std::shared_ptr<Machine> machine)
      : machine_(std::move(machine)), stream_(machine_->open()) {}

  [[nodiscard]] Stream* stream() const { return stream_; }
  [[nodiscard]] Machine& machine() const { return *machine_; }
  void synchronize() const { machine_->synchronize(stream_); }

  void zero(void* memory, std::size_t bytes) const {
    enqueue([=] { host::zero(memory, bytes); });
  }
  void copy(void* to, void const* from, std::size_t bytes) const {
    enqueue([=] { host::copy(to, from, bytes); });
  }
  void upload(void* to, void const* from, std::size_t bytes) const {
    auto const* const begin = static_cast<std::byte const*>(from);
    std::vector<std::byte> kept(begin, begin + bytes);
    enqueue([to, data = std::move(kept)] { host::copy(to, data.data(), data.size()); });
  }
  void download(void* to, void const* from, std::size_t bytes) const {
    copy(to, from, bytes);
    synchronize();
  }
  template <class To, class From>
  void convert(To* out, From const* in, std::size_t count) const {
    enqueue([=] { host::convert(out, in, count); });
  }
  template <class Sum, class From>
  void add(Sum* out, From const* in, std::size_t count) const {
    enqueue([=] { host::add(out, in, count); });
  }
  template <class T>
  void add_squares(zero::ExactSum* sum, T const* x, std::size_t count) const {
    enqueue([=] { host::add_squares(sum, x, count); });
  }
  template <class F>
  void call(F const& function) const {
    enqueue([function] { function(); });
  }
  template <class Rule, class Arrays>
  void update(Rule const& rule,
              zero::StepTerms const* terms,
              zero::UpdateRates const& rates,
              Arrays const& arrays) const {
    enqueue([=] { host::update(rule, terms, rates, arrays); });
  }

 private:
  using host = zero::space::Host;

  void enqueue(std::function<void()> work) const { machine_->enqueue(stream_, std::move(work)); }

  std::shared_ptr<Machine> machine_;
  Stream* stream_;
};

/// The runtime as DeviceGroup asks for it.
struct Api {
  using Space = fake::Space;
  using Stream = fake::Stream*;
  using Event = fake::Event*;
  static constexpr int max_ranks = 64;

  char const* connect(Space const& own, Space const& peer) const {
    if (&own.machine() != &peer.machine()) return "two devices of different machines";
    return status(own);
  }
  Stream stream(Space const& space) const { return space.stream(); }
  char const* open(Space const& space, Stream& stream) const {
    stream = space.machine().open_transfers();
    return status(space);
  }
  char const* create(Space const& space, Event& event) const {
    event = space.machine().create();
    return status(space);
  }
  char const* record(Space const& space, Stream stream, Event event) const {
    space.machine().record(stream, event);
    return status(space);
  }
  char const* wait(Space const& space, Stream stream, Event event) const {
    space.machine().wait(stream, event);
    return status(space);
  }
  char const* copy(
      Space const& space, Stream stream, void* to, void const* from, std::size_t bytes) const {
    space.machine().enqueue(stream, [=] { std::memcpy(to, from, bytes); });
    return status(space);
  }
  char const* sum(Space const& space, Stream stream, zero::detail::DeviceSum const& sum) const {
    std::vector<void*> targets(sum.targets, sum.targets + sum.target_count);
    std::vector<void const*> sources(sum.sources, sum.sources + sum.source_count);
    space.machine().enqueue(
        stream, [=, targets = std::move(targets), sources = std::move(sources)] {
          std::size_t const element = size_of(sum.dtype);
          std::vector<std::byte> result(sum.count * element);
          auto const function = zero::kernel::sum_function(sum.dtype, sum.accumulate);
          function(result.data(),
                   sources.data(),
                   sum.first,
                   sum.source_count,
                   sum.count,
                   zero::kernel::Store::cached);
          for (void* const target : targets) {
            std::memcpy(static_cast<std::byte*>(target) + sum.first * element,
                        result.data(),
                        result.size());
          }
        });
    return status(space);
  }
  void close(Stream) const {}
  void destroy(Event) const {}

 private:
  static char const* status(Space const& space) {
    return space.machine().call() ? nullptr : "the device is on fire";
  }
};

static_assert(zero::detail::DeviceApi<Api>);

/// Spaces of a machine with one queue per rank.
[[nodiscard]] inline std::vector<Space> spaces(int ranks, std::shared_ptr<Machine> const& machine) {
  std::vector<Space> result;
  for (int rank = 0; rank < ranks; ++rank) result.emplace_back(machine);
  return result;
}

}  // namespace fake
