/// @file
/// Memory that the ranks of one node see at once.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/lane.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/pages.hpp"
#include "zero/comm/mpi/topology.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// On every rank of a node a control block, room for a pool, and lanes to all ranks of the node
/// with their chunks, in one MPI-3 shared window; or a control block in private memory where a rank
/// has nobody to share with.
///
/// Freeing a window is collective: `close` does it; the destructor leaves it to MPI.
class Window {
 public:
  static constexpr std::size_t alignment = 4096;
  static constexpr std::size_t control_bytes =
      (sizeof(Control) + alignment - 1) / alignment * alignment;

  /// Bytes that are a rank's own beside its pool, where `size` ranks share a window.
  [[nodiscard]] static constexpr std::size_t planned_bytes(int size, std::size_t chunk) noexcept {
    std::size_t const ranks = index(size);
    return round_up(control_bytes + ranks * sizeof(Lane), alignment) +
           (ranks - 1) * chunks_under_way * round_up(chunk, 64);
  }

  /// Private memory.
  Window() : own_(new Control), parts_{{own_.get()}} {}

  /// Collective over `all`, the group, of which `node` is the part on this node; takes `node` over.
  /// @param group_size   ranks of `all`
  /// @param chunk_bytes  of one chunk between two ranks
  /// @throws Error (resource) on all ranks if the memory of one of them is not to be had
  Window(Blocking& blocking,
         MPI_Comm all,
         int group_size,
         MPI_Comm node,
         std::size_t pool_bytes,
         std::size_t chunk_bytes)
      : node_(node), chunk_bytes_(round_up(chunk_bytes, 64)) {
    // MPICH ends in an assertion if it has no communicator left for the window.
    Blocking::release(blocking.duplicate(all));
    int size = 0;
    int rank = 0;
    check(MPI_Comm_size(node, &size), "MPI_Comm_size");
    held_ = planned_bytes(size, chunk_bytes);
    check(MPI_Comm_rank(node, &rank), "MPI_Comm_rank");
    std::size_t const ranks = index(size);
    std::size_t const pools = round_up(control_bytes + ranks * sizeof(Lane), alignment);
    std::size_t const chunks = pools + round_up(pool_bytes, alignment);
    std::size_t const per_lane = size > 1 ? chunks_under_way * chunk_bytes_ : 0;
    std::string problem = allocate(blocking, chunks + ranks * per_lane + alignment);
    if (problem.empty() && !get_own(rank, size, pools, chunks)) {
      problem =
          "the file system of shared memory, usually /dev/shm, is full; make room there or set "
          "Options::shared_memory to false";
    }
    problem = blocking.first_problem(all, group_size, problem);
    if (!problem.empty()) fail(ErrorKind::resource, problem);
    for (int peer = 0; peer < size; ++peer) {
      std::byte* const base = start_of(peer);
      std::byte* const lanes = base + control_bytes;
      if (peer == rank) {
        new (base) Control;
        for (std::size_t lane = 0; lane < ranks; ++lane) new (lanes + lane * sizeof(Lane)) Lane;
      }
      parts_.push_back({std::launder(reinterpret_cast<Control*>(base)),
                        std::launder(reinterpret_cast<Lane*>(lanes)),
                        base + pools,
                        base + chunks});
    }
    check(MPI_Win_sync(window_), "MPI_Win_sync");
    static_cast<void>(blocking.gather(node, size, 0));
    check(MPI_Win_sync(window_), "MPI_Win_sync");
    for (WindowPart const& part : parts_) {
      if (part.control->magic.load(std::memory_order_acquire) == Control::present) continue;
      fail(ErrorKind::resource,
           "ranks that MPI says share memory do not see each other's; set Options::shared_memory "
           "to false");
    }
  }

  Window(Window const&) = delete;
  Window& operator=(Window const&) = delete;

  /// Bytes that are this rank's own beside its pool.
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  [[nodiscard]] bool shared() const noexcept { return window_ != MPI_WIN_NULL; }
  [[nodiscard]] Control* control(int peer) const noexcept { return part(peer).control; }
  /// Start of a rank's pool, or null.
  [[nodiscard]] std::byte* pool(int peer) const noexcept { return part(peer).pool; }

