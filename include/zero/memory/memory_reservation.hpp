/// @file
/// The bookkeeping of a reservation with two ends: addresses as numbers, none of which is followed.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/memory/address_sanitizer.hpp"
#include "zero/memory/memory_statistics.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// One end: from a wall of the reservation to the innermost block in use. It counts distances from
/// that wall, so that both ends have the same code.
struct MemoryEnd {
  /// Blocks begin at multiples of this: a host's cache lines, and what a device's vectors like.
  static constexpr std::uint64_t granule = 256;

  bool upwards;                      ///< does it grow to higher addresses?
  std::uint64_t wall;                ///< an address
  std::pmr::memory_resource* nodes;  ///< of both containers
  /// Where each block in use begins and ends.
  std::pmr::map<std::uint64_t, std::uint64_t> blocks{nodes};
  /// Size and distance of all that lies between them: the first that is not less is the best fit.
  std::pmr::set<std::pair<std::uint64_t, std::uint64_t>> holes{nodes};
  LifetimeStatistics counted{};

  /// A part of the smallest free block that fits. If there is none, the end grows to `limit` bytes
  /// at most. So the same calls need the same memory in a larger reservation.
  /// @param step  a power of two that the address is to be a multiple of
  /// @return the address, or 0 if there is no room
  [[nodiscard]] std::uint64_t take(std::uint64_t bytes, std::uint64_t step, std::uint64_t limit) {
    if (bytes > limit) return 0;
    std::uint64_t const size = round_up(bytes, granule);
    // The least distance, but `from`, whose address is such a multiple.
    auto const place = [&](std::uint64_t from) {
      std::uint64_t const nearest = address_of(from, size);
      return from + ((upwards ? 0 - nearest : nearest) & (step - 1));
    };
    auto hole = holes.lower_bound({size, 0});
    while (hole != holes.end() && place(hole->second) + size > hole->second + hole->first) ++hole;
    bool const inside = hole != holes.end();
    std::uint64_t const begin = inside ? hole->second : counted.extent_bytes;
    std::uint64_t const end = inside ? begin + hole->first : limit;
    if (end - begin < size || place(begin) > end - size) return 0;
    std::uint64_t const at = place(begin);
    if (inside) {
      holes.erase(hole);
      if (at + size < end) holes.emplace(end - at - size, at + size);
    } else {
      counted.extent_bytes = at + size;
    }
    if (begin < at) holes.emplace(at - begin, begin);
    blocks.emplace(at, at + size);
    counted.live_bytes += bytes;
    return address_of(at, size);
  }

  /// Takes a block back. Free neighbours become one.
  void give_back(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t const size = round_up(bytes, granule);
    std::uint64_t const at = upwards ? address - wall : wall - address - size;
    auto const next = blocks.erase(blocks.find(at));
    std::uint64_t const begin = next == blocks.begin() ? 0 : std::prev(next)->second;
    if (begin < at) holes.erase({at - begin, begin});
    if (next == blocks.end()) {
      counted.extent_bytes = begin;
    } else {
      if (at + size < next->first) holes.erase({next->first - at - size, at + size});
      holes.emplace(next->first - begin, begin);
    }
    counted.live_bytes -= bytes;
  }

  /// Of so many bytes at a distance.
  [[nodiscard]] std::uint64_t address_of(std::uint64_t distance,
                                         std::uint64_t size) const noexcept {
    return upwards ? wall + distance : wall - distance - size;
  }
};

/// What all copies of a ContiguousMemory share.
class MemoryReservation {
 public:
  /// Reservations begin and end at multiples of this, so that alignments of up to as much cost the
  /// same in every one.
  static constexpr std::uint64_t page = 4096;

  /// @param watched  may the address sanitizer be told? The memory is the host's, for certain.
  MemoryReservation(std::shared_ptr<void> memory, std::size_t bytes, bool watched)
      : memory_(std::move(memory)), bytes_(bytes), watched_(watched) {
    if (watched_) allow_access(memory_.get(), bytes_, false);
  }

