/// @file
/// The rule slot: how one element of a parameter follows its gradient.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/base/number.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

/// What a rule needs to know about a step besides the element itself. Scalars only, so that host
/// and device see the same values. Computed once a step for all tensors of the same rule and
/// scales. Aligned for accesses of two of them.
/// @tparam Real  what elements are computed in: float, or double where masters or states are double
template <class Real>
struct alignas(2 * sizeof(float)) BasicStepScalars {
  Real learning_rate = 0;  ///< already multiplied by the tensor's learning-rate scale
  Real weight_decay = 0;   ///< already multiplied by the tensor's weight-decay scale
  /// The rule's own: whatever is the same for all elements, such as bias corrections.
  Real extra[8] = {};
};

/// Those of arithmetic in float.
using StepScalars = BasicStepScalars<float>;

/// Those that a rule's `update` gets for the numeric type `V`.
template <class V>
using ScalarsOf = BasicStepScalars<math::Scalar<V>>;

/// One hyper-parameter by name, so that ranks that disagree can say about what. Construction of an
/// optimizer refuses a value that is not finite or not in [low, below).
struct RuleField {
  std::string_view name;              ///< as the rule's member is spelled
  double value = 0.;                  ///< flags as 0 or 1
  double low = -detail::any_number;   ///< the least value that makes sense
  double below = detail::any_number;  ///< the least value that is too large
};

/// What one entry of a state array belongs to.
enum class StateEntry : std::uint8_t {
  element,  ///< one entry for each element of a parameter
};

/// How a state array has its values.
enum class StateCoding : std::uint8_t {
  none,  ///< as they are, in `Precision::State`
  /// In 8 bits each, and a byte for each group of 32: kernel::RootCode with a sign, as of means of
  /// gradients.
  root,
  root_of_squares  ///< likewise without a sign, of numbers that are not negative: means of squares
};

/// One array of optimizer states. Plans, fingerprints and messages call it by its name.
///
/// Where it has a coding, `update` gets and leaves numbers in float all the same. They are decoded
/// before it and rounded stochastically behind it, by random bits that depend on the optimizer's
/// seed, on array, tensor and element, and on the number of the tensor's update. Tensors of fewer
/// than `coded_from` elements, and those with `Tensor::full_states`, have them in full.
struct StateArray {
  std::string_view name;                   ///< such as "exp_avg"; unique within the rule
  StateEntry entry = StateEntry::element;  ///< what one entry belongs to
  StateCoding coding = StateCoding::none;  ///< how it has its values
};

namespace detail {

/// What `Rule` asks for but `noexcept`, so that who forgets that can be told.
template <class R>
concept RuleThatMayThrow = std::regular<R> && requires(R const& rule,
                                                       StepScalars const& scalars,
                                                       long step,
                                                       float value,
                                                       float& element,
                                                       float* state) {
  { R::name } -> std::convertible_to<std::string_view>;
  { R::states.size() } -> std::convertible_to<std::size_t>;
  { *R::states.begin() } -> std::convertible_to<StateArray>;
  { rule.lr } -> std::convertible_to<double>;
  { rule.scalars(step, value, value, value) } -> std::same_as<StepScalars>;
  { rule.template update<float>(scalars, element, value, state) } -> std::same_as<void>;
};

}  // namespace detail

