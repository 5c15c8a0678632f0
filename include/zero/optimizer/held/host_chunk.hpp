/// @file
/// The host's end of what passes between a trainer and a space.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Memory of the host for a few elements at a time, on their way to or from a space.
///
/// Where the host reaches the space's memory a chunk is small and lies on the stack. Elsewhere each
/// one costs a round trip for which the host waits, so chunks are large and lie on the heap, as
/// transient memory that no plan lists.
class HostChunk {
 public:
  explicit HostChunk(bool host_accessible)
      : capacity_(host_accessible ? small : std::size_t{1} << 18) {}
  HostChunk(HostChunk const&) = delete;
  HostChunk& operator=(HostChunk const&) = delete;

  /// The bytes of the chunk's first elements, as many of `wanted` as there is room for.
  /// @param width  of an element
  ZERO_APART [[nodiscard]] std::span<std::byte> first(std::uint64_t wanted, std::size_t width) {
    // Of bytes there is room for more than of numbers.
    std::size_t const most = width == 1 ? capacity_ * sizeof(double) : capacity_;
    std::size_t const bytes = width * (wanted < most ? static_cast<std::size_t>(wanted) : most);
    if (capacity_ == small) return {here_, bytes};
    if (memory_.size() < bytes) memory_.resize(bytes);
    return {memory_.data(), bytes};
  }

 private:
  static constexpr std::size_t small = 1024;

  std::size_t capacity_;
  alignas(double) std::byte here_[small * sizeof(double)];
  std::vector<std::byte> memory_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
