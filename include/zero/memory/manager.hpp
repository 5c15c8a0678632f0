/// @file
/// A reservation with two ends: hands out its memory, takes it back, and finds misuse.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/memory/lifetime.hpp"
#include "zero/memory/poison.hpp"
#include "zero/memory/regions.hpp"
#include "zero/memory/source.hpp"
#include "zero/memory/statistics.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What all copies of a ContiguousMemory share.
class MemoryManager {
 public:
  explicit MemoryManager(std::unique_ptr<MemorySource> source)
      : source_(std::move(source)),
        regions_(address_of(source_->data()),
                 source_->bytes(),
                 source_->guarded() ? Regions::granule : 0) {}

  /// @param purpose  for the error: a role, or empty
  [[nodiscard]] void* allocate(Lifetime lifetime,
                               std::size_t bytes,
                               std::size_t alignment,
                               std::string_view purpose) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
      fail(ErrorKind::invalid_argument,
           {"an alignment is a power of two, not ", alignment, " bytes"});
    }
    if (bytes == 0) return nullptr;
    std::uint64_t const address = regions_.take(lifetime, bytes, alignment);
    if (address == 0) refuse(lifetime, bytes, alignment, purpose);
    open(address, bytes);
    return pointer_to(address);
  }

  void deallocate(void* memory, std::size_t bytes) {
    if (memory == nullptr && bytes == 0) return;
    std::uint64_t const address = address_of(memory);
    auto const block = regions_.find(address);
    if (block == regions_.segments().end() || !block->second.used ||
        block->first + regions_.margin() != address || block->second.bytes != bytes) {
      refuse_back(address, bytes);
    }
    auto const damage = damage_of(block);
    auto const [first, segment] = *block;
    regions_.give_back(block);
    if (source_->poisonable()) poison(pointer_to(first), segment.size);
    if (damage.bytes != 0) report(damage, segment);
  }

  /// @throws Error (invalid_argument) if a guard was written to
  void check() const {
    for (auto block = regions_.segments().begin(); block != regions_.segments().end(); ++block) {
      if (!block->second.used) continue;
      auto const damage = damage_of(block);
      if (damage.bytes != 0) report(damage, block->second);
    }
  }

  [[nodiscard]] MemoryStatistics statistics() const { return regions_.statistics(); }

 private:
  /// Guards that are not as they were written.
  struct Damage {
    std::uint64_t bytes = 0;    ///< changed
    std::int64_t distance = 0;  ///< of the first of them, from the first byte of the block
  };
  /// Before a block, or behind one, where the rest of its last granule is a guard as well.
  using Guard = std::array<std::byte, 2 * Regions::granule>;
  static constexpr std::byte pattern{0xfd};

  [[nodiscard]] static std::uint64_t address_of(void const* memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  [[nodiscard]] void* pointer_to(std::uint64_t address) const noexcept {
    return static_cast<std::byte*>(source_->data()) + (address - address_of(source_->data()));
  }

  /// Lets the caller touch a block, and closes it around with guards.
  void open(std::uint64_t address, std::size_t bytes) {
    std::uint64_t const margin = regions_.margin();
    if (source_->poisonable()) {
      // Guards are to find what the sanitizer would have ended the program for.
      std::uint64_t const opened = margin == 0 ? bytes : round_up(bytes, Regions::granule) + margin;
      unpoison(pointer_to(address - margin), opened + margin);
    }
    if (margin == 0) return;
    Guard guard;
    guard.fill(pattern);
    source_->upload(pointer_to(address - margin), guard.data(), margin);
    source_->upload(pointer_to(address + bytes), guard.data(), behind(bytes));
  }

  /// Bytes of the guard behind a block.
  [[nodiscard]] std::uint64_t behind(std::uint64_t bytes) const {
    return round_up(bytes, Regions::granule) - bytes + regions_.margin();
  }

  [[nodiscard]] Damage damage_of(Regions::Segments::const_iterator block) const {
    Damage damage;
    std::uint64_t const margin = regions_.margin();
    if (margin == 0) return damage;
    auto const compare = [&](std::int64_t distance, std::uint64_t bytes) {
      Guard guard;
      std::uint64_t const from = block->first + margin + static_cast<std::uint64_t>(distance);
      source_->download(guard.data(), pointer_to(from), bytes);
      for (std::uint64_t i = 0; i < bytes; ++i) {
        if (guard[i] == pattern) continue;
        if (damage.bytes++ == 0) damage.distance = distance + static_cast<std::int64_t>(i);
      }
    };
    compare(-static_cast<std::int64_t>(margin), margin);
    compare(static_cast<std::int64_t>(block->second.bytes), behind(block->second.bytes));
    return damage;
  }

  [[noreturn]] ZERO_COLD static void report(Damage const& damage, Regions::Segment const& block) {
    bool const before = damage.distance < 0;
    std::int64_t const behind = damage.distance - static_cast<std::int64_t>(block.bytes) + 1;
    fail(ErrorKind::invalid_argument,
         {"memory was written to outside of a ",
          name(block.lifetime),
          " block of ",
          block.bytes,
          " bytes: ",
          damage.bytes,
          " bytes of its guards are changed, the first of them ",
          before ? -damage.distance : behind,
          before ? " bytes before its first" : " bytes behind its last"});
  }

  [[noreturn]] ZERO_COLD void refuse(Lifetime lifetime,
                                     std::size_t bytes,
                                     std::size_t alignment,
                                     std::string_view purpose) const {
    MemoryStatistics const now = regions_.statistics();
    bool const is_long = lifetime == Lifetime::long_lived;
    fail(ErrorKind::resource,
         {"no room for ",
          bytes,
          " ",
          name(lifetime),
          " bytes",
          purpose.empty() ? "" : " for ",
          purpose,
          " at a multiple of ",
          alignment,
          ": the largest free block for them has ",
          (is_long ? now.long_lived : now.short_lived).largest_free_block,
          " bytes, of ",
          now.free_bytes,
          " that are free; ",
          now.long_lived.live_bytes,
          " long-lived and ",
          now.short_lived.live_bytes,
          " short-lived bytes are in use, of ",
          now.reserved_bytes,
          " reserved"});
  }

  [[noreturn]] ZERO_COLD void refuse_back(std::uint64_t address, std::size_t bytes) const {
    Message const what{"a block of ", bytes, " bytes was given back"};
    std::uint64_t const begin = address_of(source_->data());
    if (address < begin || address - begin >= source_->bytes()) {
      fail(ErrorKind::invalid_argument, {what, " that is not of this reservation"});
    }
    auto const found = regions_.find(address);
    if (found == regions_.segments().end() || !found->second.used) {
      fail(ErrorKind::invalid_argument,
           {what, " that is not in use: has it been given back before?"});
    }
    auto const& [first, segment] = *found;
    std::uint64_t const start = first + regions_.margin();
    if (start != address) {
      fail(ErrorKind::invalid_argument,
           {what, " that is no block, but lies within one of ", segment.bytes, " bytes"});
    }
    fail(ErrorKind::invalid_argument, {what, " that was asked for as ", segment.bytes, " bytes"});
  }

  std::unique_ptr<MemorySource> source_;
  Regions regions_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
