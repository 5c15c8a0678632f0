/// @file
/// The bookkeeping of a reservation with two ends: addresses as numbers, none of which is followed.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/memory/lifetime.hpp"
#include "zero/memory/statistics.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory_resource>
#include <set>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Hands out a range of addresses from both ends: long-lived blocks from the first address upwards,
/// short-lived ones from the last downwards.
///
/// Each end is a region that reaches to its innermost block in use. The smallest free block of the
/// region that fits is taken; if there is none, the region grows into the memory between the two,
/// and it shrinks when its innermost block is given back. Neither has a quota. Free neighbours are
/// one block. A block depends on the calls before, never on how much is left: the same calls need
/// the same memory in a larger reservation.
///
/// Taking and giving back cost O(log n) in the number of blocks, and a step for each free block
/// that is large enough but misaligned. Nodes are kept and used again: once there have been as many
/// blocks as there will be, nothing is allocated.
class Regions {
 public:
  /// Blocks begin at multiples of this: a host's cache lines, and what a device's vectors like.
  static constexpr std::uint64_t granule = 256;

  /// Ranges begin and end at multiples of this, so that alignments of up to as much cost the same
  /// in every one.
  static constexpr std::uint64_t page = 4096;

  /// A piece of a region.
  struct Segment {
    std::uint64_t size = 0;   ///< a multiple of the granule, margins included
    std::uint64_t bytes = 0;  ///< as asked for
    Lifetime lifetime = Lifetime::long_lived;
    bool used = false;  ///< or a free block
  };
  using Segments = std::pmr::map<std::uint64_t, Segment>;  ///< by the first address

  /// @param begin, bytes  the range: multiples of a page
  /// @param margin  left free before and behind each block: a multiple of the granule
  Regions(std::uint64_t begin, std::uint64_t bytes, std::uint64_t margin)
      : begin_(begin), end_(begin + bytes), margin_(margin), low_(begin), high_(begin + bytes) {}
  Regions(Regions const&) = delete;
  Regions& operator=(Regions const&) = delete;

  [[nodiscard]] std::uint64_t margin() const noexcept { return margin_; }
  [[nodiscard]] Segments const& segments() const noexcept { return segments_; }

  /// The address of a block, a multiple of `alignment`, which is a power of two; 0 if there is no
  /// room for it.
  [[nodiscard]] std::uint64_t take(Lifetime lifetime,
                                   std::uint64_t bytes,
                                   std::uint64_t alignment) {
    if (bytes > end_ - begin_) return 0;
    std::uint64_t const size = round_up(bytes, granule) + 2 * margin_;
    std::uint64_t const step = (std::max)(alignment, granule);
    auto& holes = holes_of(lifetime);
    std::uint64_t at = none;
    for (auto hole = holes.lower_bound({size, 0}); hole != holes.end(); ++hole) {
      Room const room{hole->second, hole->second + hole->first};
      at = place(lifetime, room, size, step);
      if (at == none) continue;
      segments_.erase(room.begin);
      holes.erase(hole);
      add_hole(lifetime, {room.begin, at});
      add_hole(lifetime, {at + size, room.end});
      break;
    }
    if (at == none) {
      at = place(lifetime, {low_, high_}, size, step);
      if (at == none) return 0;
      // What alignment leaves between this block and the one before.
      if (lifetime == Lifetime::long_lived) {
        add_hole(lifetime, {low_, at});
        low_ = at + size;
      } else {
        add_hole(lifetime, {at + size, high_});
        high_ = at;
      }
    }
    segments_.emplace(at, Segment{size, bytes, lifetime, true});
    count(lifetime, bytes, size);
    return at + margin_;
  }

  /// The piece that an address lies in, or the end of `segments()`.
  [[nodiscard]] Segments::const_iterator find(std::uint64_t address) const {
    auto const after = segments_.upper_bound(address);
    if (after == segments_.begin()) return segments_.end();
    auto const found = std::prev(after);
    return address < found->first + found->second.size ? found : segments_.end();
  }

  /// Takes back a block in use.
  void give_back(Segments::const_iterator block) {
    auto const [first, segment] = *block;
    auto& own = statistics_[static_cast<std::size_t>(segment.lifetime)];
    --own.blocks;
    own.live_bytes -= segment.bytes;
    used_ -= segment.size;
    Room room{first, first + segment.size};
    Segments::const_iterator next = segments_.erase(block);
    if (next != segments_.begin()) {
      auto const before = std::prev(next);
      if (before->first + before->second.size == room.begin && !before->second.used) {
        room.begin = before->first;
        next = remove_hole(before);
      }
    }
    if (next != segments_.end() && next->first == room.end && !next->second.used) {
      room.end = next->first + next->second.size;
      remove_hole(next);
    }
    // A free block next to the memory between the regions is part of that.
    if (segment.lifetime == Lifetime::long_lived && room.end == low_) {
      low_ = room.begin;
    } else if (segment.lifetime == Lifetime::short_lived && room.begin == high_) {
      high_ = room.end;
    } else {
      add_hole(segment.lifetime, room);
    }
  }

