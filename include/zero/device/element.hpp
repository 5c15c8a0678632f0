/// @file
/// What a device does with one element, as functions that the host can run as well.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/device/real.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/kernel/rounding.hpp"

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::device {

/// The element of an update: what `kernel::update` documents, for one i.
/// @param rule       decides how the element follows its gradient
/// @param scalars    the rule's own, for this step and tensor
/// @param gradient_scale  what the gradient is multiplied by first
/// @param master     read and written
/// @param published  written unless it has the type of the master
/// @param gradient   still scaled
/// @param state      the rule's states, read and written; at least one element, read or not
template <Rule R, class Master, class Parameter, class Gradient, class State, std::size_t Count>
ZERO_HOST_DEVICE void update_element(
    R const& rule,
    BasicStepScalars<kernel::RealOf<Master, Gradient, State>> const& scalars,
    kernel::RealOf<Master, Gradient, State> gradient_scale,
    Master& master,
    Parameter& published,
    Gradient gradient,
    State (&state)[Count]) noexcept {
  namespace host = kernel::detail;
  using Number = kernel::RealOf<Master, Gradient, State>;
  Real<Number> p = host::convert<Number>(master);
  Real<Number> const g = Real<Number>(host::convert<Number>(gradient)) * gradient_scale;
  Real<Number> states[Count];
  for (std::size_t k = 0; k < Count; ++k) states[k] = host::convert<Number>(state[k]);
  rule.update(scalars, p, g, static_cast<Real<Number>*>(states));
  master = host::convert<Master>(static_cast<Number>(p));
  for (std::size_t k = 0; k < Count; ++k) {
    state[k] = host::convert<State>(static_cast<Number>(states[k]));
  }
  if constexpr (!std::same_as<Master, Parameter>) published = host::convert<Parameter>(master);
}

/// Neighbouring elements of a sum over ranks: what `kernel::sum_ranks` documents, for each i.
/// @tparam Abreast  of how many ranks the elements are asked for at once
/// @param inputs  gives the elements of rank r as the Vector inputs(r)
/// @param ranks   how many there are, at least 1
template <class Acc, std::size_t Width, int Abreast, class Inputs>
[[nodiscard]] ZERO_HOST_DEVICE auto sum_vectors(Inputs const& inputs, int ranks) noexcept {
  namespace host = kernel::detail;
  auto result = inputs(0);
  using T = std::remove_reference_t<decltype(result.values[0])>;
  using Value = typename host::Arithmetic<Acc>::Type;
  Value sum[Width];
  for (std::size_t i = 0; i < Width; ++i) sum[i] = host::widened<Acc>(result.values[i]);
  ZERO_UNROLL(Abreast)
  for (int rank = 1; rank < ranks; ++rank) {
    auto const next = inputs(rank);
    for (std::size_t i = 0; i < Width; ++i) {
      sum[i] = host::rounded<Acc>(sum[i] + host::widened<Acc>(next.values[i]));
    }
  }
  for (std::size_t i = 0; i < Width; ++i) result.values[i] = host::convert<T>(sum[i]);
  return result;
}

/// From one element type to another.
template <class To, class From>
struct Convert {
  /// To(x), rounded once, to nearest even.
  [[nodiscard]] ZERO_HOST_DEVICE To operator()(From x) const noexcept {
    return kernel::detail::convert<To>(x);
  }
};

/// From one element type onto another.
template <class Acc, class T>
struct Add {
  /// Acc(sum + x), added in float or, if one of them is that, in double; rounded once.
  [[nodiscard]] ZERO_HOST_DEVICE Acc operator()(Acc sum, T x) const noexcept {
    namespace host = kernel::detail;
    using Number = kernel::RealOf<Acc, T>;
    Real<Number> const all = Real<Number>(host::convert<Number>(sum)) + host::convert<Number>(x);
    return host::convert<Acc>(static_cast<Number>(all));
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::device
