/// @file
/// Elements whose type is known at run time.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/layout/range.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/optimizer/api/lent_span.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Bytes of so many elements of an array.
ZERO_APART [[nodiscard]] std::size_t array_bytes(DType dtype,
                                                 Coding coding,
                                                 std::uint64_t count) noexcept;

#if ZERO_BODIES

ZERO_BODY std::size_t array_bytes(DType dtype, Coding coding, std::uint64_t count) noexcept {
  return static_cast<std::size_t>(entries_of(coding, count)) * held_bytes(dtype, coding);
}

#endif

/// An array in the memory of a space. Nobody else multiplies by the width of an element.
struct Array {
  std::byte* first = nullptr;
  DType dtype = DType::f32;        ///< of the values
  Coding coding = Coding::values;  ///< of them

  /// Bytes of one element; of scales, of a group.
  [[nodiscard]] std::size_t width() const noexcept { return held_bytes(dtype, coding); }
  [[nodiscard]] std::size_t bytes(std::uint64_t count) const noexcept {
    return array_bytes(dtype, coding, count);
  }
  [[nodiscard]] std::byte* at(std::uint64_t element) const noexcept {
    return first + bytes(element);
  }
  [[nodiscard]] std::byte* at(Place place) const noexcept { return at(place.offset()); }
  [[nodiscard]] Array from(std::uint64_t element) const noexcept {
    return {at(element), dtype, coding};
  }
  [[nodiscard]] Array from(Place place) const noexcept { return from(place.offset()); }
};

/// Consecutive elements of a type that is known elsewhere; also those that are only read.
struct Elements {
  void* first = nullptr;
  std::size_t count = 0;

  Elements() = default;
  Elements(void* memory, std::size_t size) noexcept : first(memory), count(size) {}
  /// Whoever gets elements that are const only reads them.
  template <class T>
  explicit Elements(std::span<T> elements) noexcept
      : first(const_cast<std::remove_const_t<T>*>(elements.data())), count(elements.size()) {}

  /// With their type.
  template <class T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {static_cast<T*>(first), count};
  }
};

/// One tensor's elements as a trainer lends them.
struct LentElements : Elements {
  std::optional<DType> dtype{};  ///< that they are lent as, if that is known
};

/// A trainer's list of memory that it lends.
class LentSpans {
 public:
  template <class T>
  explicit LentSpans(std::span<std::span<T> const> spans) noexcept
      : LentSpans(spans, [](void const* list, std::size_t i) -> LentElements {
          auto const& elements = static_cast<std::span<T> const*>(list)[i];
          return {Elements(elements), dtype_of<std::remove_const_t<T>>};
        }) {}
  /// Each of its own type.
  template <class Void>
  explicit LentSpans(std::span<BasicLentSpan<Void> const> spans) noexcept
      : LentSpans(spans, [](void const* list, std::size_t i) -> LentElements {
          auto const& lent = static_cast<BasicLentSpan<Void> const*>(list)[i];
          return {Elements(const_cast<void*>(lent.data()), lent.size()), lent.dtype()};
        }) {}
  /// Of types that were lost before: those of the tensors.
  explicit LentSpans(std::span<Elements const> spans) noexcept
      : LentSpans(spans, [](void const* list, std::size_t i) -> LentElements {
          return {static_cast<Elements const*>(list)[i]};
        }) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] LentElements operator[](std::size_t i) const { return at_(spans_, i); }

 private:
  using At = LentElements (*)(void const* list, std::size_t i);
  template <class T>
  LentSpans(std::span<T const> spans, At at) noexcept
      : spans_(spans.data()), size_(spans.size()), at_(at) {}

  void const* spans_;
  std::size_t size_;
  At at_;
};

/// The same from any container of elements that are `Lent`, one of them.
template <class... Lent>
class LentList : public LentSpans {
 public:
  template <class List,
            class Item = std::remove_cvref_t<decltype(*std::data(std::declval<List&>()))>>
    requires(std::same_as<Item, Lent> || ...)
  LentList(List const& list)
  noexcept : LentSpans(std::span<Item const>(list)) {}
};

template <class E>
struct SpanElement {
  using Type = E;
};
template <class E>
struct SpanElement<std::span<E>> {
  using Type = E;
};
/// The type of the elements in a trainer's list of spans, or in one span.
template <class Lent>
using LentElement =
    typename SpanElement<std::remove_cvref_t<decltype(*std::data(std::declval<Lent&>()))>>::Type;
/// Are they of 16 bits, but of another type than the optimizer's? Memory of one type is not read as
/// another's.
template <class Lent, class Element>
concept OtherHalf = sizeof(Element) == 2 && sizeof(LentElement<Lent>) == 2 &&
                    !std::is_same_v<std::remove_cv_t<LentElement<Lent>>, Element>;

}  // namespace zero::inline ZERO_NAMESPACE::detail
