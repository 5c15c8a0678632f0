/// @file
/// Memory that is only counted, and work on it that only takes virtual time.
#pragma once

#include "timeline.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/memory_plan.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string_view>
#include <type_traits>

namespace plan::simulate {

using namespace zero;

/// Addresses for tensors that nobody allocates: no processor has memory there, so that whoever
/// follows one faults. What a step decides by is a few words, which are real memory.
class Memory {
 public:
  /// All addresses from here on are simulated: beyond what 64-bit processors can address, with the
  /// highest byte (x86-64) and without it (aarch64 ignores it).
  static constexpr std::uintptr_t first_address = std::uintptr_t{0x4040} << 48;

  /// Is the address one of these?
  [[nodiscard]] static bool simulated(void const* address) noexcept {
    return reinterpret_cast<std::uintptr_t>(address) >= first_address;
  }

  /// An address that nobody else has.
  [[nodiscard]] void* take(std::size_t bytes, std::size_t alignment) noexcept {
    next_ = (next_ + alignment - 1) / alignment * alignment;
    auto const address = next_;
    next_ += bytes;
    return reinterpret_cast<void*>(address);
  }

 private:
  std::uintptr_t next_ = first_address;
};

/// Allocator of simulated memory, as a policy: `Owned{simulate::Allocator{memory}}`.
class Allocator {
 public:
  /// @param memory  must outlive the allocator and its copies
  explicit Allocator(Memory& memory) noexcept : memory_(&memory) {}

  /// A simulated address.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return memory_->take(bytes, alignment);
  }
  /// The same, but real memory for what steps decide by.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment, Role role) {
    if (role == Role::control) return HostAllocator().allocate(bytes, alignment);
    return allocate(bytes, alignment);
  }
  /// Gives real memory back.
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
    if (!Memory::simulated(memory)) HostAllocator().deallocate(memory, bytes, alignment);
  }

 private:
  Memory* memory_;
};

static_assert(RoleAllocator<Allocator>);

/// Seconds of a kernel that moves so many bytes through memory.
/// @param bytes  read and written; 0 for work on a few words
/// @param what   "zero", "copy", "convert", "add", "norm", "hash", "control" or "update"
using PassTime = std::function<double(double bytes, std::string_view what)>;

/// A `MemorySpace` of a device whose work takes virtual time. Values of tensors are nothing;
/// gradients count as zeros.
class Space {
 public:
  static constexpr std::string_view name = "simulated";  ///< of the space, for people
  static constexpr bool host_accessible = false;         ///< nobody may follow its pointers

  /// @param pass      how long its work takes; outlives the space and its copies
  /// @param timeline  which its work advances; likewise
  Space(PassTime const& pass, Timeline& timeline) noexcept : pass_(&pass), timeline_(&timeline) {}

  /// Clears words of control; of tensors it takes the time of a write.
  void zero(void* memory, std::size_t bytes) const {
    if (Memory::simulated(memory)) return take(bytes, "zero");
    std::memset(memory, 0, bytes);
  }
  /// Copies words of control; of tensors it takes the time of a read and a write.
  void copy(void* to, void const* from, std::size_t bytes) const {
    if (to == from || bytes == 0) return;
    if (Memory::simulated(to) || Memory::simulated(from)) return take(2 * bytes, "copy");
    std::memmove(to, from, bytes);
  }
  /// Copies words of control; tensors have no values.
  void upload(void* to, void const* host, std::size_t bytes) const {
    if (bytes > 0 && !Memory::simulated(to)) std::memcpy(to, host, bytes);
  }
  /// The same; values of tensors are zeros.
  void download(void* host, void const* from, std::size_t bytes) const {
    if (bytes == 0) return;
    if (Memory::simulated(from)) {
      std::memset(host, 0, bytes);
    } else {
      std::memcpy(host, from, bytes);
    }
  }
  /// A read of one type and a write of the other.
  template <class To, class From>
  void convert(To*, From const*, std::size_t count) const {
    take(count * (sizeof(To) + sizeof(From)), "convert");
  }
  /// A read of both and a write of the sum.
  template <class Sum, class From>
  void add(Sum*, From const*, std::size_t count) const {
    take(count * (2 * sizeof(Sum) + sizeof(From)), "add");
  }
  /// A read. Adds nothing.
  template <class T>
  void add_squares(ExactSum*, T const*, std::size_t count) const {
    take(count * sizeof(T), "norm");
  }
  /// A read. Adds nothing: all ranks have the same values.
  template <class T>
  void add_hash(std::uint64_t*, T const*, std::size_t count, std::uint64_t) const {
    take(count * sizeof(T), "hash");
  }
  /// A read of both. Finds nothing.
  template <class P, class M>
  void find_unrounded(std::uint64_t*, P const*, M const*, std::size_t count, std::uint64_t) const {
    take(count * (sizeof(P) + sizeof(M)), "comparison");
  }
  /// Calls it: it works on words of control.
  template <class F>
  void call(F const& function) const {
    function();
    take(0, "control");
  }
  /// One pass over all arrays, unless the step is skipped.
  template <class Rule,
            class Scalars,
            class Master,
            class Parameter,
            class Gradient,
            class State,
            std::size_t K>
  void update(Rule const&,
              StepTerms const* terms,
              Scalars const*,
              UpdateArrays<Master, Parameter, Gradient, State, K> const& arrays) const {
    if (terms->skipped != 0) return;
    std::size_t const element = 2 * sizeof(Master) + sizeof(Gradient) + 2 * K * sizeof(State) +
                                (arrays.parameter != nullptr ? sizeof(Parameter) : 0);
    take(arrays.count * element, "update");
  }

 private:
  void take(std::size_t bytes, std::string_view what) const {
    timeline_->compute((*pass_)(static_cast<double>(bytes), what), what);
  }

  PassTime const* pass_;
  Timeline* timeline_;
};

static_assert(MemorySpace<Space>);

}  // namespace plan::simulate
