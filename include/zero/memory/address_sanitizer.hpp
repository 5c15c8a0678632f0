/// @file
/// Tells the address sanitizer, where a program has it, which bytes nobody may touch.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>

// A macro would ask how one translation unit was compiled, but memory is handed to others.
#if defined(__APPLE__)
#include <dlfcn.h>
#else
// Weak: null in a program without the sanitizer.
extern "C" {
/// The sanitizer's: an access is an error from now on.
__attribute__((weak)) void __asan_poison_memory_region(void const volatile*, std::size_t);
/// The sanitizer's: an access is none.
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile*, std::size_t);
}
#endif

namespace zero::inline ZERO_NAMESPACE::detail {

/// Is an access to the bytes allowed from now on, or an error that the sanitizer reports?
inline void allow_access(void const* memory, std::size_t bytes, bool allowed) noexcept {
#if defined(__APPLE__)
  // The linker wants weak names to be defined.
  auto const function = [](char const* name) {
    return reinterpret_cast<void (*)(void const volatile*, std::size_t)>(
        ::dlsym(RTLD_DEFAULT, name));
  };
  static auto const poison = function("__asan_poison_memory_region");
  static auto const unpoison = function("__asan_unpoison_memory_region");
#else
  auto* const poison = &__asan_poison_memory_region;
  auto* const unpoison = &__asan_unpoison_memory_region;
#endif
  auto* const call = allowed ? unpoison : poison;
  if (call != nullptr) call(memory, bytes);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
