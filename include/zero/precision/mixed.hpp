/// @file
/// 16-bit parameters, with gradients of 16 or 32 bits, over fp32 master weights and states.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/precision/loss_scale.hpp"

#include <concepts>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Mixed precision: parameters and gradients in `Half`, sums, master weights and states in fp32.
/// With `fp16` gradients carry a dynamic loss scale; bf16 has fp32's range and needs none.
/// @par Source  ZeRO §3.1: 2Ψ + 2Ψ + KΨ bytes, K = 12 with Adam
template <class Half>
  requires std::same_as<Half, bf16> || std::same_as<Half, fp16>
struct Mixed {
  /// The 16-bit type, in fingerprints and reports.
  static constexpr std::string_view name = std::same_as<Half, bf16> ? "bf16" : "fp16";
  using Parameter = Half;    ///< what forward and backward read
  using Wire = Half;         ///< gradients, held and sent
  using Accumulate = float;  ///< sums over ranks and micro-steps
  using Master = float;      ///< what the update works on; parameters are rounded from it
  using State = float;       ///< optimizer states
  /// With fp16 only: small gradients would vanish below its range.
  static constexpr bool loss_scaled = std::same_as<Half, fp16>;

  LossScaleOptions loss_scale{};  ///< read only where `loss_scaled`
  friend constexpr bool operator==(Mixed const&, Mixed const&) = default;
};

/// Parameters in `Half`, all else in fp32: for trainers whose backward pass leaves gradients in
/// float, such as all over ggml. Gradients have fp32's range, so that none needs a loss scale.
/// Bytes per element: 2 + 4 + K, K = 12 with Adam.
template <class Half>
  requires std::same_as<Half, bf16> || std::same_as<Half, fp16>
struct MixedFloatGradients {
  /// Of the parameters, and of what adds up, in fingerprints and reports.
  static constexpr std::string_view name =
      std::same_as<Half, bf16> ? "bf16+fp32 grads" : "fp16+fp32 grads";
  using Parameter = Half;                     ///< what forward and backward read
  using Wire = float;                         ///< gradients, held and sent
  using Accumulate = float;                   ///< sums over ranks and micro-steps
  using Master = float;                       ///< parameters are rounded from it
  using State = float;                        ///< optimizer states
  static constexpr bool loss_scaled = false;  ///< whatever `Half` is
  /// All are equal.
  friend constexpr bool operator==(MixedFloatGradients const&,
                                   MixedFloatGradients const&) = default;
};

static_assert(Precision<Mixed<bf16>>);
static_assert(Precision<Mixed<fp16>>);
static_assert(Precision<MixedFloatGradients<bf16>>);
static_assert(Precision<MixedFloatGradients<fp16>>);

}  // namespace zero::inline ZERO_NAMESPACE
