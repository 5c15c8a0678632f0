/// @file
/// Zeroes, past the cache where there are many.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/copy.hpp"

#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// Zeroes whole cache lines of a line-aligned destination past the cache.
inline void clear_lines(std::byte* to, std::size_t lines) noexcept {
#if defined(__SSE2__)
  __m128i const zero = _mm_setzero_si128();
  for (std::size_t i = 0; i < lines; ++i, to += line_bytes) {
    auto* const line = reinterpret_cast<__m128i*>(to);
    _mm_stream_si128(line, zero);
    _mm_stream_si128(line + 1, zero);
    _mm_stream_si128(line + 2, zero);
    _mm_stream_si128(line + 3, zero);
  }
#else
  std::memset(to, 0, lines * line_bytes);
#endif
}

}  // namespace detail

/// Sets `bytes` bytes to zero.
///
/// memset reads every line before it overwrites it; from `streaming_bytes` on that is not done.
/// @par Cost  writes `bytes` once; allocates nothing
inline void clear(void* memory, std::size_t bytes, Store store = Store::automatic) noexcept {
  if (bytes == 0) return;
  auto* const target = static_cast<std::byte*>(memory);
  std::size_t const head = detail::bytes_to_line(target);
  if (!is_streaming(store, bytes) || bytes < head + detail::line_bytes) {
    std::memset(target, 0, bytes);
    return;
  }
  std::memset(target, 0, head);
  std::size_t const lines = (bytes - head) / detail::line_bytes;
  detail::clear_lines(target + head, lines);
  std::size_t const done = head + lines * detail::line_bytes;
  std::memset(target + done, 0, bytes - done);
  publish_streaming_stores();
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
