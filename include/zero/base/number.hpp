/// @file
/// Whether a value is a number that makes sense.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <cstdint>
#include <initializer_list>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The largest number of a range without an end.
inline constexpr double any_number = __DBL_MAX__;

/// The bits of a number, but for its sign. Values are judged by them since `-ffast-math` lets
/// compilers take every value for a finite one, and answer without looking.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint64_t unsigned_bits(double value) noexcept {
  return __builtin_bit_cast(std::uint64_t, value) & ~std::uint64_t{0} >> 1;
}
/// Neither infinite nor what is not a number.
[[nodiscard]] ZERO_HOST_DEVICE constexpr bool is_finite(double value) noexcept {
  return unsigned_bits(value) < std::uint64_t{0x7ff} << 52;
}
[[nodiscard]] ZERO_HOST_DEVICE constexpr bool is_nan(double value) noexcept {
  return unsigned_bits(value) > std::uint64_t{0x7ff} << 52;
}

/// A time in seconds after which somebody is given up on; the limit keeps points in time
/// representable.
[[nodiscard]] constexpr bool is_deadline(double seconds) noexcept {
  return is_finite(seconds) && seconds > 0 && seconds < 1e9;
}

/// @throws Error (invalid_argument), naming `what`, unless it is finite and in [low, below)
ZERO_APART ZERO_COLD void require_number(std::initializer_list<Message::Piece> what,
                                         double value,
                                         double low,
                                         double below = any_number);

#if ZERO_BODIES

ZERO_BODY void require_number(std::initializer_list<Message::Piece> what,
                              double value,
                              double low,
                              double below) {
  if (is_finite(value) && value >= low && value < below) return;
  Message const range = below < any_number  ? Message{"at least ", low, " and less than ", below}
                        : low > -any_number ? Message{"finite and at least ", low}
                                            : Message{"finite"};
  fail(ErrorKind::invalid_argument, {Message(what), " is ", value, ", but must be ", range});
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
