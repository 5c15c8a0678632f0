/// @file
/// Neighbouring elements that are loaded and stored in one access.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::device {

/// Bytes of the widest access a device thread has.
inline constexpr std::size_t access_bytes = 16;

/// Bytes that a warp's access should begin at a multiple of. One that begins elsewhere touches a
/// line more: five instead of four, which took a fifth of an H100's speed.
inline constexpr std::size_t line_bytes = 128;

/// `N` elements that begin at a multiple of their bytes.
template <class T, std::size_t N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];  ///< in the order of their addresses
};

/// A 16-bit element as a float. A NaN need not keep its bits: that leaves one instruction.
/// @param bits  its representation
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE float widen_half(std::uint16_t bits) noexcept {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, fp16>) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
#endif
  if constexpr (std::is_same_v<T, bf16>) {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  } else {
    return static_cast<float>(std::bit_cast<T>(bits));
  }
}

/// The vector that begins at `from[at]`, in one access.
template <std::size_t N, class T>
[[nodiscard]] ZERO_HOST_DEVICE Vector<T, N> load(T const* from, std::size_t at) noexcept {
  return *reinterpret_cast<Vector<T, N> const*>(from + at);
}

/// The same, element by element where the array is not aligned there.
template <std::size_t N, class T>
[[nodiscard]] ZERO_HOST_DEVICE Vector<T, N> load(T const* from,
                                                 std::size_t at,
                                                 bool aligned) noexcept {
  if (aligned) return load<N>(from, at);
  Vector<T, N> single;
  for (std::size_t i = 0; i < N; ++i) single.values[i] = from[at + i];
  return single;
}

#if defined(__CUDA_ARCH__)
namespace detail {

/// What a device can store at once.
template <std::size_t bytes>
struct Packet;
template <>
struct Packet<1> {
  using Type = unsigned char;
};
template <>
struct Packet<2> {
  using Type = unsigned short;
};
template <>
struct Packet<4> {
  using Type = unsigned;
};
template <>
struct Packet<8> {
  using Type = uint2;
};
template <>
struct Packet<16> {
  using Type = uint4;
};

}  // namespace detail
#endif

/// Stores a vector to `to[at]` and what follows, in one access, or in two if it is so wide.
template <std::size_t N, class T>
ZERO_HOST_DEVICE void store(T* to, std::size_t at, Vector<T, N> const& vector) noexcept {
#if defined(__CUDA_ARCH__)
  // The compiler takes an assignment apart, and does not always put it together again.
  constexpr std::size_t bytes = (std::min)(sizeof(vector), access_bytes);
  using Packet = typename detail::Packet<bytes>::Type;
  Packet packets[sizeof(vector) / bytes];
  memcpy(packets, &vector, sizeof(vector));
  ZERO_UNROLL(2)
  for (std::size_t i = 0; i < sizeof(vector) / bytes; ++i) {
    __stwb(reinterpret_cast<Packet*>(to + at) + i, packets[i]);
  }
#else
  *reinterpret_cast<Vector<T, N>*>(to + at) = vector;
#endif
}

/// The same, element by element where the array is not aligned there.
template <std::size_t N, class T>
ZERO_HOST_DEVICE void store(T* to,
                            std::size_t at,
                            bool aligned,
                            Vector<T, N> const& vector) noexcept {
  if (aligned) return store<N>(to, at, vector);
  for (std::size_t i = 0; i < N; ++i) to[at + i] = vector.values[i];
}

/// The same to memory that the threads of a block share.
template <std::size_t N, class T>
ZERO_HOST_DEVICE void share(T* to, std::size_t at, Vector<T, N> const& vector) noexcept {
#if defined(__CUDA_ARCH__)
  using Packet = typename detail::Packet<sizeof(vector)>::Type;
  Packet packet;
  memcpy(&packet, &vector, sizeof(packet));
  *reinterpret_cast<Packet*>(to + at) = packet;
#else
  *reinterpret_cast<Vector<T, N>*>(to + at) = vector;
#endif
}

/// How a range of elements is cut: elements one by one up to the first aligned vector, whole
/// vectors, and the elements after the last of them. The others are fewer than a block's threads.
struct Cut {
  std::size_t head = 0;     ///< elements before the first vector
  std::size_t vectors = 0;  ///< whole vectors
  std::uint32_t apart = 0;  ///< bit i: the i-th array is not aligned at these vectors

  friend bool operator==(Cut const&, Cut const&) = default;
};

/// Finds where arrays of one index range can be accessed by vectors of `width` elements, 16 at the
/// most: where the first of them is aligned, or most of them. Arrays that are not aligned there are
/// noted. Vectors begin where the first that is aligned begins a line, if there are so many
/// elements, and so do the others if they are as far from one.
class Cutter {
 public:
  /// For vectors of `width` elements.
  constexpr explicit Cutter(std::size_t width) noexcept : width_(width) {}
  /// For vectors that begin at a given element, whichever arrays are aligned there.
  /// @param width  as of the other
  /// @param head   elements before the first vector, less than `width`
  constexpr Cutter(std::size_t width, std::size_t head) noexcept
      : width_(width), head_(head), first_(false) {}

  /// Takes an array into account; null is none, but is counted.
  template <class T>
  Cutter& meet(T const* array) noexcept {
    std::uint32_t const bit = bit_;
    if (bit_ << 1 != 0) bit_ <<= 1;  // the last bit stands for all that follow
    if (array == nullptr) return *this;
    auto const address = reinterpret_cast<std::uintptr_t>(array);
    auto const past = static_cast<std::size_t>(address / sizeof(T) % width_);
    std::size_t const head = (width_ - past) % width_;
    if (first_) head_ = head;
    first_ = false;
    ++aligned_[head];
    if (head != head_) {
      apart_ |= bit;
      return *this;
    }
    // Lines have more of narrow elements: those begin one in one of several places of wider ones.
    constexpr std::size_t line = line_bytes / sizeof(T);
    std::size_t const begin = (line - static_cast<std::size_t>(address / sizeof(T) % line)) % line;
    if (line > line_ && (line_ == 0 || begin % line_ == line_begin_)) {
      line_ = line;
      line_begin_ = begin;
    }
    return *this;
  }

  /// The cut of `count` elements of all arrays met.
  [[nodiscard]] constexpr Cut cut(std::size_t count) const noexcept {
    if (head_ >= count) return {};
    std::size_t const head = line_ != 0 && line_begin_ < count ? line_begin_ : head_;
    return {.head = head, .vectors = (count - head) / width_, .apart = apart_};
  }
  /// One that has met nothing yet, for vectors that begin where most arrays met here are aligned.
  [[nodiscard]] constexpr Cutter where_most() const noexcept {
    Cutter result(width_);
    auto const* const most = std::max_element(std::begin(aligned_), std::end(aligned_));
    result.head_ = static_cast<std::size_t>(most - std::begin(aligned_));
    result.first_ = false;
    return result;
  }

 private:
  std::size_t width_;
  std::size_t head_ = 0;
  std::size_t line_ = 0;        ///< elements of a line of the narrowest array; 0: none yet
  std::size_t line_begin_ = 0;  ///< elements before the first line
  std::uint32_t bit_ = 1;
  std::uint32_t apart_ = 0;
  bool first_ = true;
  std::uint32_t aligned_[access_bytes] = {};  ///< by head: how many arrays are aligned behind it
};

}  // namespace zero::inline ZERO_NAMESPACE::device
