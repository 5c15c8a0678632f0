/// @file
/// Single precision throughout.
#pragma once

#include "zero/concepts/precision.hpp"

#include <string_view>

namespace zero::inline v0_1 {

/// Everything in fp32; the parameters are their own master weights.
struct Fp32 {
  static constexpr std::string_view name = "fp32";
  using Parameter = float;
  using Wire = float;
  using Accumulate = float;
  using Master = float;
  using State = float;
  static constexpr bool loss_scaled = false;
  friend constexpr bool operator==(Fp32 const&, Fp32 const&) = default;
};

static_assert(Precision<Fp32>);

}  // namespace zero::inline v0_1
