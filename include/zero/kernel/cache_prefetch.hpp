/// @file
/// Asking for memory before it is read.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::kernel::detail {

/// Asks for the line `Bytes` after `at`. That may lie past the end of the array, where a pointer
/// may not be formed but a prefetch is harmless.
template <std::size_t Bytes>
ZERO_ALWAYS_INLINE void prefetch(void const* at) noexcept {
  std::uintptr_t const address = reinterpret_cast<std::uintptr_t>(at) + Bytes;
  __builtin_prefetch(reinterpret_cast<void const*>(address));
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel::detail
