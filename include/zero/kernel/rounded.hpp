/// @file
/// Whether parameters are their master weights, rounded.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/number.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/kernel/element_hash.hpp"
#include "zero/kernel/rounding.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Has a parameter the bits of its master, rounded once to nearest even? One NaN is as good as
/// another: which one it becomes is not the same on a device.
template <class Parameter, class Master>
[[nodiscard]] ZERO_HOST_DEVICE bool is_rounded(Parameter parameter, Master master) noexcept {
  auto const rounded = detail::convert<Parameter>(master);
  if (detail::bits_of(rounded) == detail::bits_of(parameter)) return true;
  return zero::detail::is_nan(detail::convert<double>(rounded)) &&
         zero::detail::is_nan(detail::convert<double>(parameter));
}

/// Where parameter[i] is not master[i], rounded, for some i in [0, count): *first becomes place + i
/// for the least of them, unless it is less.
/// @par Cost  one pass
template <class Parameter, class Master>
void find_unrounded(std::uint64_t* first,
                    Parameter const* parameter,
                    Master const* master,
                    std::size_t count,
                    std::uint64_t place) noexcept {
  constexpr std::size_t block = 512;
  Parameter rounded[block];
  for (std::size_t begin = 0; begin < count; begin += block) {
    std::size_t const size = (std::min)(block, count - begin);
    convert(rounded, master + begin, size);
    if (std::memcmp(rounded, parameter + begin, size * sizeof(Parameter)) == 0) continue;
    for (std::size_t i = begin; i < begin + size; ++i) {
      if (is_rounded(parameter[i], master[i])) continue;
      *first = (std::min)(*first, place + i);
      return;
    }
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
