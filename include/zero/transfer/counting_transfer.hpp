/// @file
/// Counts what travels to and from the slower memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/transfer.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// What was transferred since construction or the last `reset`.
struct TransferCounts {
  std::uint64_t sent_out_bytes = 0;    ///< to the slower memory
  std::uint64_t brought_in_bytes = 0;  ///< from it
  std::uint64_t calls = 0;             ///< transfers, both ways
  friend constexpr bool operator==(TransferCounts const&, TransferCounts const&) = default;
};

/// A transfer that counts what it passes on. Refers to `inner`, which must outlive it.
template <Transfer T>
class CountingTransfer {
 public:
  using Space = typename T::Space;                   ///< as of `T`
  using Slow = typename T::Slow;                     ///< as of `T`
  using Ticket = typename T::Ticket;                 ///< as of `T`
  static constexpr std::string_view name = T::name;  ///< as of `T`

  /// Counts from zero.
  explicit CountingTransfer(T& inner) noexcept : inner_(&inner) {}

  /// As `T` does.
  [[nodiscard]] Slow allocate(std::size_t bytes) {
    Slow const memory = inner_->allocate(bytes);
    held_ += bytes;
    return memory;
  }
  /// As `T` does.
  void deallocate(Slow memory, std::size_t bytes) noexcept {
    inner_->deallocate(memory, bytes);
    held_ -= bytes;
  }
  /// Counts a transfer that `T` has accepted.
  Ticket send_out(Slow to, void const* from, std::size_t bytes) {
    Ticket const ticket = inner_->send_out(to, from, bytes);
    counts_.sent_out_bytes += bytes;
    ++counts_.calls;
    return ticket;
  }
  /// Counts a transfer that `T` has accepted.
  Ticket bring_in(void* to, Slow from, std::size_t bytes) {
    Ticket const ticket = inner_->bring_in(to, from, bytes);
    counts_.brought_in_bytes += bytes;
    ++counts_.calls;
    return ticket;
  }
  /// As `T` does.
  void wait(Ticket const& ticket) { inner_->wait(ticket); }
  /// As `T` does.
  void settle() noexcept { inner_->settle(); }

  /// What was transferred.
  [[nodiscard]] TransferCounts const& counts() const noexcept { return counts_; }
  /// Slower memory that is allocated now, in bytes.
  [[nodiscard]] std::uint64_t held() const noexcept { return held_; }
  /// Counts from zero again; what is held stays.
  void reset() noexcept { counts_ = {}; }

 private:
  T* inner_;
  TransferCounts counts_;
  std::uint64_t held_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE
