/// @file
/// The memory slot: who owns parameters and gradients, and where the library's own memory is from.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>

namespace zero::inline ZERO_NAMESPACE {

/// Source of the library's memory. Called at construction and, where the host cannot reach the
/// memory, by calls between steps for what they give back before they return; never inside a step.
///
/// `allocate` returns memory aligned to `alignment` (a power of two) or throws; it may return null
/// only for 0 bytes. An allocator is copied into the optimizer; one that counts keeps a pointer.
template <class A>
concept Allocator = std::copy_constructible<A> &&
    requires(A& allocator, void* memory, std::size_t bytes, std::size_t alignment) {
  { allocator.allocate(bytes, alignment) } -> std::same_as<void*>;
  { allocator.deallocate(memory, bytes, alignment) } -> std::same_as<void>;
};

/// An allocator that wants to know what memory is for: it has `allocate(bytes, alignment, role)`
/// beside the other one, and is told with every block.
template <class A>
concept RoleAllocator = Allocator<A> &&
    requires(A& allocator, std::size_t bytes, std::size_t alignment, Role role) {
  { allocator.allocate(bytes, alignment, role) } -> std::same_as<void*>;
};

/// Host memory from the global operator new.
///
/// It lays blocks of one size at equal distances, and an update reads four of them at the same
/// index: caches may have one place for all four. So a block of 1 MiB or more begins 1 to 16 pages
/// later, and takes 64 KiB more of the address space.
struct HostAllocator {
  /// From operator new; throws std::bad_alloc.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    if (!moves(bytes, alignment)) return ::operator new (bytes, std::align_val_t{alignment});
    auto* const start =
        static_cast<std::byte*>(::operator new (bytes + pages * page, std::align_val_t{page}));
    // The address decides how many, by the high bits of a product: neighbours of one size are then
    // all about as many pages further apart, which was measured to be better than any number of
    // them.
    std::uint64_t const number = reinterpret_cast<std::uintptr_t>(start) / page;
    std::byte* const memory = start + page * (1 + (number * 0x9e3779b97f4a7c15u >> 32) % pages);
    reinterpret_cast<void**>(memory)[-1] = start;
    return memory;
  }
  /// Back to operator delete.
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
    if (!moves(bytes, alignment)) {
      return ::operator delete (memory, std::align_val_t{alignment});
    }
    ::operator delete (static_cast<void**>(memory)[-1], std::align_val_t{page});
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t pages = 16;
  /// What would wrap around is left to operator new, which refuses it.
  [[nodiscard]] static constexpr bool moves(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes >= std::size_t{1} << 20 && bytes <= PTRDIFF_MAX && alignment <= page;
  }
};

static_assert(Allocator<HostAllocator>);

// Neither says what its allocator is by default: an allocator may have to be made of something, and
// compilers ask the default even where a value is given.

/// The library owns parameters and gradients; the trainer points its tensors into them.
template <Allocator A = HostAllocator>
struct Owned {
  static constexpr bool borrowed = false;  ///< the library allocates parameters and gradients
  [[no_unique_address]] A allocator;       ///< where all memory is from
};

/// Deduces the allocator; compilers before Clang 17 do so for an aggregate only when told.
template <Allocator A>
Owned(A) -> Owned<A>;

/// The trainer lends its own parameter and gradient memory (`bind`); stages up to Pos+g.
///
/// A large tensor travels from where it lies, but for its ragged ends; these and small tensors
/// travel through staging. Buckets are at most a 32nd of the model, two of them in staging. Lent
/// gradients are never written, so every stage holds a share of the reduced ones; full gradients
/// are the trainer's, who saves them under Pos+g by freeing them (`gradients_free`).
template <Allocator A = HostAllocator>
struct Borrowed {
  static constexpr bool borrowed = true;  ///< parameters and gradients are lent with bind()
  [[no_unique_address]] A allocator;      ///< where the rest of the memory is from
};

/// As for `Owned`.
template <Allocator A>
Borrowed(A) -> Borrowed<A>;

/// The trainer lends its own memory as with `Borrowed`, and the library may write the gradients:
/// the reduced share lies in them, so that no stage holds one. Stages up to Pos+g; not with
/// AccumulateShard, whose sums outlive the gradients of a micro-step.
///
/// From the first reduction of a step until its end, lent gradients are the library's; what they
/// hold afterwards is unspecified. All of them are lent: one that is absent in a step has memory,
/// too, and is declared by `without_gradient`.
/// @par Cost  beside `Borrowed`'s: for what travels through staging, two copies of this rank's
/// share
template <Allocator A = HostAllocator>
struct BorrowedInPlace {
  static constexpr bool borrowed = true;  ///< parameters and gradients are lent with bind()
  static constexpr bool in_place = true;  ///< reduced gradients lie in lent ones
  [[no_unique_address]] A allocator;      ///< where the rest of the memory is from
};

/// As for `Owned`.
template <Allocator A>
BorrowedInPlace(A) -> BorrowedInPlace<A>;

/// Owned, Borrowed or BorrowedInPlace.
template <class M>
concept Memory = requires(M& memory) {
  { M::borrowed } -> std::convertible_to<bool>;
  requires Allocator<decltype(memory.allocator)>;
};

static_assert(Memory<Owned<>>);
static_assert(Memory<Borrowed<>>);
static_assert(Memory<BorrowedInPlace<>>);

/// Do reduced gradients lie in lent ones? Not where a policy says nothing about it.
template <Memory M>
inline constexpr bool reduces_in_place = M::borrowed&& requires {
  requires M::in_place;
};

}  // namespace zero::inline ZERO_NAMESPACE
