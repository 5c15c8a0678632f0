/// @file
/// Where device memory is from.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::device {

namespace detail {

/// Memory at a multiple of `alignment`, from a source that promises 256 bytes: the address that was
/// asked for more is kept, since device memory has no room for a header that the host could read.
template <class Source>
class Aligned {
 public:
  explicit Aligned(Source source) : source_(std::move(source)) {}

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    void* const memory = source_.take(bytes);
    if (memory == nullptr || address(memory) % alignment == 0) return memory;
    source_.give_back(memory);
    void* const larger = source_.take(bytes + alignment);
    if (larger == nullptr) return nullptr;
    std::size_t const gap = alignment - static_cast<std::size_t>(address(larger) % alignment);
    void* const aligned = static_cast<std::byte*>(larger) + gap;
    bases_->emplace(aligned, larger);
    return aligned;
  }

  void deallocate(void* memory) noexcept {
    auto const found = bases_->find(memory);
    if (found == bases_->end()) {
      source_.give_back(memory);
      return;
    }
    source_.give_back(found->second);
    bases_->erase(found);
  }

 private:
  [[nodiscard]] static std::uintptr_t address(void* memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory);
  }

  Source source_;
  // Shared by copies: an allocator is copied into the optimizer.
  std::shared_ptr<std::map<void*, void*>> bases_ = std::make_shared<std::map<void*, void*>>();
};

/// Null where there is not that much memory; any other answer is an error.
[[nodiscard]] inline void* taken(cudaError_t status, void* memory, char const* what) {
  if (status != cudaErrorMemoryAllocation) {
    check(status, what);
    return memory;
  }
  static_cast<void>(cudaGetLastError());
  return nullptr;
}

struct MallocSource {
  int device;

  [[nodiscard]] void* take(std::size_t bytes) const {
    Scope const scope(device);
    void* memory = nullptr;
    cudaError_t const status = cudaMalloc(&memory, bytes);
    return taken(status, memory, "cudaMalloc");
  }
  void give_back(void* memory) const noexcept {
    TryScope const scope(device);
    ignore(cudaFree(memory));
  }
};

struct AsyncSource {
  Queue queue;

  [[nodiscard]] void* take(std::size_t bytes) const {
    Scope const scope(queue.device);
    void* memory = nullptr;
    cudaError_t const status = cudaMallocAsync(&memory, bytes, queue.stream);
    return taken(status, memory, "cudaMallocAsync");
  }
  void give_back(void* memory) const noexcept {
    // A null stream is that of the current device; memory of this device is never freed there.
    TryScope const scope(queue.device);
    ignore(scope.status() == cudaSuccess ? cudaFreeAsync(memory, queue.stream) : scope.status());
  }
};

}  // namespace detail

/// Device memory from cudaMalloc. Peers with access to the device may use it.
///
/// Giving memory back waits for the device, as cudaFree does: only ever at destruction. A block may
/// take up to one alignment more than the plan says where the runtime's own is not enough.
/// @par Threads  copies share their bookkeeping: one thread at a time
class MallocAllocator {
 public:
  /// From the memory of `device`; the first, if none is named. Takes nothing yet.
  explicit MallocAllocator(int device = 0) : source_({device}) {}
  /// Null where memory is short, for the caller to say for what.
  /// @throws Error (resource) if the runtime refuses for another reason, such as having no device
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return source_.allocate(bytes, alignment);
  }
  /// Back to cudaFree; after the runtime has been unloaded, nowhere.
  void deallocate(void* memory, std::size_t /*bytes*/, std::size_t /*alignment*/) noexcept {
    source_.deallocate(memory);
  }

 private:
  detail::Aligned<detail::MallocSource> source_;
};

/// Device memory from cudaMallocAsync, in the order of one stream, which is that of the space.
///
/// The memory is of the device's current pool. Other devices have no access to it unless the
/// trainer gives them access to the pool: between several devices of one process MallocAllocator
/// is the one to take.
/// @par Threads  copies share their bookkeeping: one thread at a time
class AsyncAllocator {
 public:
  /// In the order of `stream`, a stream of `device`; the default stream of the first, if none is
  /// named. Takes nothing yet.
  explicit AsyncAllocator(int device = 0, cudaStream_t stream = nullptr)
      : source_({{.device = device, .stream = stream}}) {}
  /// Null where memory is short, for the caller to say for what.
  /// @throws Error (resource) if the runtime refuses for another reason, such as having no device
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return source_.allocate(bytes, alignment);
  }
  /// Back to the pool, after all work that is in the stream now.
  void deallocate(void* memory, std::size_t /*bytes*/, std::size_t /*alignment*/) noexcept {
    source_.deallocate(memory);
  }

 private:
  detail::Aligned<detail::AsyncSource> source_;
};

static_assert(Allocator<MallocAllocator>);
static_assert(Allocator<AsyncAllocator>);

}  // namespace zero::inline ZERO_NAMESPACE::device
