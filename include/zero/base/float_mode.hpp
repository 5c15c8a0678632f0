/// @file
/// How a thread rounds, and whether it keeps subnormal numbers: what the processor adds and
/// multiplies by, and no compiler sees.
#pragma once

#include "zero/base/config.hpp"

#include <cfenv>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The floating-point mode of a thread, as far as results depend on it: no masks, no flags. Each
/// thread has its own and gets it from the one that starts it, and any library may change it.
struct FloatMode {
#if defined(__x86_64__)
  static constexpr std::uint64_t rounding = 3u << 13, results = 1u << 15, operands = 1u << 6;
  static constexpr char const* roundings[] = {"nearest", "down", "up", "zero"};
  static constexpr char const* flushes[] = {"FTZ", "DAZ"};
#elif defined(__aarch64__)
  static constexpr std::uint64_t rounding = 3u << 22, results = 1u << 24, operands = 1u << 19;
  static constexpr char const* roundings[] = {"nearest", "up", "down", "zero"};
  static constexpr char const* flushes[] = {"FZ", "FZ16"};
#else
  // Of another processor nothing is known.
  static constexpr std::uint64_t rounding = 1, results = 0, operands = 0;
  static constexpr char const* roundings[] = {"unknown", "unknown"};
  static constexpr char const* flushes[] = {"", ""};
#endif
  static constexpr std::uint64_t all = rounding | results | operands;

  std::uint64_t bits = 0;  ///< 0: rounds to nearest, and keeps subnormal numbers

  /// Of the calling thread.
  [[nodiscard]] static FloatMode now() noexcept { return {control() & all}; }

  /// Has the calling thread round to nearest and keep subnormal numbers.
  static void reset() noexcept {
    // Long doubles of x86 have a word of their own, which this sets as well.
    std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    auto const word = static_cast<std::uint32_t>(control() & ~all);
    asm volatile("ldmxcsr %0" : : "m"(word));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(control() & ~all));
#endif
  }

  /// At most 16 letters, such as "nearest, FTZ DAZ".
  [[nodiscard]] std::string text() const {
    constexpr std::uint64_t lowest = rounding & ~(rounding << 1);
    std::string text = roundings[(bits & rounding) / lowest];
    std::string_view between = ", ";
    for (int i = 0; i < 2; ++i) {
      if ((bits & (i == 0 ? results : operands)) == 0) continue;
      text += std::string(between) + flushes[i];
      between = " ";
    }
    return text;
  }

 private:
  /// The processor's own word.
  [[nodiscard]] static std::uint64_t control() noexcept {
#if defined(__x86_64__)
    std::uint32_t word = 0;
    asm volatile("stmxcsr %0" : "=m"(word));
    return word;
#elif defined(__aarch64__)
    std::uint64_t word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
#else
    return 0;
#endif
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
