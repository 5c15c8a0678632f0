/// @file
/// A translation unit's flags as words, for its program and for linkers.
#pragma once

#include "zero/base/config.hpp"

#include <string_view>

namespace zero::inline ZERO_SHARED_NAMESPACE {

// A unit that takes bodies from elsewhere refers to a function that only the unit with those bodies
// defines. Its name has the flags as words, which names of bodies have as a code, so that linkers
// say which flags they miss.
#if defined(ZERO_IMPLEMENTATION)
void ZERO_IMPLEMENTATION_NAME();
void ZERO_IMPLEMENTATION_NAME() {}
#elif defined(ZERO_DECLARATIONS)
void ZERO_IMPLEMENTATION_NAME();
ZERO_KEPT static void (*const required_implementation)() = &ZERO_IMPLEMENTATION_NAME;
#endif

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE {

/// The flags that this translation unit is compiled with, as far as names of symbols have them:
/// "avx2 fma no_rtti". Where one includes others, only it is listed, such as avx2 without avx. The
/// order is that of the bits of the code in symbols, most significant first. Empty if there are
/// none, and then symbols have no code. Not collective; costs nothing at run time.
[[nodiscard]] constexpr std::string_view flags() noexcept {
  constexpr std::string_view text = ZERO_FLAGS_AS_TEXT;
  return text.substr(text.empty() ? 0 : 1);
}

}  // namespace zero::inline ZERO_NAMESPACE
