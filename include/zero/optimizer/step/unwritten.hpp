/// @file
/// Finds gradients that a trainer was to overwrite and did not.
#pragma once

#include "zero/base/config.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/held/host_chunk.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <cstddef>
#include <cstring>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Two bytes that, repeated, are no number in fp32, bf16 or fp16, and that no arithmetic gives.
inline constexpr unsigned char unwritten_bytes[] = {0xa5, 0x7f};

/// Fills gradients with the pattern.
ZERO_APART ZERO_COLD void mark_unwritten(AnySpace const& space, Array gradients, std::size_t count);

/// The first element that still has the pattern, or their number. Blocks.
ZERO_APART [[nodiscard]] ZERO_COLD std::size_t first_unwritten(AnySpace const& space,
                                                               Array gradients,
                                                               std::size_t count);

#if ZERO_BODIES

ZERO_BODY void mark_unwritten(AnySpace const& space, Array gradients, std::size_t count) {
  HostChunk chunk(space.host_accessible());
  std::size_t const width = size_of(gradients.dtype);
  for (std::size_t done = 0; done < count;) {
    std::span<std::byte> const marks = chunk.first(count - done, width);
    for (std::size_t i = 0; i < marks.size(); ++i) marks[i] = std::byte{unwritten_bytes[i % 2]};
    space.upload(gradients.at(done), marks.data(), marks.size());
    done += marks.size() / width;
  }
}

ZERO_BODY std::size_t first_unwritten(AnySpace const& space, Array gradients, std::size_t count) {
  HostChunk chunk(space.host_accessible());
  std::size_t const width = size_of(gradients.dtype);
  unsigned char mark[sizeof(double)];
  for (std::size_t i = 0; i < sizeof(mark); ++i) mark[i] = unwritten_bytes[i % 2];
  for (std::size_t done = 0; done < count;) {
    std::span<std::byte> const now = chunk.first(count - done, width);
    space.download(now.data(), gradients.at(done), now.size());
    for (std::size_t i = 0; i < now.size() / width; ++i) {
      if (std::memcmp(now.data() + i * width, mark, width) == 0) return done + i;
    }
    done += now.size() / width;
  }
  return count;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
