/// @file
/// Ranges and places: what the layout hands out instead of numbers that others would add up.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace zero::inline ZERO_NAMESPACE {

class BucketSpan;
class Partition;

/// Consecutive elements of the logical space. A partition makes them, nobody else; there is no
/// arithmetic on them.
class Range {
 public:
  /// No elements.
  constexpr Range() noexcept = default;
  /// First element, in the logical space.
  [[nodiscard]] constexpr std::uint64_t first() const noexcept { return first_; }
  /// Elements.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return count_; }
  friend constexpr bool operator==(Range const&, Range const&) = default;

 private:
  friend BucketSpan;
  friend Partition;
  constexpr Range(std::uint64_t first, std::uint64_t count) noexcept
      : first_(first), count_(count) {}

  std::uint64_t first_ = 0;
  std::uint64_t count_ = 0;
};

/// Where something begins in an array that the layout describes: a padded full-size array, a rank's
/// share of one, a slot of a pool, one bucket, one tensor. Each function that returns a place says
/// of which. A partition makes them, nobody else; there is no arithmetic on them.
class Place {
 public:
  /// The beginning.
  constexpr Place() noexcept = default;
  /// The address of the place in an array.
  template <class T>
  [[nodiscard]] constexpr T* in(T* array) const noexcept {
    return array + offset_;
  }
  /// @overload
  template <class T>
  [[nodiscard]] constexpr T* in(std::span<T> array) const noexcept {
    return array.data() + offset_;
  }
  /// Elements before it: for people and files, which count.
  [[nodiscard]] constexpr std::uint64_t offset() const noexcept { return offset_; }
  friend constexpr bool operator==(Place const&, Place const&) = default;

 private:
  friend BucketSpan;
  friend Partition;
  constexpr explicit Place(std::uint64_t offset) noexcept : offset_(offset) {}

  std::uint64_t offset_ = 0;
};

/// A run of elements of one tensor within a range.
struct Segment {
  std::size_t tensor = 0;   ///< index into the described tensors
  Place in_tensor{};        ///< where the run begins in the tensor
  Place in_range{};         ///< where it begins in the range that was asked for
  std::uint64_t count = 0;  ///< elements of the run
};

}  // namespace zero::inline ZERO_NAMESPACE
