/// @file
/// Who has called what: announcing a collective, hearing of peers' calls, comparing them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/dissemination.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/inquiry.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/notices.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/summary.hpp"
#include "zero/comm/shared/failure.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// The calls of all ranks. Near ranks read them in each other's control blocks; of all others a
/// rank is told by its leader what they amount to.
///
/// A rank that waits and sees nothing move asks all others what they know. That names whoever is
/// missing, and makes up for a rank that started a collective and does not pass on what it hears.
class Roll {
 public:
  Roll(MPI_Comm comm, Peers const& peers) : peers_(&peers), inquiry_(peers.topology()) {
    if (peers.topology().nodes() == 1) return;
    rounds_ = std::make_unique<Dissemination>(comm, peers);
    notices_ = std::make_unique<Notices>(comm, peers);
  }

  /// Tells all peers of this rank's next call, whose copy of the data is in its slot already: near
  /// ones at once, others by `hear`.
  void announce(Call const& call) noexcept {
    Control& own = peers_->own();
    own.slot(call.sequence).call = call;
    own.posted.store(call.sequence + 1, std::memory_order_release);
  }

  /// Tells all peers that this rank will make no more calls.
  /// @param calls  that it has made
  void leave(std::uint64_t calls, bool unwinding) noexcept {
    Control& own = peers_->own();
    own.left_unwinding.store(unwinding ? 1 : 0, std::memory_order_relaxed);
    own.left_at.store(calls, std::memory_order_release);
    if (notices_ == nullptr) return;
    auto const kind = unwinding ? Notice::Kind::left_unwinding : Notice::Kind::left;
    static_cast<void>(notices_->send({.kind = kind, .rank = peers_->rank(), .calls = calls}));
  }

  /// Passes on and files what ranks elsewhere have called; true if any of it moved. What is told
  /// because nothing moves is no movement.
  /// @param oldest  the first collective that is not done here
  /// @param error   MPI's code if something went wrong
  bool hear(std::uint64_t oldest, int& error) {
    if (rounds_ == nullptr) return false;
    oldest_ = oldest;
    bool const moved = rounds_->advance(oldest, error);
    // Notices are rare, and a look for them costs as much as one for all rounds.
    if (++looks_ % looks_per_notice == 0) {
      notices_->poll(error, [&](Notice const& notice) { file(notice); });
    }
    if (!askers_.empty() || inquiry_.has_stories()) answer(error);
    return moved;
  }

