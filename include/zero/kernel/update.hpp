/// @file
/// The update station: gradient and states in, parameter and states out, in one pass.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/half_block.hpp"
#include "zero/kernel/pack.hpp"
#include "zero/kernel/rounding.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// The arrays of one update, as the concept of a memory space has them.
using zero::UpdateArrays;

namespace detail {

/// The kernel works on tiles, whatever the vector: one cache line of fp32.
inline constexpr std::size_t tile = 16;

/// Bytes of a narrow output from which it is stored around the caches: 2 to 7 % faster, also
/// counting a reader that comes next; from 1 MiB down it is slower.
inline constexpr std::size_t stream_threshold = std::size_t{2} << 20;

/// Elements after which their narrow copy is written. Narrowing each at once would fill the
/// processor's scheduler with instructions that wait for a division to end: the conversions would
/// take twice as long as they do from the cache.
inline constexpr std::size_t cast_chunk = 128;

/// What happens to the narrow copy of the parameters.
enum class Cast : int { no, store, stream };

/// Where a chunk of a gradient is read from: its array, or a widened copy.
template <Isa I, class G>
class ChunkOfGradient {
 public:
  [[nodiscard]] G const* operator()(G const* from, std::size_t /*count*/) const noexcept {
    return from;
  }
};
template <Isa I, class G>
  requires in_half_blocks<I, G>
class ChunkOfGradient<I, G> {
 public:
  [[nodiscard]] float const* operator()(G const* from, std::size_t count) noexcept {
    if (by_processor_) {
      HalfBlocks<I>::widen(static_cast<float*>(wide_), from, count);
    } else {
      for (std::size_t i = 0; i < count; i += Pack<I>::lanes) {
        Pack<I>::load(from + i).store(wide_ + i);
      }
    }
    return static_cast<float const*>(wide_);
  }

 private:
  bool by_processor_ = HalfBlocks<I>::usable();
  alignas(64) float wide_[cast_chunk];
};

/// Updates `tiles` whole tiles. The only body in which elements are updated: never inlined, cloned
/// or specialised, so that an element meets the same instructions wherever it stands. `flatten`
/// inlines the rule, also one whose author did not ask for it. Nothing is prefetched: that is
/// as fast as 256 elements ahead, and depends less on where the arrays lie.
template <Isa I, class R, class M, class P, class G, class S, std::size_t... Index>
#if defined(__clang__)
__attribute__((noinline, flatten))
#else
__attribute__((noinline, noclone, flatten))
#endif
void update_tiles(R const& rule,
                  BasicStepScalars<RealOf<M, G, S>> const& scalars,
                  RealOf<M, G, S> gradient_scale,
                  UpdateArrays<M, P, G, S, sizeof...(Index)> const& arrays,
                  std::size_t tiles,
                  Cast cast,
                  std::index_sequence<Index...>) noexcept {
  using Real = RealOf<M, G, S>;
  using V = PackOf<I, Real>;
  // Copies, since for all the compiler knows a store to an array changes what a reference names.
  R const r = rule;
  BasicStepScalars<Real> const s = scalars;
  auto const a = arrays;
  V const scale = gradient_scale;
  std::size_t const end = tiles * tile;
  ChunkOfGradient<I, G> chunk_of_gradient;
  for (std::size_t chunk = 0; chunk < end; chunk += cast_chunk) {
    std::size_t const stop = end - chunk < cast_chunk ? end : chunk + cast_chunk;
    auto const* const gradient = chunk_of_gradient(a.gradient + chunk, stop - chunk);
    for (std::size_t begin = chunk; begin < stop; begin += tile) {
      for (std::size_t j = 0; j < tile; j += V::lanes) {
        std::size_t const i = begin + j;
        V p = V::load(a.master + i);
        // Opaque, so that the rule's own arithmetic alone decides what is fused.
        V const g = V::opaque(V::load(gradient + (i - chunk)) * scale);
        // One more than needed: an array of none is no array.
        V state[sizeof...(Index) + 1] = {V::load(a.state[Index] + i)...};
        r.update(s, p, g, static_cast<V*>(state));
        p.store(a.master + i);
        (state[Index].store(a.state[Index] + i), ...);
      }
    }
    if constexpr (!std::same_as<M, P>) {
      if (cast == Cast::no) continue;
      if constexpr (in_half_blocks<I, P> && std::same_as<M, float>) {
        if (HalfBlocks<I>::usable()) {
          bool const stream = cast == Cast::stream;
          HalfBlocks<I>::narrow(a.parameter + chunk, a.master + chunk, stop - chunk, stream);
          continue;
        }
      }
      if constexpr (sizeof(P) == 2 && std::same_as<Real, float>) {
        if (cast == Cast::stream) {
          for (std::size_t i = chunk; i < stop; i += 2 * V::lanes) {
            V const low = V::load(a.master + i);
            V::stream(low, V::load(a.master + i + V::lanes), a.parameter + i);
          }
          continue;
        }
      }
      for (std::size_t i = chunk; i < stop; i += V::lanes) {
        V::load(a.master + i).store(a.parameter + i);
      }
    }
  }
}

/// Less than a tile of every array, padded to a whole one.
template <class M, class P, class G, class S, std::size_t K>
struct PaddedTile {
  alignas(64) M master[tile];
  alignas(64) P parameter[tile];
  alignas(64) G gradient[tile];
  alignas(64) S state[K + 1][tile];

