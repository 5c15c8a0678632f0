/// @file
/// Single precision throughout.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/precision.hpp"

#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Everything in fp32; the parameters are their own master weights.
struct Fp32 {
  static constexpr std::string_view name = "fp32";  ///< in fingerprints and reports
  using Parameter = float;                          ///< what forward and backward read
  using Wire = float;                               ///< gradients, held and sent
  using Accumulate = float;                         ///< sums over ranks and micro-steps
  using Master = float;                       ///< same as `Parameter`: no separate copy is held
  using State = float;                        ///< optimizer states
  static constexpr bool loss_scaled = false;  ///< fp32's range needs no loss scale
  friend constexpr bool operator==(Fp32 const&, Fp32 const&) = default;
};

static_assert(Precision<Fp32>);

}  // namespace zero::inline ZERO_NAMESPACE
