/// @file
/// Who has called what: announcing a collective, hearing of peers' calls, comparing them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/channels.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// The calls of all ranks. Near ranks read them in each other's control blocks, others are sent
/// headers.
class Roll {
 public:
  Roll(Peers const& peers, Channels& channels)
      : peers_(&peers),
        channels_(&channels),
        headers_(ring_slots * size()),
        posted_by_(size(), 0),
        left_at_(size(), never),
        left_unwinding_(size(), 0) {}

  /// Tells all peers of this rank's next call, whose copy of the data is in its slot already.
  /// @return MPI's code
  int announce(Call const& call) {
    Control& own = peers_->own();
    own.slot(call.sequence).call = call;
    own.posted.store(call.sequence + 1, std::memory_order_release);
    for (int peer = 0; peer < peers_->size(); ++peer) {
      if (peers_->is_near(peer)) continue;
      if (int const error = channels_->send_header(peer, call); error != MPI_SUCCESS) return error;
    }
    return MPI_SUCCESS;
  }

  /// Tells all peers that this rank will make no more calls.
  /// @param calls  that it has made
  void leave(std::uint64_t calls, bool unwinding) noexcept {
    Control& own = peers_->own();
    own.left_unwinding.store(unwinding ? 1 : 0, std::memory_order_relaxed);
    own.left_at.store(calls, std::memory_order_release);
    Call const farewell{.sequence = calls,
                        .notice = unwinding ? Notice::left_unwinding : Notice::left};
    for (int peer = 0; peer < peers_->size(); ++peer) {
      if (!peers_->is_near(peer)) channels_->send_farewell(peer, farewell);
    }
  }

  /// Files the headers of ranks elsewhere, no more than there are slots for.
  /// @param oldest  the first collective that is not done here
  /// @param error   MPI's code if something went wrong
  bool hear(std::uint64_t oldest, int& error) {
    bool heard = false;
    for (int peer = 0; peer < peers_->size(); ++peer) {
      Call const* const call = channels_->header_from(peer);
      if (call == nullptr) continue;
      if (call->notice != Notice::call) {
        left_unwinding_[index(peer)] = call->notice == Notice::left_unwinding ? 1 : 0;
        left_at_[index(peer)] = call->sequence;
      } else {
        if (call->sequence >= oldest + ring_slots) continue;
        header(call->sequence, peer) = *call;
        posted_by_[index(peer)] = call->sequence + 1;
      }
      if (int const code = channels_->take_header(peer); code != MPI_SUCCESS) error = code;
      heard = true;
    }
    return heard;
  }

  /// How many collectives a rank has started.
  [[nodiscard]] std::uint64_t posted_by(int rank) const noexcept {
    return peers_->is_near(rank) ? peers_->control(rank).posted.load(std::memory_order_acquire)
                                 : posted_by_[index(rank)];
  }
  /// What a rank called; valid once it has.
  [[nodiscard]] Call const& call_of(std::uint64_t sequence, int rank) const noexcept {
    return peers_->is_near(rank) ? peers_->control(rank).slot(sequence).call
                                 : headers_[slot(sequence) * size() + index(rank)];
  }

  /// What all ranks make of a collective.
  struct Verdict {
    bool agreed = false;  ///< all have started the same
    std::optional<zero::detail::Failure> failure{};
  };
  [[nodiscard]] Verdict compare(Flight const& flight) {
    for (int peer = 0; peer < peers_->size(); ++peer) {
      if (posted_by(peer) <= flight.sequence) return {.failure = departure(flight, peer)};
    }
    Collective const first = call_of(flight.sequence, 0).collective();
    for (int peer = 1; peer < peers_->size(); ++peer) {
      Collective const other = call_of(flight.sequence, peer).collective();
      if (zero::detail::is_same_call(first, other)) continue;
      return {.failure = zero::detail::Failure{.cause = zero::detail::Failure::Cause::mismatch,
                                               .rank = peers_->world_rank(peer),
                                               .other = peers_->world_rank(0),
                                               .calls = flight.sequence,
                                               .call = other,
                                               .other_call = first}};
    }
    return {.agreed = true};
  }

 private:
  /// A rank that left will never come. One that left while an exception was on its way is given
  /// time to say why.
  [[nodiscard]] std::optional<zero::detail::Failure> departure(Flight const& flight, int peer) {
    bool const near = peers_->is_near(peer);
    std::uint64_t const left = near ? peers_->control(peer).left_at.load(std::memory_order_acquire)
                                    : left_at_[index(peer)];
    if (left > flight.sequence) return std::nullopt;
    bool const unwinding =
        near ? peers_->control(peer).left_unwinding.load(std::memory_order_relaxed) != 0
             : left_unwinding_[index(peer)] != 0;
    if (unwinding) {
      auto const now = Clock::now();
      if (noticed_ == Clock::time_point{}) noticed_ = now;
      if (now - noticed_ < grace) return std::nullopt;
    }
    return zero::detail::Failure{.cause = zero::detail::Failure::Cause::left,
                                 .rank = peers_->world_rank(peer),
                                 .calls = left,
                                 .call = flight.op};
  }

  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] static constexpr std::size_t slot(std::uint64_t sequence) noexcept {
    return static_cast<std::size_t>(sequence % ring_slots);
  }
  [[nodiscard]] std::size_t size() const noexcept { return index(peers_->size()); }
  [[nodiscard]] Call& header(std::uint64_t sequence, int rank) noexcept {
    return headers_[slot(sequence) * size() + index(rank)];
  }

  Peers const* peers_;
  Channels* channels_;
  std::vector<Call> headers_;             ///< of ranks elsewhere, by slot and rank
  std::vector<std::uint64_t> posted_by_;  ///< calls of ranks elsewhere
  std::vector<std::uint64_t> left_at_;    ///< where ranks elsewhere left
  std::vector<std::uint8_t> left_unwinding_;
  Clock::time_point noticed_{};  ///< when a rank was first missed that left unwinding
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