  [[nodiscard]] MemoryStatistics statistics() const {
    MemoryStatistics all;
    all.reserved_bytes = end_ - begin_;
    all.free_bytes = end_ - begin_ - used_;
    all.peak_bytes = peak_;
    all.needed_bytes = round_up(needed_, page);
    all.long_lived = region(Lifetime::long_lived);
    all.short_lived = region(Lifetime::short_lived);
    all.live_bytes = all.long_lived.live_bytes + all.short_lived.live_bytes;
    all.largest_free_block =
        (std::max)(all.long_lived.largest_free_block, all.short_lived.largest_free_block);
    return all;
  }

 private:
  struct Room {
    std::uint64_t begin;
    std::uint64_t end;
  };
  /// Size and first address of each free block: the first that is not less is the best fit.
  using Holes = std::pmr::set<std::pair<std::uint64_t, std::uint64_t>>;
  static constexpr std::uint64_t none = ~std::uint64_t{0};

  /// Where a segment of `size` bytes begins in the room, as near to its region's wall as alignment
  /// lets it.
  [[nodiscard]] std::uint64_t place(Lifetime lifetime,
                                    Room room,
                                    std::uint64_t size,
                                    std::uint64_t step) const noexcept {
    if (room.end - room.begin < size) return none;
    // Where the caller's bytes begin, at the latest.
    std::uint64_t const last = (room.end - size + margin_) & ~(step - 1);
    std::uint64_t const least = room.begin + margin_;
    if (last < least) return none;
    if (lifetime == Lifetime::short_lived) return last - margin_;
    return ((least + step - 1) & ~(step - 1)) - margin_;
  }

  [[nodiscard]] Holes& holes_of(Lifetime lifetime) noexcept {
    return holes_[static_cast<std::size_t>(lifetime)];
  }

  void add_hole(Lifetime lifetime, Room room) {
    if (room.begin == room.end) return;
    std::uint64_t const size = room.end - room.begin;
    segments_.emplace(room.begin, Segment{size, 0, lifetime, false});
    holes_of(lifetime).emplace(size, room.begin);
  }

  Segments::const_iterator remove_hole(Segments::const_iterator hole) {
    holes_of(hole->second.lifetime).erase({hole->second.size, hole->first});
    return segments_.erase(hole);
  }

  void count(Lifetime lifetime, std::uint64_t bytes, std::uint64_t size) noexcept {
    auto& own = statistics_[static_cast<std::size_t>(lifetime)];
    ++own.blocks;
    own.live_bytes += bytes;
    own.peak_bytes = (std::max)(own.peak_bytes, own.live_bytes);
    used_ += size;
    peak_ = (std::max)(peak_, statistics_[0].live_bytes + statistics_[1].live_bytes);
    needed_ = (std::max)(needed_, low_ - begin_ + (end_ - high_));
  }

  [[nodiscard]] LifetimeStatistics region(Lifetime lifetime) const {
    auto const index = static_cast<std::size_t>(lifetime);
    LifetimeStatistics own = statistics_[index];
    own.extent_bytes = lifetime == Lifetime::long_lived ? low_ - begin_ : end_ - high_;
    Holes const& holes = holes_[index];
    own.largest_free_block =
        (std::max)(high_ - low_, holes.empty() ? 0 : std::prev(holes.end())->first);
    return own;
  }

  std::uint64_t begin_;
  std::uint64_t end_;
  std::uint64_t margin_;
  std::uint64_t low_;   ///< where the long-lived region ends
  std::uint64_t high_;  ///< where the short-lived region begins
  std::pmr::unsynchronized_pool_resource nodes_;
  Segments segments_{&nodes_};
  std::array<Holes, lifetime_count> holes_{Holes(&nodes_), Holes(&nodes_)};
  std::array<LifetimeStatistics, lifetime_count> statistics_{};
  std::uint64_t used_ = 0;    ///< of all segments in use, rounding and margins included
  std::uint64_t peak_ = 0;    ///< of live bytes
  std::uint64_t needed_ = 0;  ///< the most that both regions together have reached
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
