/// @file
/// Byte copies that keep large results out of the cache.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/kernel/cache_prefetch.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace zero::inline ZERO_NAMESPACE::kernel {

/// How a kernel writes its result.
enum class Store : std::uint8_t {
  automatic,  ///< streaming from `streaming_bytes` on, else cached
  cached,     ///< through the cache: best while the reader still finds the result there
  streaming,  ///< past the cache: saves reading the destination's lines before overwriting them
};

/// Size of a result from which streaming stores are used. Measured on two cores with 2 MiB of L2
/// each: by themselves they win from 1 MiB on, by up to 1.9; if the result is read at once, cached
/// stores win below 4 MiB, by up to 2.5, since the reader finds it in the cache.
inline constexpr std::size_t streaming_bytes = 4 * MiB;

/// True if a result of `bytes` is to be written with streaming stores.
[[nodiscard]] constexpr bool is_streaming(Store store, std::size_t bytes) noexcept {
  return store == Store::streaming || (store == Store::automatic && bytes >= streaming_bytes);
}

/// Makes streaming stores visible to whoever synchronises with this thread later. Streaming stores
/// are weakly ordered: a mutex alone does not publish them.
inline void publish_streaming_stores() noexcept {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

namespace detail {

/// Alignment from which a destination is written in whole cache lines.
inline constexpr std::size_t line_bytes = 64;

[[nodiscard]] inline std::size_t bytes_to_line(void const* address) noexcept {
  auto const value = reinterpret_cast<std::uintptr_t>(address);
  return (line_bytes - value % line_bytes) % line_bytes;
}

/// Writes `lines` cache lines to a line-aligned destination past the cache, asking for memory so
/// many bytes ahead of its reads.
template <std::size_t Ahead>
ZERO_ALWAYS_INLINE void stream_lines(void* to, void const* from, std::size_t lines) noexcept {
#if defined(__SSE2__)
  auto* target = static_cast<__m128i*>(to);
  auto const* source = static_cast<__m128i const*>(from);
  for (std::size_t i = 0; i < lines; ++i) {
    if constexpr (Ahead != 0) prefetch<Ahead>(source);
    __m128i const a = _mm_loadu_si128(source);
    __m128i const b = _mm_loadu_si128(source + 1);
    __m128i const c = _mm_loadu_si128(source + 2);
    __m128i const d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
    source += 4;
    target += 4;
  }
#else
  std::memcpy(to, from, lines * line_bytes);
#endif
}

}  // namespace detail

/// Copies bytes past the cache; `publish_streaming_stores` must follow before others read them.
///
/// Out of line: its size does not pay for small copies, and inlined into one GCC 12 warns of large
/// copies that cannot happen there.
ZERO_APART __attribute__((noinline)) void copy_streaming(void* to,
                                                         void const* from,
                                                         std::size_t bytes) noexcept;

namespace detail {

/// Copies bytes through the cache.
///
/// From 2 KiB on glibc uses the processor's string instruction, which on AMD's takes 20 times as
/// long where the destination lies less than 32 bytes behind the source within a page (glibc bug
/// 30994, mended in 2.39): there it gets pieces that it copies otherwise.
ZERO_APART void copy_cached(std::byte* to, std::byte const* from, std::size_t bytes) noexcept;

}  // namespace detail

/// Copies bytes between buffers that do not overlap; nothing to do if they are the same.
///
/// @par Cost  reads and writes `bytes` once; allocates nothing
ZERO_APART void copy(void* to,
                     void const* from,
                     std::size_t bytes,
                     Store store = Store::automatic) noexcept;

#if ZERO_BODIES

ZERO_BODY void copy_streaming(void* to, void const* from, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  auto* target = static_cast<std::byte*>(to);
  auto const* source = static_cast<std::byte const*>(from);
  std::size_t const head = detail::bytes_to_line(target);
  if (bytes <= head + detail::line_bytes) {
    std::memcpy(target, source, bytes);
    return;
  }
  std::memcpy(target, source, head);
  std::size_t const lines = (bytes - head) / detail::line_bytes;
  detail::stream_lines<1024>(target + head, source + head, lines);
  std::size_t const done = head + lines * detail::line_bytes;
  std::memcpy(target + done, source + done, bytes - done);
}

ZERO_BODY void detail::copy_cached(std::byte* to,
                                   std::byte const* from,
                                   std::size_t bytes) noexcept {
  constexpr std::size_t page = 4096;
  std::size_t piece = 1024;
  asm("" : "+r"(piece));  // a size that compilers know they copy by that instruction themselves
  std::size_t const behind =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % page;
  if (behind > 0 && behind < 32) {
    for (; bytes > piece; bytes -= piece, to += piece, from += piece) std::memcpy(to, from, piece);
  }
  std::memcpy(to, from, bytes);
}

ZERO_BODY void copy(void* to, void const* from, std::size_t bytes, Store store) noexcept {
  if (bytes == 0 || to == from) return;
  if (!is_streaming(store, bytes)) {
    detail::copy_cached(static_cast<std::byte*>(to), static_cast<std::byte const*>(from), bytes);
    return;
  }
  copy_streaming(to, from, bytes);
  publish_streaming_stores();
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::kernel
