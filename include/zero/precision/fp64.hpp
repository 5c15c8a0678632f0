/// @file
/// Double precision throughout.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/precision.hpp"

#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Everything in fp64; the parameters are their own master weights, and rules compute in double.
/// @par Source  what scientific codes, Armadillo's `mat` and Eigen's `MatrixXd` hold
struct Fp64 {
  static constexpr std::string_view name = "fp64";  ///< in fingerprints and reports
  using Parameter = double;                         ///< what forward and backward read
  using Wire = double;                              ///< gradients, held and sent
  using Accumulate = double;                        ///< sums over ranks and micro-steps
  using Master = double;                      ///< same as `Parameter`: no separate copy is held
  using State = double;                       ///< optimizer states
  static constexpr bool loss_scaled = false;  ///< no loss scale is needed
  friend constexpr bool operator==(Fp64 const&, Fp64 const&) = default;
};

static_assert(Precision<Fp64>);

}  // namespace zero::inline ZERO_NAMESPACE
