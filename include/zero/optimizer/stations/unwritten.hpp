/// @file
/// Finds gradients that a trainer was to overwrite and did not.
#pragma once

#include "zero/base/config.hpp"
#include "zero/optimizer/stores/host_chunk.hpp"

#include <cstddef>
#include <cstring>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Two bytes that, repeated, are no number in fp32, bf16 or fp16, and that no arithmetic gives.
inline constexpr unsigned char unwritten_bytes[] = {0xa5, 0x7f};

/// Fills gradients with the pattern.
template <class Space, class T>
ZERO_COLD void mark_unwritten(Space const& space, std::span<T> gradients) {
  HostChunk<T, Space> chunk;
  for (std::size_t done = 0; done < gradients.size();) {
    std::span<T> const marks = chunk.first(gradients.size() - done);
    auto* const bytes = reinterpret_cast<unsigned char*>(marks.data());
    for (std::size_t i = 0; i < marks.size_bytes(); ++i) bytes[i] = unwritten_bytes[i % 2];
    space.upload(gradients.data() + done, marks.data(), marks.size_bytes());
    done += marks.size();
  }
}

/// The first element that still has the pattern, or their number. Blocks.
template <class Space, class T>
[[nodiscard]] ZERO_COLD std::size_t first_unwritten(Space const& space, std::span<T> gradients) {
  unsigned char mark[sizeof(T)];
  for (std::size_t i = 0; i < sizeof(T); ++i) mark[i] = unwritten_bytes[i % 2];
  HostChunk<T, Space> chunk;
  for (std::size_t done = 0; done < gradients.size();) {
    std::span<T> const now = chunk.first(gradients.size() - done);
    space.download(now.data(), gradients.data() + done, now.size_bytes());
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (std::memcmp(now.data() + i, mark, sizeof(T)) == 0) return done + i;
    }
    done += now.size();
  }
  return gradients.size();
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
