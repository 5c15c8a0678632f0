/// @file
/// What a rank has under way, and whether it takes too long.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/caller.hpp"
#include "zero/comm/nccl/equipment.hpp"
#include "zero/comm/nccl/exchange.hpp"
#include "zero/comm/nccl/family.hpp"
#include "zero/comm/nccl/flights.hpp"
#include "zero/comm/shared/backoff.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Every function is called with the family's lock. Collectives of a graph are under way whenever
/// it is launched, which nobody tells: those are not seen here.
template <nccl::Api A>
class NcclProgress {
 public:
  using Clock = std::chrono::steady_clock;
  using Flight = typename NcclFlights<A>::NcclFlight;
  using Lock = typename NcclFamily<A>::Lock;

  NcclProgress(NcclCaller<A> const& caller, NcclEquipment<A> const& equipment) noexcept
      : caller_(caller), equipment_(equipment) {}

  void create() {
    NcclActivity const activity{.operation = "init"};
    caller_.require(flights_.create(), activity);
    void* word = nullptr;
    caller_.require(A::host_alloc(&word, sizeof(std::int64_t)), activity);
    ended_ = new (word) std::int64_t{0};
    caller_.family().warn(ended_);
  }
  void destroy() noexcept {
    flights_.destroy();
    if (ended_ == nullptr) return;
    caller_.family().warn_no_more(ended_);
    static_cast<void>(A::host_free(std::exchange(ended_, nullptr)));
  }
  /// A word for kernels, not zero once the family has ended; null before `create`.
  [[nodiscard]] std::int64_t const* ended() const noexcept { return ended_; }

  /// Waits until a collective fewer than can be told apart is under way, then enqueues one:
  /// `launch()`.
  /// @param captured  it becomes part of a graph
  template <class Launch>
  NcclDeparture enqueue(Lock& lock, Collective const& op, bool captured, Launch const& launch) {
    NcclActivity const activity = NcclActivity::of(op, number());
    Flight& flight = flights_.next();
    if (!flight.done) finish(lock, flight, activity);
    if (captured) caller_.family().capture();
    launch();
    caller_.unlocked(
        lock, activity, [&] { return A::event_record(flight.event, equipment_.stream); });
    flight.op = op;
    // Its event cannot be asked.
    flight.done = captured;
    return {flights_.commit(flight), captured};
  }

  /// The number that the next collective will have.
  [[nodiscard]] std::uint64_t number() const noexcept { return flights_.number(); }
  /// The flight of that number; null if it is done and its slot used again.
  [[nodiscard]] Flight* find(std::uint64_t number) noexcept { return flights_.find(number); }
  /// The first flight that has not landed; null if there is none.
  [[nodiscard]] Flight* oldest() noexcept { return flights_.oldest(); }

  /// Asks how far everything is. Returns what CUDA says about it.
  nccl::Status update() {
    bool moved = false;
    nccl::Status const landed = flights_.update(moved);
    if (moved) moved_ = Clock::now();
    return landed;
  }

  /// The trainer is through: a peer that leaves is an error only of who still has something under
  /// way.
  void expect_departures() noexcept { departures_ = true; }

  /// Looks at everything under way once. What has failed or takes too long ends the family; the
  /// caller finds that out from it.
  void look() {
    nccl::Status const landed = update();
    Suspect const suspect = this->suspect();
    if (landed.failed()) {
      caller_.family().end(caller_.sentence(typename A::Comm{}, landed, suspect.activity));
      return;
    }
    // What peers waited for before they left may have come while NCCL was asked.
    auto const through = [this] { return departures_ && oldest() == nullptr; };
    if (through()) return;
    auto state = nccl::Result::success;
    nccl::Status status = A::async_error(equipment_.comm, &state);
    if (status.ok()) status.result = state;
    if (status.failed()) {
      if (departures_ && update().ok() && through()) return;
      caller_.family().end(caller_.sentence(equipment_.comm, status, suspect.activity));
      return;
    }
    if (!suspect.any) return;
    // What moved since may have been what it waited for.
    if (Clock::now() - (std::max)(suspect.since, moved_) > caller_.deadline()) {
      caller_.family().end(caller_.late(suspect.activity));
    }
  }

  /// Polls until a flight has landed; the lock is free in between.
  void finish(Lock& lock, Flight& flight, NcclActivity const& activity) {
    std::uint64_t const number = flight.number;
    Backoff backoff;
    while (true) {
      look();
      if (flight.done || flight.number != number) return;
      caller_.family().throw_if_failed(activity);
      lock.unlock();
      backoff.pause();
      lock.lock();
      // The watching thread may have seen it land, or the end of the family.
      if (flight.done || flight.number != number) return;
      caller_.family().throw_if_failed(activity);
    }
  }

  /// What each rank brings, through the staging memory. Collective; blocks.
  template <class T>
  std::vector<T> gather(
      Lock& lock, T const& mine, int rank, int size, NcclActivity const& activity) {
    std::vector<T> all(static_cast<std::size_t>(size));
    std::byte* const own = equipment_.staging + static_cast<std::size_t>(rank) * sizeof(T);
    caller_.require(A::upload(own, &mine, sizeof(T), equipment_.stream), activity);
    Collective const exchange{.op = Op::all_gather,
                              .dtype = DType::u8,
                              .count = sizeof(T),
                              .send = own,
                              .recv = equipment_.staging,
                              .bucket = -1};
    NcclExchange<A> const calls(caller_, lock, equipment_, rank, size, number());
    NcclDeparture const departure =
        enqueue(lock, exchange, false, [&] { calls.template launch<false>(exchange); });
    finish(lock, *find(departure.number), activity);
    caller_.family().throw_if_failed(activity);
    caller_.require(
        A::download(all.data(), equipment_.staging, all.size() * sizeof(T), equipment_.stream),
        activity);
    return all;
  }

 private:
  /// What everything else may be waiting for.
  struct Suspect {
    NcclActivity activity{};
    Clock::time_point since{};
    bool any = false;
  };

  [[nodiscard]] Suspect suspect() noexcept {
    Flight const* const flight = flights_.oldest();
    if (flight != nullptr) {
      return {NcclActivity::of(flight->op, flight->number), flight->started, true};
    }
    // A rank that others wait for has nothing under way.
    return {.activity = {.operation = "watch", .number = number()}};
  }

  NcclCaller<A> const& caller_;
  NcclEquipment<A> const& equipment_;
  NcclFlights<A> flights_;
  std::int64_t* ended_ = nullptr;  ///< what kernels are told by the host
  bool departures_ = false;        ///< peers may leave
  Clock::time_point moved_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
