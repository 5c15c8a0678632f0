/// @file
/// One piece of memory from any allocator, and how its guards are reached.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/memory/poison.hpp"

#include <concepts>
#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// What writes and reads guards: any MemorySpace does. `upload` copies from memory of the host,
/// `download` to it; both are done on return.
template <class S>
concept GuardSpace = std::copy_constructible<S> &&
    requires(S const& space, void* memory, void const* from, std::size_t bytes) {
  { space.upload(memory, from, bytes) } -> std::same_as<void>;
  { space.download(memory, from, bytes) } -> std::same_as<void>;
};

/// Ordinary memory of the process, without the kernels of space::Host.
struct HostBytes {
  /// Copies `bytes` bytes.
  static void upload(void* to, void const* host, std::size_t bytes) noexcept {
    std::memcpy(to, host, bytes);
  }
  /// Copies `bytes` bytes.
  static void download(void* host, void const* from, std::size_t bytes) noexcept {
    std::memcpy(host, from, bytes);
  }
};

/// Asks for guards: bytes before and behind each block that nobody may write to, compared when the
/// block is given back and by `check()`. For debugging: they cost 512 bytes a block, and on a
/// device every block waits for its stream.
/// @tparam Space  that of the memory, such as space::Cuda: the default is for memory of the host
template <GuardSpace Space = HostBytes>
struct Guarded {
  [[no_unique_address]] Space space;  ///< what writes and reads the guards
};

/// Deduces the space; compilers before Clang 17 do so for an aggregate only when told.
template <GuardSpace Space>
Guarded(Space) -> Guarded<Space>;

/// Asks for no guards.
struct Unguarded {};

namespace detail {

template <class G>
inline constexpr bool is_guards = std::same_as<G, Unguarded>;
template <class Space>
inline constexpr bool is_guards<Guarded<Space>> = true;

/// Memory that is given back by the destructor.
class MemorySource {
 public:
  MemorySource(MemorySource const&) = delete;
  MemorySource& operator=(MemorySource const&) = delete;
  virtual ~MemorySource() = default;

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Are there guards?
  [[nodiscard]] virtual bool guarded() const noexcept = 0;
  /// May the sanitizer be told of its addresses? They are of the host, for certain.
  [[nodiscard]] virtual bool poisonable() const noexcept = 0;
  virtual void upload(void* to, void const* host, std::size_t bytes) = 0;
  virtual void download(void* host, void const* from, std::size_t bytes) = 0;

 protected:
  MemorySource() = default;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

template <Allocator A, class Guards>
class SourceOf final : public MemorySource {
 public:
  /// @throws Error (resource) if the allocator refuses
  SourceOf(A allocator, Guards guards, std::size_t bytes, std::size_t alignment)
      : allocator_(std::move(allocator)), guards_(std::move(guards)), alignment_(alignment) {
    bytes_ = bytes;
#if defined(__cpp_exceptions)
    try {
      data_ = allocator_.allocate(bytes, alignment);
    } catch (std::bad_alloc const&) {
      data_ = nullptr;
    }
#else
    data_ = allocator_.allocate(bytes, alignment);
#endif
    if (data_ == nullptr) fail(ErrorKind::resource, {"cannot reserve ", bytes, " bytes of memory"});
    if (poisonable()) poison(data_, bytes_);
  }
  ~SourceOf() override {
    if (data_ == nullptr) return;
    if (poisonable()) unpoison(data_, bytes_);
    allocator_.deallocate(data_, bytes_, alignment_);
  }

  [[nodiscard]] bool guarded() const noexcept override { return has_guards; }
  [[nodiscard]] bool poisonable() const noexcept override { return std::same_as<A, HostAllocator>; }
  void upload(void* to, void const* host, std::size_t bytes) override {
    if constexpr (has_guards) guards_.space.upload(to, host, bytes);
  }
  void download(void* host, void const* from, std::size_t bytes) override {
    if constexpr (has_guards) guards_.space.download(host, from, bytes);
  }

 private:
  static constexpr bool has_guards = !std::same_as<Guards, Unguarded>;

  [[no_unique_address]] A allocator_;
  [[no_unique_address]] Guards guards_;
  std::size_t alignment_;
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
