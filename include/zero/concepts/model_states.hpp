/// @file
/// The three numbers of the paper's memory model, derived from the types that a trainer picks.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/concepts/rule.hpp"

#include <cstdint>

namespace zero::inline ZERO_NAMESPACE {

/// Bytes that one trained element costs in each model state. The defaults are the paper's example,
/// mixed-precision Adam: 2 + 2 + (4 master + 4 momentum + 4 variance).
/// @par Source  ZeRO §3.1
struct ModelStates {
  std::uint64_t parameter = 2;   ///< as forward and backward read it
  std::uint64_t gradient = 2;    ///< as it is kept after its reduction
  std::uint64_t optimizer = 12;  ///< master weights, where held apart, and all optimizer states
  friend constexpr bool operator==(ModelStates const&, ModelStates const&) = default;
};

/// Bytes of one trained element under a precision and a rule: the parameter as the model reads it,
/// the gradient as it travels, and the paper's K, which is a separate master, if one is held, and
/// the rule's states. `Mixed<bf16>` with `AdamW` gives 2, 2 and 12; `Fp32` with `AdamW` 4, 4 and 8.
///
/// With AccumulateShard the owned gradients are sums in the `Accumulate` dtype, so that `gradient`
/// is `sizeof(Accumulate)` there instead.
/// @par Source  ZeRO §3.1
template <Precision P, Rule R>
inline constexpr ModelStates model_states{
    .parameter = sizeof(typename P::Parameter),
    .gradient = sizeof(typename P::Wire),
    .optimizer = master_bytes<P> + R::states.size() * sizeof(typename P::State)};

}  // namespace zero::inline ZERO_NAMESPACE
