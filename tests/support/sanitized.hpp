/// @file
/// How much a test does where a sanitizer watches it, which takes ten times as long and sees
/// nothing new in more ranks, buckets and steps of the same code.
#pragma once

#include <array>

namespace toy {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
inline constexpr std::array worlds{3};
#else
inline constexpr bool sanitized = false;
/// World sizes that divide what is there, and that do not.
inline constexpr std::array worlds{1, 2, 3, 5, 8};
#endif

}  // namespace toy
