/// @file
/// Neighbouring elements that are loaded and stored in one access.
#pragma once

#include "zero/base/config.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace zero::inline ZERO_NAMESPACE::device {

/// Bytes of the widest access a device thread has.
inline constexpr std::size_t access_bytes = 16;

/// `N` elements that begin at a multiple of their bytes.
template <class T, std::size_t N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];  ///< in the order of their addresses
};

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

/// Stores a vector to `to[at]` and what follows, in one access.
template <std::size_t N, class T>
ZERO_HOST_DEVICE void store(T* to, std::size_t at, Vector<T, N> const& vector) noexcept {
#if defined(__CUDA_ARCH__)
  // The compiler takes an assignment apart, and does not always put it together again.
  using Packet = typename detail::Packet<sizeof(vector)>::Type;
  Packet packet;
  memcpy(&packet, &vector, sizeof(packet));
  __stwb(reinterpret_cast<Packet*>(to + at), packet);
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

/// How a range of elements is cut: elements one by one up to the first aligned vector, whole
/// vectors, and the elements after the last of them.
struct Cut {
  std::size_t head = 0;     ///< elements before the first vector
  std::size_t vectors = 0;  ///< whole vectors
  std::uint32_t apart = 0;  ///< bit i: the i-th array is not aligned at these vectors
};

/// Finds where arrays of one index range can be accessed by vectors of `width` elements, 16 at the
/// most: where the first of them is aligned, or most of them. Arrays that are not aligned there are
/// noted.
class Cutter {
 public:
  /// For vectors of `width` elements.
  constexpr explicit Cutter(std::size_t width) noexcept : width_(width) {}

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
    if (head != head_) apart_ |= bit;
    first_ = false;
    ++aligned_[head];
    return *this;
  }

  /// The cut of `count` elements of all arrays met.
  [[nodiscard]] constexpr Cut cut(std::size_t count) const noexcept {
    if (head_ >= count) return {};
    return {.head = head_, .vectors = (count - head_) / width_, .apart = apart_};
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
  std::uint32_t bit_ = 1;
  std::uint32_t apart_ = 0;
  bool first_ = true;
  std::uint32_t aligned_[access_bytes] = {};  ///< by head: how many arrays are aligned behind it
};

}  // namespace zero::inline ZERO_NAMESPACE::device
