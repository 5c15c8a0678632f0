/// @file
/// What a rank has under way, in streams and in graphs, and whether it takes too long.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/nccl/nccl_api.hpp"
#include "zero/comm/nccl/nccl_caller.hpp"
#include "zero/comm/nccl/nccl_equipment.hpp"
#include "zero/comm/nccl/nccl_exchange.hpp"
#include "zero/comm/nccl/nccl_family.hpp"
#include "zero/comm/nccl/nccl_flights.hpp"
#include "zero/comm/nccl/nccl_replays.hpp"
#include "zero/comm/shared/backoff.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Every function is called with the family's lock.
template <nccl::Api A>
class NcclProgress {
 public:
  using Clock = std::chrono::steady_clock;
  using Lanes = std::vector<NcclLane<A>>;
  using Flight = typename NcclFlights<A>::Flight;
  using Lock = typename NcclFamily<A>::Lock;

  NcclProgress(NcclCaller<A> const& caller,
               Lanes const& lanes,
               NcclEquipment<A> const& equipment) noexcept
      : caller_(caller), lanes_(lanes), equipment_(equipment) {}

  void create() {
    NcclActivity const activity{.operation = "init"};
    caller_.require(flights_.create(), activity);
    caller_.require(replays_.create(), activity);
    caller_.family().warn(replays_.ended());
    for (typename A::Event& event : captured_) {
      caller_.require(A::event_create(&event), activity);
      ++events_;
    }
  }
  void destroy() noexcept {
    for (; events_ > 0; --events_) static_cast<void>(A::event_destroy(captured_[events_ - 1]));
    flights_.destroy();
    caller_.family().warn_no_more(replays_.ended());
    replays_.destroy();
  }
  /// A word for kernels, not zero once the family has ended; null before `create`.
  [[nodiscard]] std::int64_t const* ended() const noexcept { return replays_.ended(); }

  /// Waits until a collective fewer than can be told apart is under way, then enqueues one:
  /// `launch()` on the lane's stream.
  /// @param capture  that it becomes part of; 0: none
  template <class Launch>
  NcclDeparture enqueue(Lock& lock,
                        Collective const& op,
                        std::size_t lane,
                        std::uint64_t capture,
                        Launch const& launch) {
    NcclActivity const activity = NcclActivity::of(op, number());
    bool const captured = capture != 0;
    NcclLane<A> const& at = lanes_[lane];
    Flight& flight = flights_.next();
    if (!flight.done) finish(lock, flight, activity);
    std::size_t const counter = captured ? replays_.number_of(op, capture) : 0;
    if (captured) {
      caller_.family().capture();
      equipment_.order(caller_, lock, at.stream, at.beside, activity);
      caller_.unlocked(lock, activity, [&] { return replays_.count_begin(counter, at.beside); });
    }
    launch();
    caller_.unlocked(lock, activity, [&] { return A::event_record(flight.event, at.stream); });
    if (captured) {
      caller_.unlocked(lock, activity, [&] {
        nccl::Status status = A::stream_wait(at.beside, flight.event);
        if (status.ok()) status = replays_.count_end(counter, at.beside);
        return status.ok() ? A::event_record(captured_[lane], at.beside) : status;
      });
      newest_[lane] = flights_.number();
    }
    flight.op = op;
    flight.lane = lane;
    flight.captured = captured;
    return {flights_.commit(flight), lane, captured};
  }

  /// What a stream of the same capture waits for to have the result of a captured collective.
  ///
  /// A capture has to come back from the stream that counts, but who waits for a result need not
  /// wait for its count. So the newest collective of a lane has the event behind all counts of the
  /// lane; those before it have their own, unless later ones have taken their slots: all of a lane
  /// come one after the other.
  [[nodiscard]] typename A::Event event_of(NcclDeparture const& departure) noexcept {
    Flight const* const flight = flights_.find(departure.number);
    bool const newest = departure.number == newest_[departure.lane];
    return flight != nullptr && !newest ? flight->event : captured_[departure.lane];
  }

  /// The number that the next collective will have.
  [[nodiscard]] std::uint64_t number() const noexcept { return flights_.number(); }
  /// The flight of that number; null if it is done and its slot used again.
  [[nodiscard]] Flight* find(std::uint64_t number) noexcept { return flights_.find(number); }
  /// The first flight that has not landed; null if there is none.
  [[nodiscard]] Flight* oldest() noexcept { return flights_.oldest(); }
  /// True if something had not ended when it was last looked at.
  [[nodiscard]] bool busy() noexcept {
    return flights_.oldest() != nullptr || replays_.oldest() != nullptr;
  }

  /// Asks how far everything is. Returns what CUDA says about it.
  nccl::Status update() {
    bool moved = replays_.update();
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
    auto const through = [this] { return departures_ && !busy(); };
    if (through()) return;
    for (NcclLane<A> const& lane : lanes_) {
      auto state = nccl::Result::success;
      nccl::Status status = A::async_error(lane.comm, &state);
      if (status.ok()) status.result = state;
      if (!status.failed()) continue;
      if (departures_ && update().ok() && through()) return;
      caller_.family().end(caller_.sentence(lane.comm, status, suspect.activity));
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
    NcclLane<A> const& lane = lanes_.front();
    std::vector<T> all(static_cast<std::size_t>(size));
    std::byte* const own = lane.staging + static_cast<std::size_t>(rank) * sizeof(T);
    caller_.require(A::upload(own, &mine, sizeof(T), lane.stream), activity);
    Collective const exchange{.op = Op::all_gather,
                              .dtype = DType::u8,
                              .count = sizeof(T),
                              .send = own,
                              .recv = lane.staging,
                              .bucket = -1};
    NcclExchange<A> const calls(caller_, lock, lane, rank, size, number());
    NcclDeparture const departure =
        enqueue(lock, exchange, 0, 0, [&] { calls.template launch<false>(exchange); });
    finish(lock, *find(departure.number), activity);
    caller_.family().throw_if_failed(activity);
    caller_.require(A::download(all.data(), lane.staging, all.size() * sizeof(T), lane.stream),
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
    auto const* const replay = replays_.oldest();
    // A replay is seen to have begun; a flight may still be behind it.
    if (replay != nullptr) {
      return {NcclActivity::of_replay(replay->op, replay->begun), replay->since, true};
    }
    if (flight != nullptr) {
      return {NcclActivity::of(flight->op, flight->number), flight->started, true};
    }
    // A rank that others wait for has nothing under way.
    return {.activity = {.operation = "watch", .number = number()}};
  }

  NcclCaller<A> const& caller_;
  Lanes const& lanes_;
  NcclEquipment<A> const& equipment_;
  NcclFlights<A> flights_;
  NcclReplays<A> replays_;
  std::array<typename A::Event, 2> captured_{};  ///< behind the count of the newest, by lane
  std::array<std::uint64_t, 2> newest_{};        ///< captured collective, by lane
  std::size_t events_ = 0;
  bool departures_ = false;  ///< peers may leave
  Clock::time_point moved_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