/// A rule that treats every element on its own (Adam, SGD, ...).
///
/// `R` is a regular aggregate of hyper-parameters. Its element function is a template over the
/// numeric type `V`: `float` in a reference, a pack of floats in the host kernel, a number that
/// never contracts on a device. It uses only + - * /, < and > and the functions of
/// zero/base/math.hpp on `V`, so that one source serves all of them; a float mixes with `V` on
/// either side. What needs double precision is done in `scalars`, once per step; for a device it
/// must be a device function too, and spell additions that meet a product as `math::sum`, or its
/// bits may differ from the host's. Both are `noexcept`: a step that is under way on all ranks
/// cannot be taken back.
///
///     struct MyRule {
///       static constexpr std::string_view name = "my rule";
///       static constexpr std::array states{zero::StateArray{"momentum"}};
///       double lr = 1e-3;
///       double weight_decay = 0.;
///       zero::StepScalars scalars(long, float lr, float lr_scale, float wd_scale) const noexcept;
///       template <class V>
///       void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept;
///     };
///
/// The first argument of `scalars` counts the tensor's updates from 1. `state` has an entry for
/// each of `states`, in their order, and starts at zero; a rule without state has a
/// `std::array<zero::StateArray, 0>`.
///
/// This one computes in float. One that serves `Fp64` too (see `RuleInDouble`) has templates over
/// the number of its scalars, and rounds its own hyper-parameters to it first:
///
///       template <class Real>
///       zero::BasicStepScalars<Real> scalars(long, Real lr, Real lr_scale, Real wd_scale) const
///           noexcept;
///       template <class V>
///       void update(zero::ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept;
///
/// A rule should also list its hyper-parameters, as all shipped ones do (see `DescribedRule`). One
/// that goes on from another rule's states in a checkpoint names it:
/// `static constexpr std::array<std::string_view, 1> states_of{"AdamW"};`. Only who knows both can
/// say that states of one name mean the same; without that, the load is refused.
template <class R>
concept Rule = detail::RuleThatMayThrow<R> && requires(R const& rule, float value, float* state) {
  requires noexcept(rule.scalars(1, value, value, value));
  requires noexcept(rule.template update<float>({}, *state, value, state));
};

/// A rule that can compute in double, for precisions whose masters, states or reduced gradients
/// are.
template <class R>
concept RuleInDouble = Rule<R> &&
    requires(R const& rule, BasicStepScalars<double> const& scalars, double value, double* state) {
  { rule.scalars(1L, value, value, value) }
  noexcept->std::same_as<BasicStepScalars<double>>;
  { rule.template update<double>(scalars, *state, value, state) }
  noexcept->std::same_as<void>;
};

/// Numbers of each element that a rule may measure.
inline constexpr std::size_t measured_numbers = 2;

/// A rule that needs to know something of a whole tensor before it updates its elements: the norms
/// of two numbers that each element has. `measure` computes them as `update` computes its own, and
/// changes nothing; `adjust` gets the two norms of the tensor, and changes what `scalars` returned
/// for all the rest of it.
///
///       template <class V>
///       void measure(zero::ScalarsOf<V> const& s, V const& p, V const& g, V const* state,
///                    V (&numbers)[2]) const noexcept;
///       template <class Real>
///       void adjust(zero::BasicStepScalars<Real>& s, double const (&norms)[2]) const noexcept;
///
/// A norm is that of all elements of the tensor, on whatever ranks they are, a slice of a stacked
/// tensor being a tensor of its own: squares are added in fp64 over blocks of 32 elements from the
/// tensor's first one on, and the blocks' sums exactly, so that it is the same for every stage,
/// rank count and bucket. One that is not finite is NaN.
/// @par Cost  a pass over parameters, gradients and states before any element is updated; 1,088
///   bytes for each tensor, and their exchange
template <class R>
concept MeasuringRule = Rule<R> && requires(R const& rule,
                                            StepScalars& scalars,
                                            float value,
                                            float const* state,
                                            float (&numbers)[measured_numbers],
                                            double const (&norms)[measured_numbers]) {
  requires noexcept(rule.template measure<float>(scalars, value, value, state, numbers));
  requires noexcept(rule.adjust(scalars, norms));
};

namespace detail {

/// Has a rule what begins a phase of measuring, whether it is right or not?
template <class R>
concept NamesMeasure = requires {
  &R::measure;
}
|| requires { &R::template measure<float>; };

}  // namespace detail

/// A rule whose `fields()` returns an array with every hyper-parameter, such as
/// `std::array{RuleField{"lr", lr}, RuleField{"momentum", momentum}}`.
template <class R>
concept DescribedRule = Rule<R> && requires(R const& rule) {
  { *rule.fields().begin() } -> std::convertible_to<RuleField>;
  { rule.fields().size() } -> std::convertible_to<std::size_t>;
};

}  // namespace zero::inline ZERO_NAMESPACE
