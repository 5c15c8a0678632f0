/// @file
/// Plain copies between two pieces of ordinary memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/transfer.hpp"
#include "zero/space/host.hpp"

#include <cstddef>
#include <new>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Both memories are ordinary memory of the process; a transfer is done when it has been started.
/// For trainers on the host, and to compare with.
class HostTransfer {
 public:
  using Space = space::Host;                        ///< the fast memory
  using Slow = std::byte*;                          ///< the slower one: the same
  static constexpr std::string_view name = "host";  ///< of the slower memory, for people
  /// Always done.
  struct Ticket {};

  /// From the global operator new, at a multiple of 64.
  /// @throws Error (resource) if there is not so much
  [[nodiscard]] Slow allocate(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    void* const memory = ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
    if (memory == nullptr) {
      fail(ErrorKind::resource, {"cannot allocate ", bytes, " bytes of the slower memory"});
    }
    return static_cast<Slow>(memory);
  }
  /// Back to operator delete.
  void deallocate(Slow memory, std::size_t /*bytes*/) noexcept {
    ::operator delete (memory, std::align_val_t{alignment});
  }
  /// Copies at once.
  Ticket send_out(Slow to, void const* from, std::size_t bytes) noexcept {
    Space::copy(to, from, bytes);
    return {};
  }
  /// Copies at once.
  Ticket bring_in(void* to, Slow from, std::size_t bytes) noexcept {
    Space::copy(to, from, bytes);
    return {};
  }
  /// Returns at once.
  void wait(Ticket const& /*ticket*/) noexcept {}
  /// Returns at once.
  void settle() noexcept {}

 private:
  static constexpr std::size_t alignment = 64;
};

static_assert(Transfer<HostTransfer>);

}  // namespace zero::inline ZERO_NAMESPACE
