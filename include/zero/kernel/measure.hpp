/// @file
/// What a rule measures of whole tensors, in sums that no partition can change.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/coded_element.hpp"
#include "zero/kernel/coded_update.hpp"
#include "zero/kernel/norm.hpp"
#include "zero/kernel/pack.hpp"
#include "zero/kernel/rounding.hpp"
#include "zero/kernel/update.hpp"
#include "zero/layout/placement.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// Elements whose numbers are kept at a time: few enough for the first cache.
inline constexpr std::size_t measured_at_once = 1024;

template <class Real>
using MeasuredNumbers = std::array<Real*, measured_numbers>;

/// Computes what is measured of `tiles` whole tiles. The only body that does, as that of
/// `update_tiles`: an element has the same numbers wherever it stands.
template <Isa I, class R, class M, class P, class G, class S, std::size_t... Index>
#if defined(__clang__)
__attribute__((noinline, flatten))
#else
__attribute__((noinline, noclone, flatten))
#endif
void measure_tiles(R const& rule,
                   BasicStepScalars<RealOf<M, G, S>> const& scalars,
                   RealOf<M, G, S> gradient_scale,
                   UpdateArrays<M, P, G, S, sizeof...(Index)> const& arrays,
                   std::size_t tiles,
                   MeasuredNumbers<RealOf<M, G, S>> const& numbers,
                   std::index_sequence<Index...>) noexcept {
  using Real = RealOf<M, G, S>;
  using V = PackOf<I, Real>;
  R const r = rule;
  BasicStepScalars<Real> const s = scalars;
  auto const a = arrays;
  auto const to = numbers;
  V const scale = gradient_scale;
  for (std::size_t i = 0; i < tiles * tile; i += V::lanes) {
    V const p = V::load(a.master + i);
    V const g = V::opaque(V::load(a.gradient + i) * scale);
    V const state[sizeof...(Index) + 1] = {V::load(a.state[Index] + i)...};
    V measured[measured_numbers];
    r.measure(s, p, g, static_cast<V const*>(state), measured);
    for (std::size_t k = 0; k < measured_numbers; ++k) measured[k].store(to[k] + i);
  }
}

}  // namespace detail

