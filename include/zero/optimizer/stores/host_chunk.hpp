/// @file
/// The host's end of what passes between a trainer and a space.
#pragma once

#include "zero/base/config.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Memory of the host for a few elements at a time, on their way to or from a space.
///
/// Where the host reaches the space's memory a chunk is small and lies on the stack. Elsewhere each
/// one costs a round trip for which the host waits, so chunks are large and lie on the heap, as
/// transient memory that no plan lists.
template <class T, class Space>
class HostChunk {
 public:
  static constexpr std::size_t capacity =
      Space::host_accessible ? std::size_t{1024} : std::size_t{1} << 18;

  /// The chunk's first elements, as many of `wanted` as there is room for.
  [[nodiscard]] std::span<T> first(std::uint64_t wanted) {
    auto const size = wanted < capacity ? static_cast<std::size_t>(wanted) : capacity;
    if constexpr (!Space::host_accessible) {
      if (memory_.size() < size) memory_.resize(size);
    }
    return {memory_.data(), size};
  }

 private:
  std::conditional_t<Space::host_accessible, std::array<T, capacity>, std::vector<T>> memory_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
