/// @file
/// A device that is none: ordinary memory that faults when it is touched outside of its space's
/// functions, and a queue of work that is put off as long as it may be.
#pragma once

#include "queued_space.hpp"
#include "support/standard.hpp"
#include "zero/zero.hpp"

#include <sys/mman.h>

namespace trapped {

/// One rank's device: its memory, its queue, and what crossed from it to the host.
///
/// Memory is readable and writable only while queued work runs, which happens when the host asks
/// for a result. Code that follows a pointer of the space on the host dies; code that forgets to
/// put work into the queue reads what was there before.
class Device {
 public:
  static constexpr std::size_t pool_bytes = std::size_t{64} << 20;

  Device() : pool_(::mmap(nullptr, pool_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (pool_ == MAP_FAILED) throw std::bad_alloc();
  }
  Device(Device const&) = delete;
  Device& operator=(Device const&) = delete;
  virtual ~Device() { ::munmap(pool_, pool_bytes); }

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    std::size_t const begin = (used_ + alignment - 1) / alignment * alignment;
    if (bytes > pool_bytes - begin) throw std::bad_alloc();
    used_ = begin + bytes;
    return static_cast<std::byte*>(pool_) + begin;
  }

  /// Refuses a pointer that is not of this device: it would be the host's, or another rank's.
  virtual void require(void const* begin, std::size_t bytes) const {
    auto const first = reinterpret_cast<std::uintptr_t>(begin);
    auto const pool = reinterpret_cast<std::uintptr_t>(pool_);
    if (first < pool || first - pool > pool_bytes || bytes > pool_bytes - (first - pool)) {
      throw std::logic_error("memory of the host is given to a device");
    }
  }

  virtual void enqueue(std::function<void()> work) { queue_.push_back(std::move(work)); }

  /// For a download.
  void finish(std::size_t bytes) {
    ++downloads;
    downloaded_bytes += bytes;
    synchronize();
  }

  /// Runs what was queued. The only time at which memory is open.
  virtual void synchronize() {
    if (::mprotect(pool_, pool_bytes, PROT_READ | PROT_WRITE) != 0) std::abort();
    for (; !queue_.empty(); queue_.pop_front()) queue_.front()();
    if (::mprotect(pool_, pool_bytes, PROT_NONE) != 0) std::abort();
  }

  std::uint64_t downloads = 0;
  std::uint64_t downloaded_bytes = 0;

 private:
  void* pool_;
  std::size_t used_ = 0;
  std::deque<std::function<void()>> queue_;
};

/// Models MemorySpace on a device, with the host's kernels.
struct Space : QueuedSpace<Device*> {
  explicit Space(Device& device) : QueuedSpace(&device) {}
  [[nodiscard]] Device& device() const { return *queue(); }
};

static_assert(zero::MemorySpace<Space>);

/// Memory of a device; given back with the device.
struct Allocator {
  Device* device = nullptr;
  void* allocate(std::size_t bytes, std::size_t alignment) {
    return device->allocate(bytes, alignment);
  }
  void deallocate(void*, std::size_t, std::size_t) noexcept {}
};

/// When a collective takes place: both are allowed.
enum class Collectives : int {
  early,  ///< in the queue where it was started
  late,   ///< in the queue where it was first waited for
};

/// In-process ranks that each have a device.
class Communicator {
 public:
  using Space = trapped::Space;
  struct Ticket {
    std::uint64_t number = 0;
  };

  Communicator(zero::InProcess& inner, Device& device, Collectives when)
      : inner_(&inner), device_(&device), when_(when) {}

  [[nodiscard]] int rank() const noexcept { return inner_->rank(); }
  [[nodiscard]] int size() const noexcept { return inner_->size(); }
  [[nodiscard]] Space space() const { return Space(*device_); }

  Ticket start(zero::Collective const& op) {
    if (op.count > 0) {
      bool const sends = op.op != zero::Op::broadcast || op.root == rank();
      if (sends) device_->require(op.send, op.block_bytes());
      device_->require(op.recv, op.block_bytes());
    }
    started_.push_back(op);
    ++last_;
    if (when_ == Collectives::early) enqueue_until(last_);
    return {last_};
  }
  void wait(Ticket& ticket) { enqueue_until(ticket.number); }

 private:
  /// Ranks may wait in different orders; collectives run in the order of their starts.
  void enqueue_until(std::uint64_t number) {
    for (; last_ - started_.size() < number; started_.pop_front()) {
      device_->enqueue([inner = inner_, op = started_.front()] { zero::run(*inner, op); });
    }
  }

  zero::InProcess* inner_;
  Device* device_;
  Collectives when_;
  std::deque<zero::Collective> started_;  ///< and not yet in the queue
  std::uint64_t last_ = 0;
};

static_assert(zero::Communicator<Communicator>);

}  // namespace trapped