/// Adds what a rule measures of `arrays.count` elements to the words of accumulators, one for each
/// number: for every i
///
///     g = Real(gradient[i]) * gradient_scale;  p = Real(master[i]);  s[k] = Real(state[k][i])
///     rule.measure(scalars, p, g, s, numbers)
///     word sum n += numbers[n]²
///
/// Squares are added in fp64 within blocks of 32 elements from the first one on, as `add_squares`
/// adds them, and the blocks' sums exactly. Pieces of a tensor begin at multiples of 32 of its own
/// elements: however it is cut, its sums are of the same blocks. A block that is not finite is
/// counted as such. Words are added to as integers, and each call adds less than 2³² to one: those
/// of 2³¹ calls on all ranks together may be added up.
/// @par Cost  one pass: with two states in fp32 16 bytes per element, and nothing is written
template <Isa I = native, MeasuringRule R, class M, class P, class G, class S, std::size_t K>
void measure(R const& rule,
             BasicStepScalars<RealOf<M, G, S>> const& scalars,
             double gradient_scale,
             UpdateArrays<M, P, G, S, K> const& arrays,
             std::int64_t* words) noexcept {
  using Real = RealOf<M, G, S>;
  constexpr std::make_index_sequence<K> states{};
  constexpr std::size_t at_once = detail::measured_at_once;
  constexpr std::size_t run = tensor_alignment;
  auto const scale = static_cast<Real>(gradient_scale);
  alignas(64) Real memory[measured_numbers][at_once];
  ExactSum sums[measured_numbers];
  for (std::size_t done = 0; done < arrays.count;) {
    std::size_t const count = (std::min)(at_once, arrays.count - done);
    std::size_t const whole = count / detail::tile * detail::tile;
    auto const numbers_from = [&](std::size_t first) {
      detail::MeasuredNumbers<Real> numbers;
      for (std::size_t k = 0; k < measured_numbers; ++k) numbers[k] = &memory[k][first];
      return numbers;
    };
    UpdateArrays<M, P, G, S, K> chunk;
    chunk.master = arrays.master + done;
    chunk.gradient = arrays.gradient + done;
    for (std::size_t k = 0; k != K; ++k) chunk.state[k] = arrays.state[k] + done;
    detail::measure_tiles<I>(
        rule, scalars, scale, chunk, whole / detail::tile, numbers_from(0), states);
    if (std::size_t const rest = count - whole; rest != 0) {
      using Tile = detail::PaddedTile<M, P, G, S, K>;
      Tile padded;
      Tile::fill(padded.master, chunk.master + whole, rest);
      Tile::fill(padded.gradient, chunk.gradient + whole, rest);
      for (std::size_t k = 0; k != K; ++k) {
        Tile::fill(padded.state[k], chunk.state[k] + whole, rest);
        chunk.state[k] = static_cast<S*>(padded.state[k]);
      }
      chunk.master = static_cast<M*>(padded.master);
      chunk.gradient = static_cast<G const*>(padded.gradient);
      detail::measure_tiles<I>(rule, scalars, scale, chunk, 1, numbers_from(whole), states);
    }
    for (std::size_t k = 0; k < measured_numbers; ++k) {
      for (std::size_t first = 0; first < count; first += run) {
        double lanes[norm_lanes] = {};
        add_squares<Real, I>(&memory[k][first], (std::min)(run, count - first), 0, lanes);
        sums[k].add(sum_lanes(lanes));
      }
    }
    done += count;
  }
  for (std::size_t k = 0; k < measured_numbers; ++k) {
    auto const& own = sums[k].words();
    for (std::size_t i = 0; i < ExactSum::word_count; ++i) {
      words[k * ExactSum::word_count + i] += own[i];
    }
  }
}

namespace detail {

template <Isa I, class R, class M, class P, class G, class S, std::size_t... K>
void measure_decoded(R const& rule,
                     BasicStepScalars<RealOf<M, G, S>> const& scalars,
                     double gradient_scale,
                     UpdateArrays<M, P, G, S, sizeof...(K)> const& arrays,
                     std::int64_t* words,
                     std::index_sequence<K...>) noexcept {
  using Master = typename WorkingCopy<I, M, 0>::Element;
  using State = typename WorkingCopy<I, S, 1>::Element;
  WorkingCopies<I, M, S, K...> copies;
  for (std::size_t done = 0; done < arrays.count; done += decoded_at_once) {
    auto const part = part_of(arrays, done, (std::min)(decoded_at_once, arrays.count - done));
    UpdateArrays<Master, Master, G, State, sizeof...(K)> chunk;
    chunk.master = copies.WorkingCopy<I, M, 0>::read(part, part.master);
    chunk.gradient = part.gradient;
    ((chunk.state[K] = copies.WorkingCopy<I, S, K + 1>::read(part, part.state[K])), ...);
    chunk.count = part.count;
    measure<I>(rule, scalars, gradient_scale, chunk, words);
  }
}

}  // namespace detail

/// The same where elements of `arrays` are coded: of the floats that they stand for.
template <Isa I = native, MeasuringRule R, class M, class P, class G, class S, std::size_t K>
  requires CodedElement<M> || CodedElement<S>
void measure(R const& rule,
             BasicStepScalars<RealOf<M, G, S>> const& scalars,
             double gradient_scale,
             UpdateArrays<M, P, G, S, K> const& arrays,
             std::int64_t* words) noexcept {
  constexpr std::make_index_sequence<K> states{};
  detail::measure_decoded<I>(rule, scalars, gradient_scale, arrays, words, states);
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
