/// @file
/// What one rank of a group knows of what goes wrong there, and tells its family.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/exchange.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/report.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Between a group, which moves data, and the ending of its family. The family's lock is held.
class Witness {
  using Failure = zero::detail::Failure;

 public:
  /// All live longer.
  Witness(Family& family,
          Peers const& peers,
          Flights& flights,
          Exchange& exchange,
          std::uint64_t id,
          std::string_view name)
      : family_(&family),
        peers_(&peers),
        flights_(&flights),
        exchange_(&exchange),
        id_(id),
        name_(name) {}

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] int own_number() const noexcept { return peers_->world_rank(peers_->rank()); }

  /// @throws Error (communication) once it is known what the family ends with
  void throw_if_ended(Collective const& op) {
    if (!family_->is_sound() || !family_->withdrawn.empty()) throw_if_known(op);
  }
  /// Begins to end if a rank has called something else, or MPI has failed.
  /// @param error  MPI's code
  void judge(int error) {
    if (flights_->disagreement().number != never || error != MPI_SUCCESS) end_for(error);
  }
  /// Nothing has moved for the deadline.
  ZERO_COLD void end_late() {
    family_->end({.cause = EndCause::late, .at = {id_, flights_->oldest()}});
  }
  /// Who waits for a rank that has left will wait for ever.
  void look_for_departures() {
    // All have left who close what they have left.
    if (calls_of_left(peers_->rank()) != never) return;
    bool left = !family_->departures().empty();
    for (int const peer : peers_->local_ranks()) left = left || calls_of_left(peer) != never;
    if (left && family_->is_sound()) end_if_missed();
  }

  /// This rank drops the ticket of a collective that is not done.
  ZERO_COLD void abandon(std::uint64_t number, bool unwinding) {
    flights_->at(number).withdrawn = true;
    family_->give_up_buffers();
    std::string text = zero::detail::describe(failure(Failure::Cause::abandoned, number));
    if (unwinding) {
      family_->withdrawn = std::move(text);
    } else if (is_running()) {
      family_->end_by_words(std::move(text), {id_, number});
    }
  }
  /// This rank will start nothing more.
  /// @param first  the family was constructed with this group
  ZERO_COLD void leave(bool first, bool unwinding) {
    if (!is_running()) return;
    // Where a group that was split off is unwound, its rank can still say why in the first one.
    if (!family_->withdrawn.empty() && (first || !unwinding)) {
      end_by_withdrawn();
      family_->stay();
      return;
    }
    std::uint64_t const calls = flights_->posted();
    Control& own = peers_->own();
    own.left_unwinding.store(unwinding ? 1 : 0, std::memory_order_relaxed);
    own.left_at.store(calls, std::memory_order_release);
    family_->depart({.cause = EndCause::left,
                     .at = {id_, calls},
                     .rank = own_number(),
                     .unwinding = unwinding,
                     .calls = calls});
  }
  /// An exception on this rank; true if nothing had failed before.
  ZERO_COLD bool report(std::string_view reason) {
    std::uint64_t const calls = flights_->posted();
    Failure thrown = failure(Failure::Cause::thrown, calls - 1);
    thrown.reason = reason;
    family_->withdrawn.clear();
    bool const first = family_->end_by_words(zero::detail::describe(thrown), {id_, calls});
    family_->stay();
    return first;
  }

  /// See GroupMember.
  ZERO_COLD void tell_calls(Calls& calls) {
    calls.group = id_;
    calls.made = flights_->posted();
    copy_text(name_, calls.name);
    for (auto n = calls.first(); n < calls.made; ++n) calls.at(n) = flights_->at(n).head.call;
  }
  ZERO_COLD void tell_waiting(RankReport& report) {
    if (flights_->none()) return;
    CallInFlight const& flight = flights_->at(flights_->oldest());
    report.waits = true;
    report.at = {id_, flight.number};
    exchange_->waits_for(flight, [&](int peer) { report.wait_on(peers_->world_rank(peer)); });
  }
  /// The first collective that is not done, in words.
  [[nodiscard]] ZERO_COLD std::string describe_oldest() {
    return flights_->none() ? "a group"
                            : zero::detail::describe_call(flights_->at(flights_->oldest()).op);
  }

 private:
  /// @param number  of a call that was made, or the one before the first
  [[nodiscard]] Failure failure(Failure::Cause cause, std::uint64_t number) {
    Failure result{.cause = cause, .rank = own_number(), .calls = flights_->posted()};
    if (result.calls > 0) result.call = flights_->at(number).op;
    result.group = name_;
    return result;
  }
  void end_by_withdrawn() {
    family_->end_by_words(std::exchange(family_->withdrawn, {}), {id_, flights_->oldest()});
  }
  ZERO_COLD void throw_if_known(Collective const& op) {
    if (!family_->withdrawn.empty()) end_by_withdrawn();
    if (!family_->has_ended()) return;
    fail(ErrorKind::communication,
         family_->sentence(),
         {.rank = own_number(),
          .operation = zero::detail::operation_name(op),
          .bucket = op.bucket,
          .group = name_});
  }
  ZERO_COLD void end_for(int error) {
    Disagreement const& found = flights_->disagreement();
    if (found.number == never) {
      family_->end_by_mpi(
          error, describe_oldest() + zero::detail::on_group(name_), {id_, flights_->oldest()});
      return;
    }
    family_->end({.cause = EndCause::mismatch,
                  .at = {id_, found.number},
                  .rank = peers_->world_rank(found.peer),
                  .known = found.known,
                  .call = found.call});
  }
  /// A rank that left while an exception was on its way is given time to say why.
  ZERO_COLD void end_if_missed() {
    std::uint64_t const oldest = flights_->oldest();
    Finding gone{.rank = -1};
    auto const found = [&](int rank, std::uint64_t calls, bool unwinding) {
      if (calls > oldest || (gone.rank >= 0 && gone.rank < rank)) return;
      gone = {.cause = EndCause::left,
              .at = {id_, oldest},
              .rank = rank,
              .unwinding = unwinding,
              .calls = calls};
    };
    exchange_->waits_for(flights_->at(oldest), [&](int peer) {
      int const rank = peers_->world_rank(peer);
      if (peers_->is_local(peer)) {
        std::uint64_t const calls = calls_of_left(peer);
        found(
            rank, calls, peers_->control(peer).left_unwinding.load(std::memory_order_relaxed) != 0);
      }
      for (Finding const& one : family_->departures()) {
        if (one.at.group == id_ && one.rank == rank) found(rank, one.calls, one.unwinding);
      }
    });
    if (gone.rank < 0) return;
    auto const now = Clock::now();
    if (missed_ == Clock::time_point{}) missed_ = now;
    std::chrono::duration<double> const since = now - missed_;
    if (!gone.unwinding || since.count() >= window_s(true, 0)) family_->end(gone);
  }
  /// Calls made by a local rank that will make no more, or never.
  [[nodiscard]] std::uint64_t calls_of_left(int peer) const noexcept {
    return peers_->control(peer).left_at.load(std::memory_order_acquire);
  }

  Family* family_;
  Peers const* peers_;
  Flights* flights_;
  Exchange* exchange_;
  std::uint64_t id_;
  std::string name_;
  Clock::time_point missed_{};  ///< when this rank first waited for one that has left
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
