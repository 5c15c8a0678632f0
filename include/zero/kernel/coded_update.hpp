/// @file
/// The update station where arrays hold numbers otherwise than as they are.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/coded_element.hpp"
#include "zero/kernel/random_bits.hpp"
#include "zero/kernel/root_code.hpp"
#include "zero/kernel/update.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// Elements that are numbers at a time: few enough for what memory prefetches behind one such part
/// to last for the next one, whose numbers are then made while more is on its way. Groups of
/// elements with something in common are not cut.
inline constexpr std::size_t decoded_at_once = 256;

/// What an update works on for elements of an array: the elements themselves.
template <Isa I, class T, std::size_t number>
struct WorkingCopy {
  using Element = T;
  template <class Arrays>
  [[nodiscard]] T* read(Arrays const&, T* elements) noexcept {
    return elements;
  }
  template <class Arrays>
  void write(Arrays const&, RandomStream const*) noexcept {}
};
/// Or what they become.
template <Isa I, CodedElement T, std::size_t number>
struct WorkingCopy<I, T, number> {
  using Element = float;
  template <class Arrays>
  [[nodiscard]] float* read(Arrays const& arrays, T*) noexcept {
    T::template read<I, number>(static_cast<float*>(values), arrays);
    return static_cast<float*>(values);
  }
  /// @param streams  of all arrays, by their numbers
  template <class Arrays>
  void write(Arrays const& arrays, RandomStream const* streams) noexcept {
    float const* const in = values;
    if constexpr (RandomElement<T>) {
      alignas(64) typename T::Random random[decoded_at_once];
      auto* const bits = static_cast<typename T::Random*>(random);
      fill_random<I>(bits, streams[number], arrays.random.first, arrays.count);
      T::template write<I, number>(arrays, in, bits);
    } else {
      T::template write<I, number>(arrays, in, nullptr);
    }
  }
  alignas(64) float values[decoded_at_once];
};
/// That of masters, or of a state.
template <Isa I, class M, class S, std::size_t... K>
struct WorkingCopies : WorkingCopy<I, M, 0>, WorkingCopy<I, S, K + 1>... {};

/// The arrays from an element on.
template <class Arrays>
[[nodiscard]] Arrays part_of(Arrays arrays, std::size_t first, std::size_t count) noexcept {
  arrays.master += first;
  if (arrays.parameter != nullptr) arrays.parameter += first;
  arrays.gradient += first;
  for (auto& state : arrays.state) state += first;
  if constexpr (requires { arrays.random; }) arrays.random.first += first;
  if constexpr (requires { arrays.scales; }) {
    for (auto& scales : arrays.scales) scales += first / root_group;
  }
  arrays.count = count;
  return arrays;
}

/// @param typed    `arrays` again, for their types
/// @param streams  of all arrays, by their numbers: 0 for masters, k + 1 for state k; null if none
///                 takes random bits
template <Isa I, class R, class Arrays, class M, class P, class G, class S, std::size_t... K>
void update_decoded(R const& rule,
                    BasicStepScalars<RealOf<M, G, S>> const& scalars,
                    double gradient_scale,
                    Arrays const& arrays,
                    UpdateArrays<M, P, G, S, sizeof...(K)> const& typed,
                    RandomStream const* streams,
                    std::index_sequence<K...>) noexcept {
  using Master = typename WorkingCopy<I, M, 0>::Element;
  using State = typename WorkingCopy<I, S, 1>::Element;
  // Who makes a master from a float makes its parameter as well.
  using Parameter = std::conditional_t<CodedElement<M>, Master, P>;
  WorkingCopies<I, M, S, K...> copies;
  for (std::size_t done = 0; done < typed.count;) {
    Arrays const part = part_of(arrays, done, (std::min)(decoded_at_once, typed.count - done));
    UpdateArrays<Master, Parameter, G, State, sizeof...(K)> chunk;
    chunk.master = copies.WorkingCopy<I, M, 0>::read(part, part.master);
    if constexpr (!CodedElement<M>) chunk.parameter = part.parameter;
    chunk.gradient = part.gradient;
    ((chunk.state[K] = copies.WorkingCopy<I, S, K + 1>::read(part, part.state[K])), ...);
    chunk.count = part.count;
    update<I>(rule, scalars, gradient_scale, chunk);
    copies.WorkingCopy<I, M, 0>::write(part, streams);
    (copies.WorkingCopy<I, S, K + 1>::write(part, streams), ...);
    done += part.count;
  }
}

}  // namespace detail

/// As `update`, where elements of `arrays` are coded: for every i
///
///     master, state[k] = the floats that elements i of these arrays stand for
///     ... as `update` does ...
///     elements i of these arrays = what stands for master, state[k]
///
/// Whoever codes masters writes parameters as well. An element's bits depend on that element alone.
/// @par Cost  one pass over the arrays as they are held
template <Isa I = native, Rule R, class M, class P, class G, class S, std::size_t K>
  requires CodedElement<M> || CodedElement<S>
void update(R const& rule,
            BasicStepScalars<RealOf<M, G, S>> const& scalars,
            double gradient_scale,
            UpdateArrays<M, P, G, S, K> const& arrays) noexcept {
  static_assert(!RandomElement<M> && !RandomElement<S>,
                "zero: what is rounded stochastically is updated in RandomUpdateArrays");
  constexpr std::make_index_sequence<K> states{};
  detail::update_decoded<I>(rule, scalars, gradient_scale, arrays, arrays, nullptr, states);
}

/// The same where some take random bits: those of the array, of the tensor's update and of the
/// element in the tensor, wherever it is updated. `count` has the updates of the tensor, this one
/// included.
template <Isa I = native, Rule R, class Real, RandomArrays Arrays>
void update(R const& rule,
            BasicStepScalars<Real> const& scalars,
            double gradient_scale,
            Arrays const& arrays,
            long count) noexcept {
  RandomOrigin const from = arrays.random;
  constexpr std::size_t numbers = 1 + R::states.size();
  RandomStream streams[numbers];
  for (std::size_t i = 0; i < numbers; ++i) {
    streams[i] =
        random_stream(random_key(from.key, i), *from.seed, static_cast<std::uint64_t>(count));
  }
  constexpr std::make_index_sequence<R::states.size()> states{};
  detail::update_decoded<I>(
      rule, scalars, gradient_scale, arrays, arrays, std::begin(streams), states);
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
