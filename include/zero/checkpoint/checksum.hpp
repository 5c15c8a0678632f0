/// @file
/// Checksums of what lies in files.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

/// The header alone: no library to link, and no symbol that somebody else's copy could have.
#define XXH_INLINE_ALL
#if !defined(XXH_NO_INLINE_HINTS)
/// GCC refuses at -Og to inline by force what xxHash 0.8.3 asks for. Leaving it to the compiler
/// costs nothing where it optimises: 20 GB/s either way at -O2, 57 at -O3 with AVX2.
#define XXH_NO_INLINE_HINTS 1
#endif
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// XXH3 of so many bytes, 64 bits: the same on every processor.
[[nodiscard]] inline std::uint64_t checksum(void const* bytes, std::size_t count) noexcept {
  return XXH3_64bits(bytes, count);
}

/// Digits of a checksum as text.
inline constexpr std::size_t checksum_digits = 16;

/// A checksum as text, highest digit first.
[[nodiscard]] inline std::string checksum_text(std::uint64_t sum) {
  std::string text(checksum_digits, '0');
  for (std::size_t i = checksum_digits; i-- > 0; sum >>= 4) text[i] = "0123456789abcdef"[sum & 15];
  return text;
}

namespace detail {

/// A checksum's text as a number.
/// @param file  what messages call the file that it stands in
/// @throws Error (data) for a text that is none
[[nodiscard]] inline std::uint64_t parse_checksum(std::string const& file, std::string_view text) {
  std::uint64_t sum = 0;
  bool sound = text.size() == checksum_digits;
  for (char const digit : text) {
    std::size_t const value = std::string_view("0123456789abcdef").find(digit);
    sound = sound && value != std::string_view::npos;
    sum = sum << 4 | value;
  }
  if (!sound)
    fail(ErrorKind::data, {"'", file, "' has a checksum that is not 16 hexadecimal digits"});
  return sum;
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