  /// From one rank of the node to another; a window that is shared.
  [[nodiscard]] Lane& lane(int from, int to) const noexcept { return part(from).lanes[to]; }
  [[nodiscard]] std::byte* chunk(int from, int to, int slot) const noexcept {
    std::size_t const place = index(to) * chunks_under_way + index(slot);
    return part(from).chunks + place * chunk_bytes_;
  }

  /// The number that the first rank gives. Collective over the node; blocks.
  [[nodiscard]] int first(Blocking& blocking, int number) const {
    if (!shared()) return number;
    return blocking.gather(node_, static_cast<int>(parts_.size()), number).front();
  }

  /// Gives the memory back. Collective over the node; blocks; the ranks have met, since what waits
  /// here and gives up would still use the memory.
  void close() {
    if (!shared()) return;
    check(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
    check(MPI_Win_free(&window_), "MPI_Win_free");
    Blocking::release(node_);
  }

 private:
  /// What one rank of the node has put there.
  struct WindowPart {
    Control* control = nullptr;
    Lane* lanes = nullptr;  ///< to every rank
    std::byte* pool = nullptr;
    std::byte* chunks = nullptr;  ///< of the lanes
  };

  [[nodiscard]] WindowPart const& part(int peer) const noexcept { return parts_[index(peer)]; }
  /// Everything of this rank's but the pool, which gets what is taken from it.
  [[nodiscard]] bool get_own(int rank, int size, std::size_t pools, std::size_t chunks) const {
    std::byte* const base = start_of(rank);
    bool all = get_pages(base, pools);
    for (int peer = 0; peer < size; ++peer) {
      std::size_t const bytes = chunks_under_way * chunk_bytes_;
      if (peer == rank) continue;
      all = all && get_pages(base + chunks + index(peer) * bytes, bytes);
    }
    return all;
  }

  /// Why there is no window for this rank; empty if there is one.
  [[nodiscard]] std::string allocate(Blocking& blocking, std::size_t bytes) {
    MPI_Info info = MPI_INFO_NULL;
    check(MPI_Info_create(&info), "MPI_Info_create");
    check(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
    blocking.meet("MPI_Win_allocate_shared", node_);
    void* memory = nullptr;
    int const code = MPI_Win_allocate_shared(
        static_cast<MPI_Aint>(bytes), 1, info, node_, static_cast<void*>(&memory), &window_);
    check(MPI_Info_free(&info), "MPI_Info_free");
    if (code != MPI_SUCCESS) {
      return Message({"MPI cannot share ",
                      bytes,
                      " bytes between the ranks of a node; lower Options::shared_bytes or set "
                      "Options::shared_memory to false: ",
                      error_text(code)})
          .text();
    }
    check(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
    int* model = nullptr;
    int found = 0;
    check(MPI_Win_get_attr(window_, MPI_WIN_MODEL, static_cast<void*>(&model), &found),
          "MPI_Win_get_attr");
    if (found == 0 || *model != MPI_WIN_UNIFIED) {
      return "MPI's windows are not coherent here; set Options::shared_memory to false";
    }
    check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
    return {};
  }

  /// A rank's memory, in this process's addresses. Mappings are whole pages, so that all ranks
  /// round to the same place.
  [[nodiscard]] std::byte* start_of(int peer) const {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* memory = nullptr;
    check(MPI_Win_shared_query(window_, peer, &bytes, &unit, static_cast<void*>(&memory)),
          "MPI_Win_shared_query");
    auto const address = reinterpret_cast<std::uintptr_t>(memory);
    return static_cast<std::byte*>(memory) + (alignment - address % alignment) % alignment;
  }

  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  std::size_t chunk_bytes_ = 0;
  std::size_t held_ = sizeof(Control);
  std::unique_ptr<Control> own_;
  std::vector<WindowPart> parts_;  ///< by place on the node
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
