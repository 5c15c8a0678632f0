/// @file
/// 16-bit parameters, with gradients of 16 or 32 bits, over fp32 master weights and states.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/kernel/half_away.hpp"
#include "zero/kernel/remainder.hpp"
#include "zero/precision/loss_scale.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// How `Mixed` holds masters, unless it says otherwise: in fp32. Parameters are rounded from them
/// to nearest, of two as near to the even one.
struct Fp32Masters {};

/// Masters in fp32 as well, but parameters of bf16 are rounded half away from zero: of two that are
/// as near, to the one of larger magnitude. That is another parameter for 2^-17 of all masters.
///
/// All values that are loaded are rounded so, from files too, and those of frozen bf16 tensors as
/// well; doubles of a checkpoint after they have become floats. Frozen tensors of types that no
/// precision here has are rounded to nearest even.
struct HalfAway {
  static constexpr std::string_view name = "bf16 half away";  ///< in fingerprints and reports
  using Parameter = kernel::HalfAwayBf16;                     ///< what kernels write parameters as
  /// Rounds masters to parameters; no rests are kept.
  static void split(void* parameters, void*, void const* masters, std::size_t count) noexcept {
    std::uint16_t* const none = nullptr;
    kernel::split_masters(
        static_cast<bf16*>(parameters), none, static_cast<float const*>(masters), count);
  }
};

/// Masters as the 16 bits that bf16 parameters lack, which are rounded as by `HalfAway`: both
/// together are every fp32 but for payloads of NaN. Training has bit for bit the results of
/// `HalfAway` in 2 bytes less for each element that a rank updates.
///
/// A parameter is the larger part of its master here. Who writes to parameters has changed masters
/// as well, to within half a unit of bf16: the remainder stays. `adopt_parameters()` clears the
/// remainders, so that masters are what was written.
struct Rest16 {
  static constexpr std::string_view name = "bf16 rest16";  ///< in fingerprints and reports
  using Parameter = kernel::HalfAwayBf16;                  ///< what kernels write parameters as
  using Held = kernel::RestOfMaster;                       ///< what is held of a master
  /// The least number that `split` gives an infinite parameter: halfway from the largest one on.
  static constexpr float least_infinite = 0x1.FFp127f;
  /// Takes masters apart; what has null for its place is left out.
  static void split(void* parameters,
                    void* rests,
                    void const* masters,
                    std::size_t count) noexcept {
    kernel::split_masters(static_cast<bf16*>(parameters),
                          static_cast<std::uint16_t*>(rests),
                          static_cast<float const*>(masters),
                          count);
  }
  /// Puts them together.
  static void join(void* masters,
                   void const* parameters,
                   void const* rests,
                   std::size_t count) noexcept {
    kernel::join_masters(static_cast<float*>(masters),
                         static_cast<bf16 const*>(parameters),
                         static_cast<std::uint16_t const*>(rests),
                         count);
  }
};

/// Masters of 24 bits: the 8 that bf16 parameters lack of them. A step rounds them stochastically,
/// so that the mean of what it may make of a master is the master that `HalfAway` has; to nearest,
/// updates of less than 2^-17 of a weight would be lost, step after step. Whoever loads, adopts or
/// converts values has them to nearest. `Seed` chooses the random bits.
///
/// As with `Rest16`, who writes to parameters has changed masters. Checkpoints have fp32 masters,
/// and each mixed precision loads the others'.
struct Rest8 {
  static constexpr std::string_view name = "bf16 rest8";  ///< in fingerprints and reports
  using Parameter = kernel::HalfAwayBf16;                 ///< what kernels write parameters as
  using Held = kernel::ShortRestOfMaster;                 ///< what is held of a master
  /// The least number that `split` gives an infinite parameter: 24 bits round it up to halfway.
  static constexpr float least_infinite = 0x1.FEFFp127f;
  /// Takes masters apart, to nearest; what has null for its place is left out.
  static void split(void* parameters,
                    void* rests,
                    void const* masters,
                    std::size_t count) noexcept {
    kernel::split_masters(static_cast<bf16*>(parameters),
                          static_cast<std::uint8_t*>(rests),
                          static_cast<float const*>(masters),
                          count);
  }
  /// Puts them together.
  static void join(void* masters,
                   void const* parameters,
                   void const* rests,
                   std::size_t count) noexcept {
    kernel::join_masters(static_cast<float*>(masters),
                         static_cast<bf16 const*>(parameters),
                         static_cast<std::uint8_t const*>(rests),
                         count);
  }
};

namespace detail {
template <class Half, class Masters>
[[nodiscard]] constexpr std::string_view mixed_name() noexcept {
  if constexpr (std::same_as<Half, fp16>) return "fp16";
  if constexpr (std::same_as<Masters, Fp32Masters>) return "bf16";
  if constexpr (requires { Masters::name; }) return Masters::name;
  return {};
}
}  // namespace detail

/// Mixed precision: parameters and gradients in `Half`, sums, master weights and states in fp32.
/// With `fp16` gradients carry a dynamic loss scale; bf16 has fp32's range and needs none.
/// @tparam MasterForm  how masters are held, and parameters rounded from them: `Fp32Masters`, or
///   beside bf16 `HalfAway`, `Rest16` or `Rest8`
/// @par Source  ZeRO §3.1: 2Ψ + 2Ψ + KΨ bytes, K = 12 with Adam, or 10 with `Rest16`, 9 with
///   `Rest8`
template <class Half, class MasterForm = Fp32Masters>
  requires std::same_as<Half, bf16> || std::same_as<Half, fp16>
struct Mixed {
  static_assert(
      std::same_as<Half, bf16> || std::same_as<MasterForm, Fp32Masters>,
      "zero: masters of fp16 parameters are fp32, as in zero::Mixed<zero::fp16>: only bf16 "
      "is the upper half of an fp32, so that 16 bits hold what it lacks");
  static_assert(std::same_as<MasterForm, Fp32Masters> || std::same_as<MasterForm, HalfAway> ||
                    std::same_as<MasterForm, Rest16> || std::same_as<MasterForm, Rest8>,
                "zero: masters beside bf16 are zero::Fp32Masters, zero::HalfAway, zero::Rest16 or "
                "zero::Rest8; zero::StochasticRounding has none, as in "
                "zero::Bf16<zero::StochasticRounding>");
  /// The 16-bit type, and how masters are held, in fingerprints and reports.
  static constexpr std::string_view name = detail::mixed_name<Half, MasterForm>();
  using Parameter = Half;      ///< what forward and backward read
  using Wire = Half;           ///< gradients, held and sent
  using Accumulate = float;    ///< sums over ranks and micro-steps
  using Master = float;        ///< what the update works on; parameters are rounded from it
  using State = float;         ///< optimizer states
  using Masters = MasterForm;  ///< how masters are held, and parameters rounded
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
static_assert(Precision<Mixed<bf16, HalfAway>>);
static_assert(Precision<Mixed<bf16, Rest16>>);
static_assert(Precision<Mixed<bf16, Rest8>>);
static_assert(Precision<MixedFloatGradients<bf16>>);
static_assert(Precision<MixedFloatGradients<fp16>>);

}  // namespace zero::inline ZERO_NAMESPACE
