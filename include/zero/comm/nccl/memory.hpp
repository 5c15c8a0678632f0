/// @file
/// Device memory from NCCL, registered with the communicators that will use it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/caller.hpp"
#include "zero/comm/nccl/options.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// True if NCCL can move 16 bytes at a time.
[[nodiscard]] inline bool is_vector_aligned(Collective const& op) noexcept {
  return is_aligned(op.recv, 16) && (op.send == nullptr || is_aligned(op.send, 16));
}

/// Allocations of one rank and what they are registered as. The family's lock guards all of it.
template <nccl::Api A>
class NcclMemory {
 public:
  /// What NCCL requires of a window and what the library's arenas ask for.
  static constexpr std::size_t alignment = 4096;

  explicit NcclMemory(nccl::Registration registration) noexcept : registration_(registration) {}

  /// Collective under windows: all ranks allocate the same sizes in the same order.
  /// @throws Error (resource) if NCCL refuses the memory
  void* allocate(NcclCaller<A> const& caller, typename A::Comm comm, std::size_t bytes) {
    NcclActivity const activity{.operation = "allocate"};
    caller.family().throw_if_failed(activity);
    if (bytes == 0) return nullptr;
    blocks_.reserve(blocks_.size() + 1);
    // A window covers whole pages; NCCL rounds allocations up to its granularity anyway.
    std::size_t const rounded = (bytes + alignment - 1) / alignment * alignment;
    Allocation block{.base = take(caller, rounded), .bytes = rounded};
    // Without virtual memory management NCCL's memory is cudaMalloc's, which may begin anywhere.
    if (!is_aligned(block.base, alignment)) {
      static_cast<void>(A::mem_free(block.base));
      block.base = take(caller, rounded + alignment);
    }
    block.memory =
        static_cast<std::byte*>(block.base) +
        (alignment - reinterpret_cast<std::uintptr_t>(block.base) % alignment) % alignment;
    blocks_.push_back(std::move(block));
    // Undoes it all if a registration throws: then nobody will give the memory back.
    struct Undo {
      NcclMemory* memory;
      NcclFamily<A>& family;
      void* block;
      ~Undo() {
        if (memory != nullptr) memory->deallocate(family, block, true);
      }
    } undo{this, caller.family(), blocks_.back().memory};
    add(caller, comm, blocks_.back());
    undo.memory = nullptr;
    return blocks_.back().memory;
  }

  /// Leaves the memory where it is, with its registration, if the family leaks what it has, or if
  /// it is not idle: NCCL unmaps a window at once, whoever still reads through it.
  void deallocate(NcclFamily<A>& family, void* memory, bool idle) noexcept {
    auto const found = std::find_if(blocks_.begin(), blocks_.end(), [&](Allocation const& block) {
      return block.memory == memory;
    });
    if (found == blocks_.end()) return;
    if (!idle || family.leaks()) return;
    if (!family.failed()) deregister(*found);
    static_cast<void>(A::mem_free(found->base));
    blocks_.erase(found);
  }

  /// Ends all registrations, before the communicators end.
  void deregister_all() noexcept {
    for (Allocation& block : blocks_) deregister(block);
  }
  /// Forgets all registrations, of communicators that are gone.
  void forget_all() noexcept {
    for (Allocation& block : blocks_) {
      block.handle = nullptr;
      block.window = {};
    }
  }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept {
    std::uint64_t bytes = 0;
    for (Allocation const& block : blocks_) {
      if (block.registered()) bytes += block.bytes;
    }
    return bytes;
  }

 private:
  using Comm = typename A::Comm;

  struct Allocation {
    void* base = nullptr;    ///< what NCCL gave
    void* memory = nullptr;  ///< the first of its bytes that are aligned
    std::size_t bytes = 0;
    Comm comm{};                  ///< with which it is registered
    void* handle = nullptr;       ///< as a buffer
    typename A::Window window{};  ///< as a window

    [[nodiscard]] bool registered() const noexcept {
      return handle != nullptr || window != typename A::Window{};
    }
  };

  [[nodiscard]] static void* take(NcclCaller<A> const& caller, std::size_t bytes) {
    void* memory = nullptr;
    nccl::Status const got = A::mem_alloc(&memory, bytes);
    if (got.ok() && memory != nullptr) return memory;
    fail(ErrorKind::resource,
         {"NCCL cannot allocate ", bytes, " bytes: ", name(got.result), " ", got.text},
         {.rank = caller.family().rank(), .operation = "allocate"});
  }

  void add(NcclCaller<A> const& caller, Comm comm, Allocation& block) {
    block.comm = comm;
    if (registration_ == nccl::Registration::buffers) {
      // Collective or not, peers count on it: a refusal is not this rank's private matter.
      nccl::Status const status =
          A::register_buffer(comm, block.memory, block.bytes, &block.handle);
      conclude(caller, comm, status, {.operation = "register_buffer"});
      if (block.handle == nullptr) {
        caller.end("NCCL skipped the registration of a buffer, as its environment tells it to",
                   {.operation = "register_buffer"});
      }
    }
    if (registration_ == nccl::Registration::windows) {
      auto const made = caller.family().template output<typename A::Window>(comm);
      nccl::Status const status = A::register_window(comm, block.memory, block.bytes, made.get());
      conclude(caller, comm, status, {.operation = "register_window"});
      block.window = *made;
      bool symmetric = false;
      if (block.window != typename A::Window{}) {
        caller.require(A::is_symmetric(block.window, &symmetric), {.operation = "register_window"});
      }
      if (!symmetric) {
        caller.end("NCCL took memory for a symmetric window, but made none: unsupported here",
                   {.operation = "register_window"});
      }
    }
  }

  static void conclude(NcclCaller<A> const& caller,
                       Comm comm,
                       nccl::Status status,
                       NcclActivity const& activity) {
    if (status.failed()) caller.end(caller.sentence(comm, status, activity), activity);
    caller.settle(comm, status, activity);
  }

  static void deregister(Allocation& block) noexcept {
    if (block.handle != nullptr) {
      static_cast<void>(A::deregister_buffer(block.comm, std::exchange(block.handle, nullptr)));
    }
    if (block.window != typename A::Window{}) {
      static_cast<void>(A::deregister_window(block.comm, std::exchange(block.window, {})));
    }
  }

  nccl::Registration registration_;
  std::vector<Allocation> blocks_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