  /// The padding repeats an element of the tail: no operation meets a value it would not have met.
  template <class T>
  static void fill(T (&padded)[tile], T const* from, std::size_t count) noexcept {
    for (std::size_t i = 0; i < tile; ++i) padded[i] = from[i < count ? i : 0];
  }
  template <class T>
  static void empty(T (&padded)[tile], T* to, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) to[i] = padded[i];
  }
};

}  // namespace detail

/// Updates `arrays.count` elements by `rule`: for every i
///
///     g = Real(gradient[i]) * gradient_scale;  p = Real(master[i]);  s[k] = Real(state[k][i])
///     rule.update(scalars, p, g, s)
///     master[i] = Master(p);  state[k][i] = State(s[k])
///     parameter[i] = Parameter(Real(master[i]))        if that is a separate array
///
/// Real is double if master, gradient or state is that, else float.
///
/// The bits of an element's result depend on that element alone, not on where in an array or in
/// which call it stands: bucket size and stage cannot change a parameter. For this the last,
/// partial tile goes through the same machine code as all others. Two translation units built for
/// different instruction sets may differ in the last bit (fused multiply-add).
/// @par Units  counts are elements
/// @par Cost   one pass: with AdamW in fp32, and in mixed precision, 28 bytes per element
template <Isa I = native, Rule R, class M, class P, class G, class S, std::size_t K>
void update(R const& rule,
            BasicStepScalars<RealOf<M, G, S>> const& scalars,
            double gradient_scale,
            UpdateArrays<M, P, G, S, K> const& arrays) noexcept {
  static_assert(K == R::states.size(),
                "zero: the number of state arrays is not that of the rule's states");
  using Real = RealOf<M, G, S>;
  constexpr std::make_index_sequence<K> states{};
  auto const scale = static_cast<Real>(gradient_scale);
  bool const separate = !std::same_as<M, P> && arrays.parameter != nullptr;
  std::size_t const tiles = arrays.count / detail::tile;
  if (tiles != 0) {
    bool const aligned =
        reinterpret_cast<std::uintptr_t>(arrays.parameter) % Pack<I>::stream_alignment == 0;
    bool const stream = sizeof(P) == 2 && std::same_as<Real, float> && aligned &&
                        arrays.count * sizeof(P) >= detail::stream_threshold;
    auto const cast = !separate ? detail::Cast::no
                      : stream  ? detail::Cast::stream
                                : detail::Cast::store;
    detail::update_tiles<I>(rule, scalars, scale, arrays, tiles, cast, states);
    if (cast == detail::Cast::stream) Pack<I>::fence();
  }
  std::size_t const done = tiles * detail::tile;
  std::size_t const rest = arrays.count - done;
  if (rest == 0) return;
  using Tile = detail::PaddedTile<M, P, G, S, K>;
  Tile padded;
  UpdateArrays<M, P, G, S, K> tail;
  tail.count = detail::tile;
  Tile::fill(padded.master, arrays.master + done, rest);
  Tile::fill(padded.gradient, arrays.gradient + done, rest);
  for (std::size_t i = 0; i != K; ++i) {
    Tile::fill(padded.state[i], arrays.state[i] + done, rest);
    tail.state[i] = static_cast<S*>(padded.state[i]);
  }
  tail.master = static_cast<M*>(padded.master);
  tail.parameter = static_cast<P*>(padded.parameter);
  tail.gradient = static_cast<G const*>(padded.gradient);
  auto const cast = separate ? detail::Cast::store : detail::Cast::no;
  detail::update_tiles<I>(rule, scalars, scale, tail, 1, cast, states);
  Tile::empty(padded.master, arrays.master + done, rest);
  if (separate) Tile::empty(padded.parameter, arrays.parameter + done, rest);
  for (std::size_t i = 0; i != K; ++i) Tile::empty(padded.state[i], arrays.state[i] + done, rest);
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
