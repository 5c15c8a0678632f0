/// @file
/// Root codes as elements that an update rounds stochastically.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/root_code.hpp"
#include "zero/kernel/root_groups.hpp"
#include "zero/layout/storage_types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Root codes of one kind, whatever their type.
template <RootCode Code>
inline constexpr CodeForm root_form{
    .decode =
        [](void* values, void const* codes, void const* scales, std::size_t count) {
          decode_roots(static_cast<float*>(values),
                       static_cast<Code const*>(codes),
                       static_cast<std::uint8_t const*>(scales),
                       count);
        },
    .encode =
        [](void* codes, void* scales, void const* values, std::size_t count) {
          encode_roots(static_cast<Code*>(codes),
                       static_cast<std::uint8_t*>(scales),
                       static_cast<float const*>(values),
                       count);
        },
    .first_bad =
        [](void const* codes, void const* scales, std::size_t count) {
          return first_that_is_no_root(
              static_cast<Code const*>(codes), static_cast<std::uint8_t const*>(scales), count);
        }};

/// Those of a coding.
[[nodiscard]] constexpr CodeForm const& code_form(Coding coding) noexcept {
  return coding == Coding::root ? root_form<std::int8_t> : root_form<std::uint8_t>;
}

/// One state of a rule whose states are codes: an element of any of its arrays, which are those of
/// a `CodedUpdateArrays`.
/// @tparam has_sign  of the numbers of each array
template <bool... has_sign>
struct RootState {
  using Random = std::uint16_t;  ///< random bits for each element
  /// What the elements of state k are the bits of.
  template <std::size_t k>
  using Code = std::conditional_t<std::array<bool, sizeof...(has_sign)>{has_sign...}[k],
                                  std::int8_t,
                                  std::uint8_t>;

  std::uint8_t code;  ///< its bits

  /// How the codes of a coding are held, for what is not an update.
  static constexpr CodeForm const& form(Coding coding) noexcept { return code_form(coding); }

  /// As `CodedElement` says.
  template <Isa I, std::size_t number, class Arrays>
  static void read(float* out, Arrays const& from) noexcept {
    constexpr std::size_t k = number - 1;
    decode_roots<I>(out, codes<k>(from), from.scales[k], from.count);
  }
  /// As `CodedElement` says.
  template <Isa I, std::size_t number, class Arrays>
  static void write(Arrays const& to, float const* in, Random const* random) noexcept {
    constexpr std::size_t k = number - 1;
    encode_roots<I>(codes<k>(to), to.scales[k], in, to.count, random);
  }

 private:
  template <std::size_t k, class Arrays>
  [[nodiscard]] static auto* codes(Arrays const& arrays) noexcept {
    using Element = Code<k>;
    return reinterpret_cast<Element*>(&arrays.state[k]->code);
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::kernel
