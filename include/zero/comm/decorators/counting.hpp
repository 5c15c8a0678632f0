/// @file
/// Counts what a rank sends.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/decorators/wrapped.hpp"
#include "zero/concepts/communicator.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// What one rank sent: collectives started, elements and bytes by `elements_sent`.
struct Traffic {
  std::uint64_t calls = 0;     ///< collectives started
  std::uint64_t elements = 0;  ///< by `elements_sent`, whatever algorithm the backend uses
  std::uint64_t bytes = 0;     ///< elements times the size of their dtype on the wire

  /// Adds member by member.
  constexpr Traffic& operator+=(Traffic const& other) noexcept {
    calls += other.calls;
    elements += other.elements;
    bytes += other.bytes;
    return *this;
  }
  friend constexpr bool operator==(Traffic const&, Traffic const&) = default;
};

/// Traffic by operation: of buckets (parameters and gradients) and of everything else (norms,
/// overflow flags, fingerprints), which does not grow with the model.
struct TrafficCounts {
  /// Indexed by `Op`.
  using PerOperation = std::array<Traffic, static_cast<std::size_t>(op_count)>;
  PerOperation bucket{};   ///< collectives whose `bucket` is >= 0: parameters and gradients
  PerOperation control{};  ///< all other collectives

  /// Traffic of buckets by one operation.
  [[nodiscard]] constexpr Traffic const& bucket_of(Op op) const noexcept {
    return bucket[static_cast<std::size_t>(op)];
  }
  /// Traffic of everything else by one operation.
  [[nodiscard]] constexpr Traffic const& control_of(Op op) const noexcept {
    return control[static_cast<std::size_t>(op)];
  }
  /// Traffic of buckets, summed over the operations.
  [[nodiscard]] constexpr Traffic bucket_total() const noexcept { return total(bucket); }
  /// Traffic of everything else, summed over the operations.
  [[nodiscard]] constexpr Traffic control_total() const noexcept { return total(control); }
  friend constexpr bool operator==(TrafficCounts const&, TrafficCounts const&) = default;

 private:
  [[nodiscard]] static constexpr Traffic total(PerOperation const& operations) noexcept {
    Traffic sum;
    for (Traffic const& traffic : operations) sum += traffic;
    return sum;
  }
};

/// A communicator that counts the collectives it passes on; the data path is untouched.
///
/// `Counting counted{comm};` refers to `comm`, which must outlive it; an rvalue is kept instead.
/// @par Cost  three additions per collective; no memory beyond the counters
template <Communicator C>
class Counting : public detail::Wrapped<C> {
 public:
  /// Refers to `comm`; counts from zero.
  explicit Counting(C& comm) noexcept : detail::Wrapped<C>(comm) {}
  /// Keeps `comm`; counts from zero.
  explicit Counting(C&& comm) : detail::Wrapped<C>(std::move(comm)) {}

  /// Counts a collective that the inner communicator has accepted.
  typename C::Ticket start(Collective const& op) {
    typename C::Ticket ticket = this->inner().start(op);
    auto& operations = op.bucket >= 0 ? counts_.bucket : counts_.control;
    std::uint64_t const elements = elements_sent(op.op, op.count, this->size());
    operations[static_cast<std::size_t>(op.op)] += {1, elements, elements * size_of(op.dtype)};
    return ticket;
  }

  /// A sub-group with counters of its own, from zero; what the split itself sends is not counted.
  /// @param color  of the group that this rank will be in
  /// @param key    its place among the ranks of that color
  /// @param name   of the group, for messages
  [[nodiscard]] Counting split(int color,
                               int key,
                               std::string_view name = {}) requires SplittableCommunicator<C> {
    return Counting(detail::split(this->inner(), color, key, name));
  }

  /// What this rank has sent since construction or the last `reset`.
  [[nodiscard]] TrafficCounts const& counts() const noexcept { return counts_; }
  /// Sets all counters of this rank to zero.
  void reset() noexcept { counts_ = {}; }

 private:
  TrafficCounts counts_;
};

}  // namespace zero::inline ZERO_NAMESPACE
