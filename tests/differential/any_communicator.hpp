/// @file
/// Any communicator over host memory that adds squares as one type, and any over a device's memory
/// as another: the optimizers are compiled once for each.
#pragma once

#include "support/standard.hpp"
#include "trapped_space.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/space/host.hpp"

namespace differential {

/// Any allocator.
class AnyAllocator {
 public:
  template <class A>
  explicit AnyAllocator(A allocator)
      : allocate_([allocator](std::size_t bytes, std::size_t alignment) mutable {
          return allocator.allocate(bytes, alignment);
        }),
        deallocate_([allocator](void* memory, std::size_t bytes, std::size_t alignment) mutable {
          allocator.deallocate(memory, bytes, alignment);
        }) {}

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) const {
    return allocate_(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) const noexcept {
    deallocate_(memory, bytes, alignment);
  }

 private:
  std::function<void*(std::size_t, std::size_t)> allocate_;
  std::function<void(void*, std::size_t, std::size_t)> deallocate_;
};

template <class SpaceT>
class AnyRank {
 public:
  using Space = SpaceT;
  using Ticket = std::shared_ptr<void>;
  /// Elsewhere the space adds them.
  static constexpr bool adds_squares = Space::host_accessible;

  template <zero::Communicator C>
  AnyRank(C& comm, Space space, AnyAllocator allocator = AnyAllocator(zero::HostAllocator{}))
      : rank_(comm.rank()),
        size_(comm.size()),
        space_(space),
        allocator_(std::move(allocator)),
        start_([&comm](zero::Collective const& op) {
          return std::make_shared<typename C::Ticket>(comm.start(op));
        }),
        wait_([&comm](void* ticket) { comm.wait(*static_cast<typename C::Ticket*>(ticket)); }),
        progress_([&comm] { zero::progress(comm); }) {
    static_assert(zero::SquaringCommunicator<C> || !adds_squares);
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] Space space() const { return space_; }
  [[nodiscard]] AnyAllocator const& allocator() const { return allocator_; }
  Ticket start(zero::Collective const& op) { return start_(op); }
  void wait(Ticket& ticket) {
    if (ticket != nullptr) wait_(ticket.get());
    ticket.reset();
  }
  void progress() noexcept { progress_(); }

 private:
  int rank_;
  int size_;
  Space space_;
  AnyAllocator allocator_;
  std::function<Ticket(zero::Collective const&)> start_;
  std::function<void(void*)> wait_;
  std::function<void()> progress_;
};

using AnyCommunicator = AnyRank<zero::space::Host>;
using AnyDevice = AnyRank<trapped::Space>;

}  // namespace differential
