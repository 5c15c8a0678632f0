/// @file
/// Device memory from NCCL, registered with the communicators that will use it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/nccl_api.hpp"
#include "zero/comm/nccl/nccl_caller.hpp"
#include "zero/comm/nccl/nccl_exchange.hpp"
#include "zero/comm/nccl/nccl_options.hpp"

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
  void* allocate(NcclCaller<A> const& caller,
                 std::vector<NcclLane<A>> const& lanes,
                 std::size_t bytes) {
    NcclActivity const activity{.operation = "allocate"};
    caller.family().throw_if_failed(activity);
    if (bytes == 0) return nullptr;
    blocks_.reserve(blocks_.size() + 1);
    // A window covers whole pages; NCCL rounds allocations up to its granularity anyway.
    std::size_t const rounded = (bytes + alignment - 1) / alignment * alignment;
    Block block{.base = take(caller, rounded), .bytes = rounded};
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
    for (NcclLane<A> const& lane : lanes) add(caller, lane, blocks_.back());
    undo.memory = nullptr;
    return blocks_.back().memory;
  }

  /// Leaves the memory where it is, with its registration, while an abort that has not returned may
  /// use it, or if it is not idle: NCCL unmaps a window at once, whoever still reads through it.
  void deallocate(NcclFamily<A>& family, void* memory, bool idle) noexcept {
    auto const found = std::find_if(
        blocks_.begin(), blocks_.end(), [&](Block const& block) { return block.memory == memory; });
    if (found == blocks_.end()) return;
    if (!idle || family.stuck()) return;
    if (!family.failed()) deregister(*found);
    static_cast<void>(A::mem_free(found->base));
    blocks_.erase(found);
  }

  /// Ends all registrations, before the communicators end.
  void deregister_all() noexcept {
    for (Block& block : blocks_) deregister(block);
  }
  /// Forgets all registrations, of communicators that are gone.
  void forget_all() noexcept {
    for (Block& block : blocks_) {
      block.handles.clear();
      block.windows.clear();
    }
  }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept {
    std::uint64_t bytes = 0;
    for (Block const& block : blocks_) {
      if (!block.handles.empty() || !block.windows.empty()) bytes += block.bytes;
    }
    return bytes;
  }

  /// @throws Error (invalid_argument) unless a copy engine can do this gather
  void check_windows(Collective const& op, int rank, int size) const {
    std::size_t const whole = op.block_bytes() * static_cast<std::size_t>(size);
    if (in_window(op.send, op.block_bytes()) && in_window(op.recv, whole)) return;
    fail(ErrorKind::invalid_argument,
         {"a gather by copy engine needs both buffers in memory of allocator() (",
          describe(op),
          ")"},
         {.rank = rank, .operation = std::string(name(op.op)), .bucket = op.bucket});
  }

 private:
  using Comm = typename A::Comm;

  struct Block {
    void* base = nullptr;    ///< what NCCL gave
    void* memory = nullptr;  ///< the first of its bytes that are aligned
    std::size_t bytes = 0;
    std::vector<std::pair<Comm, void*>> handles{};
    std::vector<std::pair<Comm, typename A::Window>> windows{};
  };

  [[nodiscard]] static void* take(NcclCaller<A> const& caller, std::size_t bytes) {
    void* memory = nullptr;
    nccl::Status const got = A::mem_alloc(&memory, bytes);
    if (got.ok() && memory != nullptr) return memory;
    fail(ErrorKind::resource,
         {"NCCL cannot allocate ", bytes, " bytes: ", name(got.result), " ", got.text},
         {.rank = caller.family().rank(), .operation = "allocate"});
  }

  /// True if all of [memory, memory + bytes) lies in one window.
  [[nodiscard]] bool in_window(void const* memory, std::size_t bytes) const noexcept {
    auto const begin = reinterpret_cast<std::uintptr_t>(memory);
    return std::any_of(blocks_.begin(), blocks_.end(), [&](Block const& block) {
      auto const base = reinterpret_cast<std::uintptr_t>(block.memory);
      return !block.windows.empty() && begin >= base && bytes <= block.bytes &&
             begin - base <= block.bytes - bytes;
    });
  }

  void add(NcclCaller<A> const& caller, NcclLane<A> const& lane, Block& block) {
    if (registration_ == nccl::Registration::buffers) {
      block.handles.reserve(block.handles.size() + 1);
      void* handle = nullptr;
      // Collective or not, peers count on it: a refusal is not this rank's private matter.
      nccl::Status const status = A::register_buffer(lane.comm, block.memory, block.bytes, &handle);
      conclude(caller, lane.comm, status, {.operation = "register_buffer"});
      if (handle == nullptr) {
        caller.end("NCCL skipped the registration of a buffer, as its environment tells it to",
                   {.operation = "register_buffer"});
      }
      block.handles.emplace_back(lane.comm, handle);
    }
    if (registration_ == nccl::Registration::windows) {
      block.windows.reserve(block.windows.size() + 1);
      NcclOutput<A, typename A::Window> made(caller.family());
      nccl::Status const status =
          A::register_window(lane.comm, block.memory, block.bytes, made.address());
      conclude(caller, lane.comm, status, {.operation = "register_window"});
      typename A::Window const window = made.take();
      bool symmetric = false;
      if (window != typename A::Window{}) {
        block.windows.emplace_back(lane.comm, window);
        caller.require(A::is_symmetric(window, &symmetric), {.operation = "register_window"});
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

  static void deregister(Block& block) noexcept {
    for (auto const& [comm, handle] : block.handles) {
      static_cast<void>(A::deregister_buffer(comm, handle));
    }
    for (auto const& [comm, window] : block.windows) {
      static_cast<void>(A::deregister_window(comm, window));
    }
    block.handles.clear();
    block.windows.clear();
  }

  nccl::Registration registration_;
  std::vector<Block> blocks_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