  /// Asks all ranks elsewhere what they know of the collectives that this one does not know all
  /// about. They answer when they have started them and look.
  /// @return MPI's code
  ZERO_COLD int ask() {
    if (notices_ == nullptr) return MPI_SUCCESS;
    for (std::uint64_t sequence = agreed_; sequence < posted_by(peers_->rank()); ++sequence) {
      ++questions_;
      Notice const question = notice(Notice::Kind::question, sequence);
      if (int const code = notices_->send(question); code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  }

  /// How many collectives a rank has started, as far as this one knows.
  [[nodiscard]] std::uint64_t posted_by(int rank) const noexcept {
    if (peers_->is_near(rank)) return peers_->posted_by(rank);
    return (std::max)(agreed_, inquiry_.posted_by(rank));
  }
  /// True if a rank shows that it is looking for what others say of a collective.
  [[nodiscard]] bool is_attentive(int rank, std::uint64_t sequence) const noexcept {
    if (peers_->is_near(rank)) return peers_->is_waiting(rank);
    return inquiry_.told_by(rank) > sequence;
  }
  /// What a near rank called; valid once it has.
  [[nodiscard]] Call const& call_of(std::uint64_t sequence, int rank) const noexcept {
    return peers_->control(rank).slot(sequence).call;
  }
  /// All calls of the collective that was agreed on last.
  [[nodiscard]] Summary const& agreed() const noexcept { return calls_; }

  /// What all ranks make of a collective.
  struct Verdict {
    bool agreed = false;  ///< all have started the same
    std::optional<zero::detail::Failure> failure{};
  };
  [[nodiscard]] Verdict compare(Flight const& flight) {
    if (!look(flight.sequence)) return {.failure = departure(flight)};
    if (calls_.other_rank >= 0) {
      return {.failure = zero::detail::Failure{.cause = zero::detail::Failure::Cause::mismatch,
                                               .rank = peers_->world_rank(calls_.other_rank),
                                               .other = peers_->world_rank(calls_.rank),
                                               .calls = flight.sequence,
                                               .call = calls_.other.collective(),
                                               .other_call = calls_.call.collective()}};
    }
    agreed_ = (std::max)(agreed_, flight.sequence + 1);
    return {.agreed = true};
  }

  /// Messages that this rank has sent.
  [[nodiscard]] std::uint64_t sent() const noexcept {
    return rounds_ == nullptr ? 0 : rounds_->sent() + notices_->sent();
  }
  [[nodiscard]] std::size_t held() const noexcept {
    return rounds_ == nullptr ? 0 : rounds_->held();
  }
  /// True once MPI holds nothing that this rank has sent for a collective.
  [[nodiscard]] bool has_delivered(std::uint64_t sequence, int& error) {
    return rounds_ == nullptr || rounds_->has_delivered(sequence, error);
  }

  /// Takes the last notices, which must not reach a later group that MPI takes for this one.
  /// Collective; blocks. After a collective that told all ranks to come here.
  /// @param oldest  as in `hear`
  void hear_last(Blocking& blocking, std::uint64_t oldest) {
    if (notices_ == nullptr) return;
    auto const questions = blocking.gather(notices_->comm(), peers_->size(), questions_);
    std::uint64_t expected = 0;
    for (int peer = 0; peer < peers_->size(); ++peer) {
      if (peers_->is_near(peer)) continue;
      expected += questions[static_cast<std::size_t>(peer)] + questions_;
    }
    blocking.wait("the last notices", [&] {
      int error = MPI_SUCCESS;
      hear(oldest, error);
      check(error, "MPI_Testsome");
      return notices_->taken() >= expected;
    });
  }
  void cancel() noexcept {
    if (rounds_ == nullptr) return;
    rounds_->cancel();
    notices_->cancel();
  }
  [[nodiscard]] bool settled() noexcept {
    return rounds_ == nullptr || (rounds_->settled() && notices_->settled());
  }
  /// Gives up what MPI holds.
  /// @param forsaken  MPI must not be called any more
  void end(bool forsaken) noexcept {
    if (rounds_ != nullptr && forsaken) {
      rounds_->forsake();
      notices_->forsake();
    }
    rounds_.reset();
    notices_.reset();
  }

 private:
  /// True if this rank has rounds for its node.
  [[nodiscard]] bool leads() const noexcept { return peers_->leader() == peers_->rank(); }
  /// Finds all ranks' calls; false if somebody's is missing.
  [[nodiscard]] bool look(std::uint64_t sequence) {
    if (rounds_ == nullptr) {
      if (peers_->posted_near() <= sequence) return false;
      calls_ = peers_->calls_near(sequence);
      return true;
    }
    Slot const& slot = peers_->control(peers_->leader()).slot(sequence);
    if (slot.summed.load(std::memory_order_acquire) == sequence + 1) {
      calls_ = slot.summary;
      return true;
    }
    // A leader agrees to what it has published: then it has told others all that they wait for.
    if (leads()) return false;
    Summary const* const all = sequence == agreed_ ? inquiry_.all(sequence) : nullptr;
    if (all != nullptr) calls_ = *all;
    return all != nullptr;
  }

  /// A rank that left will never come. One that left while an exception was on its way is given
  /// time to say why.
  [[nodiscard]] std::optional<zero::detail::Failure> departure(Flight const& flight) {
    for (int const peer : peers_->near()) {
      if (peers_->posted_by(peer) > flight.sequence) continue;
      Control const& control = peers_->control(peer);
      std::uint64_t const left = control.left_at.load(std::memory_order_acquire);
      bool const unwinding = control.left_unwinding.load(std::memory_order_relaxed) != 0;
      if (left <= flight.sequence) return departure(flight, peer, left, unwinding);
      break;
    }
    for (Notice const& gone : departed_) {
      if (gone.calls > flight.sequence) continue;
      bool const unwinding = gone.kind == Notice::Kind::left_unwinding;
      return departure(flight, gone.rank, gone.calls, unwinding);
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<zero::detail::Failure> departure(Flight const& flight,
                                                               int peer,
                                                               std::uint64_t calls,
                                                               bool unwinding) {
    if (unwinding) {
      auto const now = Clock::now();
      if (noticed_ == Clock::time_point{}) noticed_ = now;
      if (now - noticed_ < grace) return std::nullopt;
    }
    return zero::detail::Failure{.cause = zero::detail::Failure::Cause::left,
                                 .rank = peers_->world_rank(peer),
                                 .calls = calls,
                                 .call = flight.op};
  }

  ZERO_COLD void file(Notice const& told) {
    if (told.kind == Notice::Kind::left || told.kind == Notice::Kind::left_unwinding) {
      departed_.push_back(told);
      return;
    }
    inquiry_.hear(told);
    if (told.kind == Notice::Kind::question) askers_.push_back(told);
  }
  /// Answers what this rank can tell of, and uses what it was told.
  ZERO_COLD void answer(int& error) {
    std::erase_if(askers_, [&](Notice const& asked) {
      if (posted_by(peers_->rank()) <= asked.sequence) return false;
      Notice const known = notice(Notice::Kind::answer, asked.sequence);
      if (int const code = notices_->send(asked.rank, known); code != MPI_SUCCESS) error = code;
      return true;
    });
    inquiry_.forget(agreed_);
    // What this rank knows itself may be more by now than when the others told.
    for (std::uint64_t s = agreed_; inquiry_.has_stories() && s < posted_by(peers_->rank()); ++s) {
      inquiry_.hear(notice(Notice::Kind::answer, s));
    }
    if (!leads()) return;
    Summary const* const all = inquiry_.all(rounds_->complete());
    if (all != nullptr) rounds_->learn(*all);
  }

  /// What this rank knows of a collective that it has started.
  [[nodiscard]] ZERO_COLD Notice notice(Notice::Kind kind, std::uint64_t sequence) {
    Notice result{.kind = kind,
                  .rank = peers_->rank(),
                  .calls = posted_by(peers_->rank()),
                  .near = peers_->posted_near(),
                  .before = leads() ? rounds_->before() : 0,
                  .sequence = sequence};
    // Others may use the slots of what is done here again.
    bool const kept = sequence >= oldest_;
    Slot const& slot = peers_->control(peers_->leader()).slot(sequence);
    if ((leads() || kept) && slot.summed.load(std::memory_order_acquire) == sequence + 1) {
      result.known = slot.summary;
      result.heard = ~0u;
    } else if (leads() && kept) {
      rounds_->tell(result);
    } else if (kept && result.near > sequence) {
      result.known = peers_->calls_near(sequence);
      result.heard = 1;
    }
    return result;
  }

  static constexpr std::uint32_t looks_per_notice = 8;

  Peers const* peers_;
  Inquiry inquiry_;
  std::unique_ptr<Dissemination> rounds_;  ///< null on a single node
  std::unique_ptr<Notices> notices_;
  Summary calls_{};           ///< of the collective compared last
  std::uint64_t agreed_ = 0;  ///< collectives that all ranks have started and agree on
  std::uint64_t oldest_ = 0;
  std::uint64_t questions_ = 0;
  std::uint32_t looks_ = 0;
  std::vector<Notice> askers_;    ///< who are to be answered yet
  std::vector<Notice> departed_;  ///< ranks elsewhere that have left
  Clock::time_point noticed_{};   ///< when a rank was first missed that left unwinding
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
