/// @file
/// What a device does with one element, as functions that the host can run as well.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/device/real.hpp"
#include "zero/device/vector.hpp"
#include "zero/kernel/coded_element.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/kernel/rounding.hpp"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
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

/// The same where the master or states are coded: what `kernel::update` documents of those. Reads
/// and writes `held`, the master. Writes `published`, and reads it as well where it is a part of
/// the master. `random` has the random bits of the master, then of each state.
template <Rule R, class Held, class Parameter, class Gradient, class State, std::size_t Count>
requires kernel::CodedElement<Held> || kernel::CodedElement<State> ZERO_HOST_DEVICE void
update_element(R const& rule,
               BasicStepScalars<kernel::RealOf<Held, Gradient, State>> const& scalars,
               kernel::RealOf<Held, Gradient, State> gradient_scale,
               Held& held,
               Parameter& published,
               Gradient gradient,
               State (&state)[Count],
               std::uint32_t const (&random)[Count + 1]) noexcept {
  std::conditional_t<kernel::CodedElement<State>, float, State> states[Count];
  for (std::size_t k = 0; k < Count; ++k) {
    if constexpr (kernel::CodedElement<State>) {
      states[k] = state[k].number(published);
    } else {
      states[k] = state[k];
    }
  }
  if constexpr (kernel::CodedElement<Held>) {
    float master = held.number(published);
    float none = 0.f;
    update_element(rule, scalars, gradient_scale, master, none, gradient, states);
    held.assign(published, master, random[0]);
  } else {
    update_element(rule, scalars, gradient_scale, held, published, gradient, states);
  }
  for (std::size_t k = 0; k < Count; ++k) {
    if constexpr (kernel::CodedElement<State>) {
      state[k].assign(published, states[k], random[k + 1]);
    } else {
      state[k] = states[k];
    }
  }
}

/// What a rule measures of an element: what `kernel::measure` documents, for one i. Nothing but
/// `numbers` is written.
/// @param rule       measures
/// @param scalars    the rule's own, for this step and tensor
/// @param gradient_scale  what the gradient is multiplied by first
/// @param master     whole, or coded
/// @param parameter  read where the master is a part of it
/// @param gradient   still scaled
/// @param state      the rule's states; at least one element, read or not
/// @param numbers    written: what is to be squared
template <MeasuringRule R,
          class Master,
          class Parameter,
          class Gradient,
          class State,
          std::size_t Count>
ZERO_HOST_DEVICE void measure_element(
    R const& rule,
    BasicStepScalars<kernel::RealOf<Master, Gradient, State>> const& scalars,
    kernel::RealOf<Master, Gradient, State> gradient_scale,
    Master const& master,
    Parameter const& parameter,
    Gradient gradient,
    State const (&state)[Count],
    kernel::RealOf<Master, Gradient, State> (&numbers)[measured_numbers]) noexcept {
  using Number = kernel::RealOf<Master, Gradient, State>;
  auto const number = [&]<class T>(T const& element) -> Real<Number> {
    if constexpr (kernel::CodedElement<T>) {
      return element.number(parameter);
    } else {
      return kernel::detail::convert<Number>(element);
    }
  };
  Real<Number> const g = Real<Number>(kernel::detail::convert<Number>(gradient)) * gradient_scale;
  Real<Number> states[Count];
  for (std::size_t k = 0; k < Count; ++k) states[k] = number(state[k]);
  Real<Number> measured[measured_numbers];
  rule.measure(scalars, number(master), g, static_cast<Real<Number> const*>(states), measured);
  for (std::size_t n = 0; n < measured_numbers; ++n) numbers[n] = static_cast<Number>(measured[n]);
}

/// What leaves every number as it is that it is added to: for floating point -0, since 0 would make
/// 0 of -0.
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE constexpr T nothing() noexcept {
  if constexpr (std::is_arithmetic_v<T>) {
    return std::is_floating_point_v<T> ? static_cast<T>(-0.) : T{};
  } else {
    return T::from_bits(0x8000);
  }
}

/// Elements as numbers of the arithmetic type of a sum.
template <class Acc, class T, std::size_t Width, class Value>
ZERO_HOST_DEVICE void widen(Vector<T, Width> const& vector, Value (&numbers)[Width]) noexcept {
  if constexpr (sizeof(T) == 2 && Width % 2 == 0) {
    auto const words = std::bit_cast<Vector<std::uint32_t, Width / 2>>(vector);
    ZERO_UNROLL(Width)
    for (std::size_t i = 0; i < Width; ++i) {
      numbers[i] = widen_half<T>(static_cast<std::uint16_t>(words.values[i / 2] >> i % 2 * 16));
    }
  } else {
    ZERO_UNROLL(Width)
    for (std::size_t i = 0; i < Width; ++i) {
      numbers[i] = kernel::detail::widened<Acc>(vector.values[i]);
    }
  }
}

/// Neighbouring elements of sums over ranks: what `kernel::sum_ranks` documents, for each i, but
/// for which NaN a sum is.
/// @tparam Abreast  of how many ranks the elements are asked for at once
/// @param inputs  inputs(r, k) gives those elements of rank r that belong to results[k]
/// @param ranks   how many there are, at least 1
/// @param results  are written
template <class Acc,
          std::size_t Abreast,
          class Inputs,
          class T,
          std::size_t Width,
          std::size_t Count>
ZERO_HOST_DEVICE void sum_vectors(Inputs const& inputs,
                                  int ranks,
                                  Vector<T, Width> (&results)[Count]) noexcept {
  namespace host = kernel::detail;
  using Value = typename host::Arithmetic<Acc>::Type;
  // Unrolled, or the compiler would keep what is indexed in memory.
  Vector<T, Width> none;
  ZERO_UNROLL(Width)
  for (T& element : none.values) element = nothing<T>();
  Value sums[Count][Width];
  ZERO_UNROLL(Count)
  for (auto& sum : sums) {
    ZERO_UNROLL(Width)
    for (Value& element : sum) element = nothing<Value>();
  }
  ZERO_UNROLL(1)
  for (int rank = 0; rank < ranks; rank += int{Abreast}) {
    // Ranks that are not there add nothing: a loop for the last few would read one at a time.
    Vector<T, Width> next[Abreast][Count];
    ZERO_UNROLL(Abreast)
    for (auto& of_rank : next) {
      int const r = rank + static_cast<int>(&of_rank - next);
      ZERO_UNROLL(Count)
      for (std::size_t k = 0; k < Count; ++k) of_rank[k] = r < ranks ? inputs(r, k) : none;
    }
    ZERO_UNROLL(Abreast)
    for (auto const& of_rank : next) {
      ZERO_UNROLL(Count)
      for (std::size_t k = 0; k < Count; ++k) {
        Value numbers[Width];
        widen<Acc>(of_rank[k], numbers);
        ZERO_UNROLL(Width)
        for (std::size_t i = 0; i < Width; ++i) {
          sums[k][i] = host::rounded<Acc>(sums[k][i] + numbers[i]);
        }
      }
    }
  }
  ZERO_UNROLL(Count)
  for (std::size_t k = 0; k < Count; ++k) {
    ZERO_UNROLL(Width)
    for (std::size_t i = 0; i < Width; ++i) results[k].values[i] = host::convert<T>(sums[k][i]);
  }
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
