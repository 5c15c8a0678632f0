/// @file
/// The collectives a rank has under way.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/family.hpp"
#include "zero/concepts/communicator.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Where a collective is to be found again.
struct NcclDeparture {
  std::uint64_t number = 0;
  bool captured = false;  ///< part of a graph
};

/// A ring of events, one per collective, recorded behind its work.
///
/// A slot is used again only once its collective is done, so a number that is no longer in the ring
/// belongs to a collective that is.
template <nccl::Api A>
class NcclFlights {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t slots = 128;

  struct NcclFlight {
    typename A::Event event{};
    Collective op{};
    std::uint64_t number = never;
    Clock::time_point started{};
    bool done = true;
  };

  /// @throws nothing; the first event that is refused ends it
  [[nodiscard]] nccl::Status create() {
    for (NcclFlight& flight : ring_) {
      nccl::Status const status = A::event_create(&flight.event);
      if (!status.ok()) return status;
      ++created_;
    }
    return {};
  }
  void destroy() noexcept {
    for (std::size_t i = 0; i < created_; ++i) static_cast<void>(A::event_destroy(ring_[i].event));
    created_ = 0;
  }

  /// The number that the next collective will have; ranks that make the same calls count alike.
  [[nodiscard]] std::uint64_t number() const noexcept { return started_; }
  [[nodiscard]] NcclFlight& next() noexcept { return ring_[started_ % slots]; }
  /// The number of the collective that `next` has been filled with.
  std::uint64_t commit(NcclFlight& flight) noexcept {
    flight.number = started_;
    flight.started = Clock::now();
    return started_++;
  }
  /// The flight of that number; null if it is done and its slot used again.
  [[nodiscard]] NcclFlight* find(std::uint64_t number) noexcept {
    NcclFlight& flight = ring_[number % slots];
    return flight.number == number ? &flight : nullptr;
  }
  [[nodiscard]] NcclFlight* oldest() noexcept {
    for (; oldest_ < started_; ++oldest_) {
      if (NcclFlight& flight = ring_[oldest_ % slots]; !flight.done) return &flight;
    }
    return nullptr;
  }

  /// Asks the flights that may have landed; they land in order.
  /// @param moved  set if one did
  [[nodiscard]] nccl::Status update(bool& moved) {
    while (NcclFlight* const flight = oldest()) {
      nccl::Status const status = A::event_query(flight->event);
      if (!status.ok()) return status.failed() ? status : nccl::Status{};
      flight->done = true;
      moved = true;
    }
    return {};
  }

 private:
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  std::array<NcclFlight, slots> ring_{};
  std::size_t created_ = 0;
  std::uint64_t started_ = 0;
  std::uint64_t oldest_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
