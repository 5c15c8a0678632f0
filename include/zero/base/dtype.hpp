/// @file
/// Element types that travel and are stored.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// Run-time name of an element type, as communicators and fingerprints see it.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

/// What model files call the elements of a tensor that is opaque here: a type of the safetensors
/// format, such as "F8_E4M3".
class FileDType {
 public:
  /// None: what is held says what it is called.
  constexpr FileDType() noexcept = default;
  /// @param name  in the format's spelling
  template <std::convertible_to<std::string_view> Name>
  constexpr FileDType(Name const& name) noexcept {
    while (known() && all[number_].name != std::string_view(name)) ++number_;
  }

  /// Is it none, or one of the format's?
  [[nodiscard]] constexpr bool known() const noexcept { return number_ < all.size(); }
  /// As the format spells it; empty for none.
  [[nodiscard]] constexpr std::string_view name() const noexcept {
    return known() ? all[number_].name : std::string_view();
  }
  /// Of one element; 0 for none.
  [[nodiscard]] constexpr std::size_t bytes() const noexcept {
    return known() ? all[number_].bytes : 0;
  }
  /// The same name.
  friend constexpr bool operator==(FileDType const&, FileDType const&) noexcept = default;

 private:
  struct Spelling {
    std::string_view name;
    std::size_t bytes;
  };
  static constexpr std::array<Spelling, 12> all{{{"", 0},
                                                 {"U8", 1},
                                                 {"I8", 1},
                                                 {"BOOL", 1},
                                                 {"F8_E4M3", 1},
                                                 {"F8_E5M2", 1},
                                                 {"I16", 2},
                                                 {"U16", 2},
                                                 {"I32", 4},
                                                 {"U32", 4},
                                                 {"I64", 8},
                                                 {"U64", 8}}};

  std::uint8_t number_ = 0;
};

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE {

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(DType type) noexcept {
  switch (type) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::f64:
    case DType::i64: return 8;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

/// True for types whose sums are the same in any order.
[[nodiscard]] constexpr bool is_integral(DType type) noexcept {
  return type == DType::i32 || type == DType::i64 || type == DType::u8;
}

/// The largest finite number of a type of floating point.
[[nodiscard]] constexpr double largest(DType type) noexcept {
  return type == DType::f16    ? 65504.
         : type == DType::bf16 ? 0x1.FEp127
         : type == DType::f32  ? 0x1.FFFFFEp127
                               : __DBL_MAX__;
}

/// What messages and plans call the type.
[[nodiscard]] constexpr std::string_view name(DType type) noexcept {
  switch (type) {
    case DType::f32: return "fp32";
    case DType::f64: return "fp64";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::u8: return "uint8";
  }
  return "unknown";
}

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<bf16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct DTypeOf<fp16> : std::integral_constant<DType, DType::f16> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::u8> {};
}  // namespace detail

/// A type that can be an element of a collective.
template <class T>
concept Element = requires {
  detail::DTypeOf<T>::value;
};

/// A floating-point element: what parameters, gradients and states are made of.
template <class T>
concept FloatElement = Element<T> && !std::is_integral_v<T> && requires(T x, float y) {
  static_cast<float>(x);
  static_cast<T>(y);
};

/// The run-time name of an element type.
template <Element T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

}  // namespace zero::inline ZERO_NAMESPACE
