/// @file
/// One reservation for a rank's memory, in which long and short lives do not mix.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/layout/plan.hpp"
#include "zero/memory/memory_reservation.hpp"
#include "zero/memory/memory_statistics.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// Memory from `ContiguousMemory::long_lived` or `short_lived`, given back by the destructor. It
/// keeps the reservation alive. What is moved from has no memory.
class MemoryBlock {
 public:
  /// No memory.
  MemoryBlock() noexcept = default;

  /// The first byte, or null; in the space of the reservation, not initialised.
  [[nodiscard]] void* data() const noexcept { return memory_.get(); }
  /// As asked for.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return memory_ == nullptr ? 0 : memory_.get_deleter().bytes;
  }
  /// As many elements as there is room for, in the space of the reservation.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {static_cast<T*>(data()), bytes() / sizeof(T)};
  }

 private:
  friend class ContiguousMemory;
  struct GiveBack {
    std::shared_ptr<detail::MemoryReservation> to;
    std::size_t bytes;
    void operator()(void* memory) const { to->deallocate(memory, bytes); }
  };
  MemoryBlock(std::shared_ptr<detail::MemoryReservation> of, void* memory, std::size_t bytes)
      : memory_(memory, GiveBack{std::move(of), bytes}) {}

  std::unique_ptr<void, GiveBack> memory_;
};

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
/// The memory may be of a device: nothing is kept in it. A block that is given back may be handed
/// out again at once: the work on it has to be done, or be in the stream in which the next owner
/// works.
///
/// @par Threads  One rank has one reservation: a reservation, all its copies and blocks are used by
///   one thread at a time.
/// @par Cost  O(log n) for n blocks. Once as many blocks have been in use as will be, no memory is
///   taken from anywhere. Blocks are rounded up to 256 bytes.
/// @par Errors  Error (resource) where there is no room, with what is free. Who gives a block back
///   twice, or with another size, is not told. Under the address sanitizer an access to what is not
///   in use is reported as it happens, if the allocator is HostAllocator. It does not see what is
///   written from one block into the next, or given back twice: to look for that, give
///   HostAllocator itself, or on a device device::MallocAllocator and compute-sanitizer.
/// @par Source  ZeRO §6.3
class ContiguousMemory {
 public:
  /// Alignment of a reservation, of which `bytes` is rounded up to a multiple.
  static constexpr std::size_t page = detail::MemoryReservation::page;
  /// Alignment of blocks where none is asked for. Blocks are rounded up to a multiple of it.
  static constexpr std::size_t granule = detail::MemoryEnd::granule;

  /// Takes the reservation, from the host's memory unless an allocator is named.
  /// @param bytes  of all that it is to hold at once
  /// @param allocator  where it is from: asked once, it has the memory back from the last copy
  /// @throws Error (resource) if the allocator refuses; (invalid_argument) for 0 bytes
  template <Allocator A = HostAllocator>
  explicit ContiguousMemory(std::size_t bytes, A allocator = {}) {
    if (bytes == 0) fail(ErrorKind::invalid_argument, "a reservation of 0 bytes");
    auto const whole = static_cast<std::size_t>(round_up(bytes, page));
    void* memory = nullptr;
#if defined(__cpp_exceptions)
    try {
      memory = allocator.allocate(whole, page);
    } catch (std::bad_alloc const&) {
    }
#else
    memory = allocator.allocate(whole, page);
#endif
    if (memory == nullptr) {
      fail(ErrorKind::resource, {"cannot reserve ", whole, " bytes of memory"});
    }
    constexpr bool watched = std::same_as<A, HostAllocator>;
    std::shared_ptr<void> owner(memory, [allocator, whole](void* all) mutable {
      if (watched) detail::allow_access(all, whole, true);
      allocator.deallocate(all, whole, page);
    });
    reservation_ = std::make_shared<detail::MemoryReservation>(std::move(owner), whole, watched);
  }
  /// The same reservation. Moves copy: no value is ever without one.
  ContiguousMemory(ContiguousMemory const&) = default;
  /// The other's reservation from now on.
  ContiguousMemory& operator=(ContiguousMemory const&) = default;

  /// Memory for what is read again after work on other layers: checkpoints, gradients, states. Not
  /// initialised; it begins at a multiple of `alignment`, a power of two.
  /// @throws Error (resource) if there is no room
  [[nodiscard]] MemoryBlock long_lived(std::size_t bytes, std::size_t alignment = granule) {
    return {reservation_, reservation_->allocate(true, bytes, alignment), bytes};
  }
  /// The same for what is used up before others are: activations, their gradients, other scratch.
  [[nodiscard]] MemoryBlock short_lived(std::size_t bytes, std::size_t alignment = granule) {
    return {reservation_, reservation_->allocate(false, bytes, alignment), bytes};
  }

  /// As an allocator of the library, which says what the memory is for. Pools and staging are
  /// short-lived: they are filled and emptied bucket by bucket. Null for 0 bytes.
  /// @throws Error (resource) if there is no room, naming the role
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment, Role role) {
    bool const is_short = role == Role::gradient_pool || role == Role::gather_pool ||
                          role == Role::staging || role == Role::activation_pool ||
                          role == Role::activation_staging;
    return reservation_->allocate(!is_short, bytes, alignment, name(role));
  }
  /// The same for somebody who does not say: long-lived.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return reservation_->allocate(true, bytes, alignment);
  }
  /// Takes back what `allocate` returned for as many bytes, once: it is not checked.
  void deallocate(void* memory, std::size_t bytes, std::size_t /*alignment*/) {
    reservation_->deallocate(memory, bytes);
  }

  /// What is in use and what is free, now and at its most.
  [[nodiscard]] MemoryStatistics statistics() const { return reservation_->statistics(); }

 private:
  std::shared_ptr<detail::MemoryReservation> reservation_;
};

static_assert(RoleAllocator<ContiguousMemory>);

/// Bytes of a reservation in which an optimizer of this plan fits, whatever lies there already:
/// what the plan says but for the communicator's, which is from elsewhere, and a page for each of
/// its blocks, which begin at one. What the trainer takes for itself comes on top. On a device,
/// construction and loading take about a MiB more for a moment.
/// @throws Error (invalid_argument) if the size does not fit in 64 bits
[[nodiscard]] inline std::uint64_t reservation_bytes(Plan const& plan) {
  // At most three arrays of a role; pools are one array each, states one for each of the rule's.
  std::uint64_t const blocks =
      plan.types.size() * (3 * optimizer_role_count + plan.state_arrays.size());
  std::uint64_t const own = plan.memory.total() - plan.memory[Role::communicator];
  return checked_add(own, checked_mul(blocks, ContiguousMemory::page));
}

}  // namespace zero::inline ZERO_NAMESPACE
