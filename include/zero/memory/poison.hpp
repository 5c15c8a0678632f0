/// @file
/// Tells the address sanitizer, where a program has it, which bytes nobody may touch.
#pragma once

#include "zero/base/config.hpp"

#if defined(__APPLE__)
#include <dlfcn.h>
#endif

#include <cstddef>

// A macro would ask how one translation unit was compiled, but memory is handed from one to
// another.
#if defined(__APPLE__)
namespace zero::inline ZERO_NAMESPACE::detail {

/// The sanitizer's function of this name, or null: its linker wants weak names to be defined.
[[nodiscard]] inline auto sanitizer(char const* name) noexcept {
  return reinterpret_cast<void (*)(void const volatile*, std::size_t)>(::dlsym(RTLD_DEFAULT, name));
}

/// From now on an access is an error that the sanitizer reports.
inline void poison(void const* memory, std::size_t bytes) noexcept {
  static auto const call = sanitizer("__asan_poison_memory_region");
  if (call != nullptr) call(memory, bytes);
}

/// The bytes may be touched again.
inline void unpoison(void const* memory, std::size_t bytes) noexcept {
  static auto const call = sanitizer("__asan_unpoison_memory_region");
  if (call != nullptr) call(memory, bytes);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
#else
// Weak: null in a program without the sanitizer.
extern "C" {
/// The sanitizer's: an access is an error from now on.
__attribute__((weak)) void __asan_poison_memory_region(void const volatile* memory,
                                                       std::size_t bytes);
/// The sanitizer's: an access is none.
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile* memory,
                                                         std::size_t bytes);
}

namespace zero::inline ZERO_NAMESPACE::detail {

/// From now on an access is an error that the sanitizer reports.
inline void poison(void const* memory, std::size_t bytes) noexcept {
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(memory, bytes);
}

/// The bytes may be touched again.
inline void unpoison(void const* memory, std::size_t bytes) noexcept {
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(memory, bytes);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
#endif
