/// @file
/// The update station where masters are remainders beside parameters.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/half_away.hpp"
#include "zero/kernel/remainder.hpp"
#include "zero/kernel/update.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// Masters that are put together at a time: few enough for the first cache, together with what else
/// an update reads.
inline constexpr std::size_t joined_at_once = 1024;

}  // namespace detail

/// As `update`, where `arrays.master` has what the parameters lack of their masters: for every i
///
///     master = what parameter[i] and master[i] are the parts of
///     ... as `update` does ...
///     parameter[i], master[i] = the parts of master
///
/// An element's bits are those of masters in fp32 whose parameters are rounded half away from zero.
/// @par Cost  one pass: with AdamW 24 bytes per element, where `update` has 28
template <Isa I = native, Rule R, class G, class S, std::size_t K>
void update(R const& rule,
            BasicStepScalars<RealOf<float, G, S>> const& scalars,
            double gradient_scale,
            UpdateArrays<RestOfMaster, HalfAwayBf16, G, S, K> const& arrays) noexcept {
  alignas(64) float masters[detail::joined_at_once];
  for (std::size_t done = 0; done < arrays.count;) {
    std::size_t const count = (std::min)(detail::joined_at_once, arrays.count - done);
    bf16* const parameters = &arrays.parameter[done].value;
    std::uint16_t* const rests = &arrays.master[done].bits;
    join_masters<I>(static_cast<float*>(masters), parameters, rests, count);
    UpdateArrays<float, float, G, S, K> chunk;
    chunk.master = static_cast<float*>(masters);
    chunk.gradient = arrays.gradient + done;
    for (std::size_t k = 0; k != K; ++k) chunk.state[k] = arrays.state[k] + done;
    chunk.count = count;
    update<I>(rule, scalars, gradient_scale, chunk);
    split_masters<I>(parameters, rests, static_cast<float const*>(masters), count);
    done += count;
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
