/// @file
/// One reservation for a rank's long-lived and short-lived memory, which do not fragment each
/// other.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/memory/block.hpp"
#include "zero/memory/lifetime.hpp"
#include "zero/memory/manager.hpp"
#include "zero/memory/regions.hpp"
#include "zero/memory/source.hpp"
#include "zero/memory/statistics.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// One contiguous piece of memory, taken once, and handed out from both ends: what lives long lies
/// at the bottom, what lives shortly at the top. So activations that come and go leave no holes
/// between checkpoints, gradients and states that stay.
///
///     zero::ContiguousMemory memory{2 * zero::GiB};
///     zero::ShardedOptimizer opt{comm, model, zero::stage::PosGP{}, zero::Owned{memory}};
///     auto checkpoint = memory.long_lived(bytes);   // from forward to backward
///     auto activations = memory.short_lived(bytes); // given back at the end of the scope
///     std::puts(to_string(memory.statistics()).c_str());
///
/// It is an allocator for the library's own memory, which goes to the end that suits its role, and
/// for the trainer's. The border between the ends moves with the blocks: neither has a quota. An
/// end reuses its own free blocks, the smallest that fits first; free neighbours become one block.
/// No block is ever moved.
///
/// A small value: copies stand for the same reservation, which goes back to its allocator with the
/// last of them, of the blocks, and of the optimizers that have one.
///
/// The memory may be of a device: nothing is kept in it, and only guards ever touch it. A block
/// that is given back may be handed out again at once: the work on it has to be done, or be in the
/// stream in which the next owner works.
///
/// @par Threads  One rank has one reservation: a reservation, all its copies and blocks are used by
///   one thread at a time. Another rank's is another reservation.
/// @par Cost  O(log n) for n blocks. Once as many blocks have been in use as will be, no memory is
///   taken from anywhere. Blocks are rounded up to 256 bytes.
/// @par Errors  Error (resource) where there is no room, with what is free. Error
/// (invalid_argument)
///   for memory that is given back twice, or with another size, or is not of the reservation, and
///   for blocks that somebody wrote beyond, where there are guards. In a destructor, such as that
///   of an optimizer or a block, such an Error ends the program: `std::terminate` prints it.
///   Whoever does that has memory that is used by two; it is too late to go on. Under the address
///   sanitizer an access to what is not in use is reported as it happens, where the allocator is
///   HostAllocator.
/// @par Source  ZeRO §6.3
class ContiguousMemory {
 public:
  /// Alignment of a reservation, of which `bytes` is rounded up to a multiple.
  static constexpr std::size_t page = detail::Regions::page;
  /// Alignment of what the trainer asks for without saying otherwise, and what a block is rounded
  /// up to a multiple of.
  static constexpr std::size_t granule = detail::Regions::granule;

  /// Takes the reservation, from the host's memory unless an allocator is named.
  /// @param bytes  of all that it is to hold at once
  /// @param allocator  where it is from: asked once, it has the memory back from the last copy
  /// @param guards  Guarded{space} to find what writes outside of its block
  /// @throws Error (resource) if the allocator refuses; (invalid_argument) for 0 bytes
  template <Allocator A = HostAllocator, class Guards = Unguarded>
    requires detail::is_guards<Guards>
  explicit ContiguousMemory(std::size_t bytes, A allocator = {}, Guards guards = {}) {
    if (bytes == 0) fail(ErrorKind::invalid_argument, "a reservation of 0 bytes");
    auto const whole = static_cast<std::size_t>(round_up(bytes, page));
    manager_ =
        std::make_shared<detail::MemoryManager>(std::make_unique<detail::SourceOf<A, Guards>>(
            std::move(allocator), std::move(guards), whole, page));
  }
  /// Takes the reservation from the host's memory, with guards.
  /// @throws Error (resource) if there is not that much; (invalid_argument) for 0 bytes
  ContiguousMemory(std::size_t bytes, Guarded<> guards)
      : ContiguousMemory(bytes, HostAllocator{}, guards) {}
  // Moves copy: no value is ever without a reservation.
  /// The same reservation.
  ContiguousMemory(ContiguousMemory const&) = default;
  /// The other's reservation from now on.
  ContiguousMemory& operator=(ContiguousMemory const&) = default;
  ~ContiguousMemory() = default;

  /// Memory of a lifetime, not initialised: for checkpoints, say, or a unit's activations. It
  /// begins at a multiple of `alignment`, a power of two.
  /// @throws Error (resource) if there is no room
  [[nodiscard]] MemoryBlock take(Lifetime lifetime,
                                 std::size_t bytes,
                                 std::size_t alignment = granule) {
    return {manager_, manager_->allocate(lifetime, bytes, alignment, {}), bytes};
  }
  /// What is read again after work on other layers: checkpoints, gradients, states.
  /// @throws Error (resource) if there is no room
  [[nodiscard]] MemoryBlock long_lived(std::size_t bytes, std::size_t alignment = granule) {
    return take(Lifetime::long_lived, bytes, alignment);
  }
  /// What is used up before others are: activations, their gradients, other scratch.
  /// @throws Error (resource) if there is no room
  [[nodiscard]] MemoryBlock short_lived(std::size_t bytes, std::size_t alignment = granule) {
    return take(Lifetime::short_lived, bytes, alignment);
  }

  /// As an allocator of the library, which says what the memory is for. Null for 0 bytes.
  /// @throws Error (resource) if there is no room, naming the role
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment, Role role) {
    return manager_->allocate(lifetime_of(role), bytes, alignment, name(role));
  }
  /// As an allocator of somebody who does not say: long-lived. Null for 0 bytes.
  /// @throws Error (resource) if there is no room
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return manager_->allocate(Lifetime::long_lived, bytes, alignment, {});
  }
  /// Takes back what `allocate` returned for as many bytes.
  /// @throws Error (invalid_argument) if that is not so, or the block's guards were written to
  void deallocate(void* memory, std::size_t bytes, std::size_t /*alignment*/) {
    manager_->deallocate(memory, bytes);
  }

  /// Compares the guards of all blocks in use; does nothing where there are none. On a device it
  /// waits for the stream.
  /// @throws Error (invalid_argument) if somebody wrote outside of a block
  void check() const { manager_->check(); }

  /// What is in use and what is free, now and at its most.
  [[nodiscard]] MemoryStatistics statistics() const { return manager_->statistics(); }

 private:
  std::shared_ptr<detail::MemoryManager> manager_;
};

static_assert(RoleAllocator<ContiguousMemory>);

}  // namespace zero::inline ZERO_NAMESPACE
