/// @file
/// Memory for optimizers that peers on the same node read directly.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/bodies.hpp"
#include "zero/comm/mpi/pages.hpp"
#include "zero/concepts/allocator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi {

namespace detail {
class Pool;
}

/// Allocates from a communicator's shared window: `Owned<mpi::SharedAllocator>{comm.allocator()}`.
/// Peers on the node then read the optimizer's buffers where they are. Without a window
/// (`Transport::window` says so) memory comes from operator new.
class SharedAllocator {
 public:
  /// Without a window.
  SharedAllocator() = default;

  /// Zero bytes give null.
  /// @par Cost  all pages of the block are got now
  /// @throws Error (resource) if the window is exhausted, saying how much is left, or /dev/shm is
  ZERO_MPI_APART [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment);
  /// Gives a block back.
  ZERO_MPI_APART void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept;

  /// Of a pool; null stands for operator new.
  explicit SharedAllocator(std::shared_ptr<detail::Pool> pool) noexcept : pool_(std::move(pool)) {}

 private:
  std::shared_ptr<detail::Pool> pool_;
};

static_assert(Allocator<SharedAllocator>);

#if ZERO_MPI_BODIES

namespace detail {

/// Hands out pieces of one rank's part of a window. First fit: an optimizer takes a dozen blocks
/// once.
class Pool {
 public:
  /// @param keep  what the memory lies in
  Pool(std::shared_ptr<void const> keep, std::byte* base, std::size_t bytes)
      : keep_(std::move(keep)), base_(base), bytes_(bytes) {}

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t left() const {
    std::lock_guard const lock(mutex_);
    return bytes_ - used_;
  }
  /// Pieces not given back.
  [[nodiscard]] std::size_t pieces() const {
    std::lock_guard const lock(mutex_);
    return taken_.size();
  }

  /// Where a buffer lies; -1 if that is not in this memory.
  [[nodiscard]] std::int64_t place_of(void const* buffer, std::size_t bytes) const noexcept {
    std::uintptr_t const at =
        reinterpret_cast<std::uintptr_t>(buffer) - reinterpret_cast<std::uintptr_t>(base_);
    return at <= bytes_ && bytes <= bytes_ - at ? static_cast<std::int64_t>(at) : -1;
  }

  void* take(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    std::lock_guard const lock(mutex_);
    auto const start = reinterpret_cast<std::uintptr_t>(base_);
    std::size_t at = 0;
    auto piece = taken_.begin();
    for (;; ++piece) {
      at += (alignment - (start + at) % alignment) % alignment;
      std::size_t const end = piece == taken_.end() ? bytes_ : piece->at;
      if (at <= end && bytes <= end - at) break;
      if (piece == taken_.end()) {
        fail(ErrorKind::resource,
             {"the shared window has no room for ",
              bytes,
              " bytes; ",
              bytes_ - used_,
              " of ",
              bytes_,
              " are left: raise Options::shared_bytes"});
      }
      at = piece->at + piece->bytes;
    }
    if (!get_pages(base_ + at, bytes)) {
      fail(ErrorKind::resource,
           {"the file system of shared memory, usually /dev/shm, is full: it has no room for ",
            bytes,
            " bytes of the window"});
    }
    taken_.insert(piece, {at, bytes});
    used_ += bytes;
    return base_ + at;
  }

  void give_back(void* memory) noexcept {
    if (memory == nullptr) return;
    std::lock_guard const lock(mutex_);
    auto const at = static_cast<std::size_t>(static_cast<std::byte*>(memory) - base_);
    auto const piece = std::find_if(
        taken_.begin(), taken_.end(), [&](PoolPiece const& taken) { return taken.at == at; });
    if (piece == taken_.end()) return;
    used_ -= piece->bytes;
    taken_.erase(piece);
  }

 private:
  struct PoolPiece {
    std::size_t at;
    std::size_t bytes;
  };

  std::shared_ptr<void const> keep_;
  std::byte* base_;
  std::size_t bytes_;
  std::size_t used_ = 0;
  std::vector<PoolPiece> taken_;  ///< in the order of places
  mutable std::mutex mutex_;
};

}  // namespace detail

ZERO_MPI_BODY void* SharedAllocator::allocate(std::size_t bytes, std::size_t alignment) {
  return pool_ == nullptr ? HostAllocator().allocate(bytes, alignment)
                          : pool_->take(bytes, alignment);
}

ZERO_MPI_BODY void SharedAllocator::deallocate(void* memory,
                                               std::size_t bytes,
                                               std::size_t alignment) noexcept {
  if (pool_ == nullptr) return HostAllocator().deallocate(memory, bytes, alignment);
  pool_->give_back(memory);
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::mpi
