/// @file
/// bf16 as an element that an update rounds stochastically.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/float16.hpp"
#include "zero/kernel/bf16_rounding.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/lanes.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

namespace kernel {

/// A bf16 that keeps what updates add to it, in the mean: each rounds it with random bits. To
/// nearest it would lose every change of less than half a unit, step after step.
struct StochasticBf16 {
  using Random = std::uint16_t;  ///< random bits for each element

  bf16 value;  ///< the same bits

  /// As `CodedElement` says.
  template <Isa I, std::size_t number, class Arrays>
  static void read(float* out, Arrays const& from) noexcept {
    bf16 const* const in = of<number>(from);
    in_lanes<I>(
        from.count, [&]<class L, std::size_t... K>(L, std::index_sequence<K...>, std::size_t i) {
          (L::store(L::load(&in[i + K * L::count].bits) << 16, out + i + K * L::count), ...);
        });
  }
  /// As `CodedElement` says.
  template <Isa I, std::size_t number, class Arrays>
  static void write(Arrays const& to, float const* in, Random const* random) noexcept {
    round_stochastically<I>(of<number>(to), in, random, to.count);
  }
  /// As `CodedElement` says.
  template <class Parameter>
  [[nodiscard]] ZERO_HOST_DEVICE float number(Parameter const&) const noexcept {
    return OneLane::of_bits(std::uint32_t{value.bits} << 16);
  }
  /// As `CodedElement` says.
  template <class Parameter>
  ZERO_HOST_DEVICE void assign(Parameter&, float number, std::uint32_t random) noexcept {
    value.bits = static_cast<std::uint16_t>(round_stochastically(OneLane::bits_of(number), random));
  }

 private:
  template <std::size_t number, class Arrays>
  [[nodiscard]] static bf16* of(Arrays const& arrays) noexcept {
    if constexpr (number == 0) {
      return &arrays.master->value;
    } else {
      return &arrays.state[number - 1]->value;
    }
  }
};
static_assert(sizeof(StochasticBf16) == sizeof(bf16));

}  // namespace kernel

namespace detail {
template <>
struct DTypeOf<kernel::StochasticBf16> : std::integral_constant<DType, DType::bf16> {};
}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