  /// @param is_long  at the end for what lives long?
  /// @param purpose  for the error: a role, or empty
  [[nodiscard]] void* allocate(bool is_long,
                               std::size_t bytes,
                               std::size_t alignment,
                               std::string_view purpose = {}) {
    if (!std::has_single_bit(alignment)) {
      fail(ErrorKind::invalid_argument, {"an alignment is a power of two, not ", alignment});
    }
    if (bytes == 0) return nullptr;
    std::uint64_t const others = (is_long ? short_ : long_).counted.extent_bytes;
    std::uint64_t const step = (std::max)(std::uint64_t{alignment}, MemoryEnd::granule);
    std::uint64_t const address = (is_long ? long_ : short_).take(bytes, step, bytes_ - others);
    if (address == 0) refuse(is_long, bytes, alignment, purpose);
    peak_ = (std::max)(peak_, long_.counted.live_bytes + short_.counted.live_bytes);
    needed_ = (std::max)(needed_, long_.counted.extent_bytes + short_.counted.extent_bytes);
    void* const block = static_cast<std::byte*>(memory_.get()) + (address - begin_);
    if (watched_) allow_access(block, bytes, true);
    return block;
  }

  void deallocate(void* memory, std::size_t bytes) {
    if (bytes == 0) return;
    std::uint64_t const address = reinterpret_cast<std::uintptr_t>(memory);
    bool const is_long = address - begin_ < long_.counted.extent_bytes;
    (is_long ? long_ : short_).give_back(address, bytes);
    if (watched_) allow_access(memory, bytes, false);
  }

  [[nodiscard]] MemoryStatistics statistics() const {
    MemoryStatistics all{.reserved_bytes = bytes_,
                         .live_bytes = long_.counted.live_bytes + short_.counted.live_bytes,
                         .peak_bytes = peak_,
                         .free_bytes = between(),
                         .largest_free_block = (std::max)(largest(long_), largest(short_)),
                         .needed_bytes = round_up(needed_, page),
                         .long_lived = long_.counted,
                         .short_lived = short_.counted};
    for (MemoryEnd const* end : {&long_, &short_}) {
      for (auto const& hole : end->holes) all.free_bytes += hole.first;
    }
    return all;
  }

 private:
  /// Bytes between the ends.
  [[nodiscard]] std::uint64_t between() const noexcept {
    return bytes_ - long_.counted.extent_bytes - short_.counted.extent_bytes;
  }
  /// Bytes of the largest free block that an end may use: its own, or that between the ends.
  [[nodiscard]] std::uint64_t largest(MemoryEnd const& end) const noexcept {
    return (std::max)(between(), end.holes.empty() ? 0 : std::prev(end.holes.end())->first);
  }

  [[noreturn]] ZERO_COLD void refuse(bool is_long,
                                     std::size_t bytes,
                                     std::size_t alignment,
                                     std::string_view purpose) const {
    MemoryStatistics const now = statistics();
    auto const text = [](auto number) { return std::to_string(number); };
    fail(ErrorKind::resource,
         "no room for " + text(bytes) + (is_long ? " long-lived" : " short-lived") + " bytes" +
             (purpose.empty() ? "" : " for " + std::string(purpose)) + " at a multiple of " +
             text(alignment) + ": the largest free block for them has " +
             text(largest(is_long ? long_ : short_)) + " bytes, of " + text(now.free_bytes) +
             " that are free; " + text(now.long_lived.live_bytes) + " long-lived and " +
             text(now.short_lived.live_bytes) + " short-lived bytes are in use, of " +
             text(now.reserved_bytes) + " reserved");
  }

  std::shared_ptr<void> memory_;
  std::uint64_t bytes_;
  bool watched_;
  std::uint64_t begin_ = reinterpret_cast<std::uintptr_t>(memory_.get());
  std::pmr::unsynchronized_pool_resource nodes_;  ///< they are kept, and used again
  MemoryEnd long_{true, begin_, &nodes_};
  MemoryEnd short_{false, begin_ + bytes_, &nodes_};
  std::uint64_t peak_ = 0;    ///< of live bytes
  std::uint64_t needed_ = 0;  ///< the most that both ends together have reached
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
