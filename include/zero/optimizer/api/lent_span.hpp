/// @file
/// A trainer's memory with its type, where tensors are of several types.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

/// One tensor's memory that a trainer lends, of any type: what a span of its elements becomes.
/// @tparam Void  `void`, or `void const` where it is only read
template <class Void>
class BasicLentSpan {
 public:
  /// Nothing is lent.
  BasicLentSpan() = default;
  /// @param elements  all of a tensor's, which stay where they are
  template <class T>
    requires Element<std::remove_const_t<T>> && std::convertible_to<T*, Void*> BasicLentSpan(
        std::span<T> elements)
  noexcept
      : data_(elements.data()), size_(elements.size()), dtype_(dtype_of<std::remove_const_t<T>>) {}

  /// For a trainer's program that knows the type of what lies at `data` only when it runs.
  BasicLentSpan(Void* data, std::size_t size, DType dtype) noexcept
      : data_(data), size_(size), dtype_(dtype) {}

  /// The first element.
  [[nodiscard]] Void* data() const noexcept { return data_; }
  /// Elements.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Their type.
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }

 private:
  Void* data_ = nullptr;
  std::size_t size_ = 0;
  DType dtype_ = DType::f32;
};

/// Memory that is written.
using LentSpan = BasicLentSpan<void>;
/// Memory that is only read.
using LentConstSpan = BasicLentSpan<void const>;

}  // namespace zero::inline ZERO_NAMESPACE
