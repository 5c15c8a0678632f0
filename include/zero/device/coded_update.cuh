/// @file
/// The update station on a device, where states are codes of groups.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/device/element.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/random_update.cuh"
#include "zero/device/root.hpp"
#include "zero/device/update.cuh"
#include "zero/device/vector.hpp"
#include "zero/kernel/coded_element.hpp"
#include "zero/kernel/random_bits.hpp"
#include "zero/kernel/random_key.hpp"
#include "zero/kernel/rounding.hpp"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Arrays with the scales of their groups.
template <class M, class P, class G, class S, std::size_t K>
struct ScaledArrays : KeyedArrays<M, P, G, S, K> {
  std::uint8_t* scales[K];
};

/// Elements of a group that a thread updates: those whose random bits are in one block.
inline constexpr std::size_t coded_width = 8;
/// Threads of a group.
inline constexpr std::size_t group_threads = kernel::root_group / coded_width;

/// Calls body(k) for all k below K, which are constants.
template <class Body, std::size_t... k>
inline __device__ void for_states(std::index_sequence<k...>, Body const& body) {
  (body(std::integral_constant<std::size_t, k>{}), ...);
}

/// The bits of a thread's elements in words, which are taken apart where they are used.
template <class T>
using Packed = Vector<std::uint32_t, sizeof(T) * coded_width / sizeof(std::uint32_t)>;

/// Takes the first of a thread's elements out, moves the others down by one, and appends one.
///
/// In a loop it takes elements apart, or puts them together, in an eighth of the code that has an
/// index for each.
template <class T>
inline __device__ T shifted(Packed<T>& all, T last) {
  if constexpr (sizeof(T) < sizeof(std::uint32_t)) {
    using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t, std::uint16_t>;
    constexpr std::size_t words = sizeof(all) / sizeof(std::uint32_t);
    auto const first = static_cast<Bits>(all.values[0]);
    ZERO_UNROLL(4)
    for (std::size_t i = 0; i < words; ++i) {
      std::uint32_t const above =
          i + 1 < words ? all.values[i + 1] : std::uint32_t{std::bit_cast<Bits>(last)};
      std::uint64_t const both = std::uint64_t{above} << 32 | all.values[i];
      all.values[i] = static_cast<std::uint32_t>(both >> 8 * sizeof(T));
    }
    return std::bit_cast<T>(first);
  } else {
    auto elements = std::bit_cast<Vector<T, coded_width>>(all);
    T const first = elements.values[0];
    ZERO_UNROLL(8)
    for (std::size_t i = 0; i + 1 < coded_width; ++i) elements.values[i] = elements.values[i + 1];
    elements.values[coded_width - 1] = last;
    all = std::bit_cast<Packed<T>>(elements);
    return first;
  }
}

/// Numbers that were computed, as parameters: to nearest even.
template <class P, std::size_t width>
inline __device__ Vector<P, width> narrowed(Vector<float, width> const& numbers) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::same_as<P, bf16>) {
    Vector<std::uint32_t, width / 2> words;
    ZERO_UNROLL(8)
    for (std::size_t j = 0; j < width; j += 2) {
      // What arithmetic makes has one NaN, which this gives too.
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
          : "=r"(words.values[j / 2])
          : "f"(numbers.values[j + 1]), "f"(numbers.values[j]));
    }
    return std::bit_cast<Vector<P, width>>(words);
  } else
#endif
  {
    Vector<P, width> result;
    ZERO_UNROLL(8)
    for (std::size_t j = 0; j < width; ++j) {
      result.values[j] = kernel::detail::convert<P>(numbers.values[j]);
    }
    return result;
  }
}

/// The largest word of a thread's numbers without their signs.
/// @param here  numbers that there are; all others count as 0
inline __device__ std::uint32_t largest_magnitude(float const (&numbers)[coded_width],
                                                  unsigned here) {
  // As numbers with a sign, those above 0 are the largest; as others, those below it.
  std::int32_t above = 0;
  std::uint32_t all = 0;
  ZERO_UNROLL(8)
  for (float const& number : numbers) {
    std::uint32_t const word = kernel::OneLane::bits_of(number);
    above = (std::max)(above, static_cast<std::int32_t>(word));
    all = (std::max)(all, word);
  }
  std::uint32_t top = (std::max)(static_cast<std::uint32_t>(above), all & 0x7fffffffu);
  if (here < coded_width) {
    top = 0;
    ZERO_UNROLL(8)
    for (unsigned j = 0; j < coded_width; ++j) {
      std::uint32_t const word = kernel::OneLane::bits_of(numbers[j]) & 0x7fffffffu;
      top = j < here ? (std::max)(top, word) : top;
    }
  }
  return top;
}

/// What a thread holds of a group.
template <class M, class P, class G, class S, std::size_t K>
struct CodedInput {
  using Arrays = ScaledArrays<M, P, G, S, K>;
  // Parameters that are rounded from masters are so together.
  using Beside = std::conditional_t<kernel::CodedElement<M>, P, M>;
  using Numbers = UpdateInput<coded_width, M, Beside, float, float, K>;
  using States = std::make_index_sequence<K>;
  template <class T>
  using Elements = Vector<T, coded_width>;

  /// All of a thread's elements, where they are aligned.
  __device__ void load(Arrays const& arrays, std::size_t at) {
    load_scales(arrays, at);
    load_all(arrays, [at]<class T>(Packed<T>& to, T const* from) {
      to = *reinterpret_cast<Packed<T> const*>(from + at);
    });
  }
  /// Those that there are, one by one; all others are 0.
  __device__ void load(Arrays const& arrays, std::size_t at, unsigned here) {
    load_scales(arrays, at);
    ZERO_UNROLL(1)
    for (unsigned j = 0; j < coded_width; ++j) {
      load_all(arrays, [at, j, here]<class T>(Packed<T>& to, T const* from) {
        shifted<T>(to, j < here ? from[at + j] : T{});
      });
    }
  }

  /// With numbers for codes.
  [[nodiscard]] __device__ Numbers decoded() const {
    Numbers numbers;
    numbers.master = std::bit_cast<Elements<M>>(master);
    if constexpr (Numbers::reads_parameter) {
      numbers.parameter = std::bit_cast<Elements<P>>(parameter);
    }
    widen<float>(std::bit_cast<Elements<G>>(gradient), numbers.gradient.values);
    for_states(States{}, [&](auto k) {
      using Code = typename S::template Code<k>;
      float const unit = kernel::root_unit<Code>(scales[k]);
      ZERO_UNROLL(8)
      for (unsigned j = 0; j < coded_width; ++j) {
        float const code = code_of_word<Code>(codes[k].values[j / 4], j % 4);
        numbers.state[k].values[j] = number_of_code<Code>(code, unit);
      }
    });
    return numbers;
  }

  /// Makes codes of numbers, of a scale on which the threads of the group agree. For all threads of
  /// a warp.
  /// @param here       elements that there are; all others count as 0
  /// @param random_of  random_of(k) gives the random bits of the elements of state k
  template <class RandomOf>
  __device__ void encode(Numbers const& numbers, unsigned here, RandomOf const& random_of) {
    for_states(States{}, [&](auto k) {
      using Code = typename S::template Code<k>;
      auto const& values = numbers.state[k].values;
      std::uint32_t top = largest_magnitude(values, here);
      ZERO_UNROLL(2)
      for (int distance = 1; distance < int{group_threads}; distance *= 2) {
        top = (std::max)(top, std::uint32_t{__shfl_xor_sync(~0u, top, distance)});
      }
      scales[k] = kernel::root_scale<Code>(top);
      RootEncoder<Code> const encoder(scales[k]);
      kernel::RandomBlock const random = random_of(k);
      ZERO_UNROLL(2)
      for (unsigned word = 0; word < 2; ++word) {
        std::uint32_t of[4];
        ZERO_UNROLL(4)
        for (unsigned j = 0; j < 4; ++j) {
          unsigned const place = 4 * word + j;
          float const chance = root_chance(random.words[place / 2], place % 2);
          of[j] = encoder(values[place], chance);
        }
        codes[k].values[word] = scales[k] == kernel::root_not_finite ? 0u : lowest_bytes(of);
      }
    });
  }

  /// What `encode` made, and masters and parameters: all of a thread's elements, where they are
  /// aligned.
  __device__ void store(Arrays const& arrays,
                        std::size_t at,
                        Elements<M> const& masters,
                        Elements<P> const& parameters) {
    store_scales(arrays, at);
    master = std::bit_cast<Packed<M>>(masters);
    auto published = std::bit_cast<Packed<P>>(parameters);
    store_all(arrays, published, [at]<class T>(T* to, Packed<T> const& from) {
      device::store<coded_width>(to, at, std::bit_cast<Elements<T>>(from));
    });
  }
  /// Those that there are, one by one.
  __device__ void store(Arrays const& arrays,
                        std::size_t at,
                        unsigned here,
                        Elements<M> const& masters,
                        Elements<P> const& parameters) {
    store_scales(arrays, at);
    master = std::bit_cast<Packed<M>>(masters);
    auto published = std::bit_cast<Packed<P>>(parameters);
    ZERO_UNROLL(1)
    for (unsigned j = 0; j < coded_width; ++j) {
      store_all(arrays, published, [at, j, here]<class T>(T* to, Packed<T>& from) {
        T const first = shifted<T>(from, T{});
        if (j < here) to[at + j] = first;
      });
    }
  }

  Packed<M> master;
  std::conditional_t<Numbers::reads_parameter, Packed<P>, std::uint32_t> parameter;
  Packed<G> gradient;
  Packed<S> codes[K];
  std::uint8_t scales[K];

 private:
  __device__ void load_scales(Arrays const& arrays, std::size_t at) {
    for (std::size_t k = 0; k < K; ++k) scales[k] = arrays.scales[k][at / kernel::root_group];
  }
  template <class Load>
  __device__ void load_all(Arrays const& arrays, Load const& load) {
    for (std::size_t k = 0; k < K; ++k) load(codes[k], static_cast<S const*>(arrays.state[k]));
    load(gradient, arrays.gradient);
    load(master, static_cast<M const*>(arrays.master));
    if constexpr (Numbers::reads_parameter) {
      load(parameter, static_cast<P const*>(arrays.parameter));
    }
  }
  __device__ void store_scales(Arrays const& arrays, std::size_t at) const {
    if (at % kernel::root_group != 0) return;
    for (std::size_t k = 0; k < K; ++k) arrays.scales[k][at / kernel::root_group] = scales[k];
  }
  template <class Store>
  __device__ void store_all(Arrays const& arrays, Packed<P>& published, Store const& store) {
    store(arrays.master, master);
    for (std::size_t k = 0; k < K; ++k) store(arrays.state[k], codes[k]);
    if constexpr (!std::same_as<M, P>) {
      if (arrays.parameter != nullptr) store(arrays.parameter, published);
    }
  }
};

/// The random bits of a thread's masters.
template <class M>
struct MasterDraw {
  __device__ MasterDraw(kernel::RandomStream stream, std::uint64_t first) {
    if constexpr (kernel::RandomElement<M>) {
      bits = kernel::random_bits_across<typename M::Random, coded_width>(stream, first);
    }
  }
  template <std::size_t count>
  __device__ void operator()(std::size_t j, std::uint32_t (&random)[count]) const {
    if constexpr (kernel::RandomElement<M>) {
      random[0] = kernel::bits_of_block<typename M::Random>(bits, j);
    }
  }

  kernel::RandomBlock bits;
};

/// As `update_with_random_bits`, by groups of elements: the threads of one exchange its largest
/// magnitudes, and so all threads of a warp go the same way. The last group may be a part of one.
template <class R, class M, class P, class G, class S, std::size_t K>
ZERO_KERNEL update_codes(R const rule,
                         StepTerms const* __restrict__ terms,
                         StepScalars const* __restrict__ computed,
                         ScaledArrays<M, P, G, S, K> const arrays,
                         bool const aligned) {
  constexpr unsigned stride = block_threads * coded_width;
  std::size_t const tile = static_cast<std::size_t>(blockIdx.x) * random_vectors * stride;
  std::size_t const left = arrays.count - tile;
  unsigned const count =
      left < random_vectors * stride ? static_cast<unsigned>(left) : random_vectors * stride;
  unsigned place = threadIdx.x * coded_width;  // in the tile
  unsigned here = 0;
  bool whole = false;
  CodedInput<M, P, G, S, K> input{};
  auto const load = [&] {
    here = place < count ? (std::min)(count - place, unsigned{coded_width}) : 0;
    whole = aligned && here == coded_width;
    if (whole) input.load(arrays, tile + place);
  };
  load();
  // As in `update`.
  __syncwarp();
  auto const gradient_scale = static_cast<float>(terms->gradient_scale);
  StepScalars const scalars = *computed;
  RandomStreams<K> const streams(arrays, *terms);
  if (terms->skipped != 0) return;

  // The threads of a warp go on together, as long as the first has elements.
  ZERO_UNROLL(1)
  while (place - threadIdx.x % warp_threads * coded_width < count) {
    std::size_t const at = tile + place;
    if (here != 0 && !whole) input.load(arrays, at, here);
    auto numbers = input.decoded();
    MasterDraw<M> const draw(streams.of[0], streams.first + at);
    auto const beside = update_vector(rule, scalars, gradient_scale, numbers, draw);
    Vector<P, coded_width> published;
    if constexpr (kernel::CodedElement<M>) {
      published = beside;
    } else {
      published = narrowed<P>(numbers.master);
    }
    input.encode(numbers, here, [&](std::size_t k) {
      return kernel::random_bits_across<typename S::Random, coded_width>(streams.of[k + 1],
                                                                         streams.first + at);
    });
    if (whole) {
      input.store(arrays, at, numbers.master, published);
    } else if (here != 0) {
      input.store(arrays, at, here, numbers.master, published);
    }
    place += stride;
    load();
  }
}

}  // namespace kernels

/// Enqueues the update of arrays whose states are codes, as the other `update`s do where they are
/// none: the host's bits.
/// @par Cost  one pass, in accesses of 16 bytes to the widest arrays, if all of them are aligned at
///            8 elements; else element by element. A step that is skipped reads one vector for each
///            thread, and writes nothing
template <Rule R, class M, class P, class G, class S, std::size_t K>
void update(Queue const& queue,
            R const& rule,
            StepTerms const* terms,
            StepScalars const* scalars,
            CodedUpdateArrays<M, P, G, S, K> const& arrays) {
  static_assert(kernel::LoneElement<M>, "zero: masters do not share a scale");
  kernels::ScaledArrays<M, P, G, S, K> scaled{{arrays, {}, arrays.random}, {}};
  for (std::size_t k = 0; k <= K; ++k) {
    scaled.keys[k] = kernel::random_key(arrays.random.key, k);
  }
  std::copy(arrays.scales.begin(), arrays.scales.end(), scaled.scales);
  std::size_t const vectors = ceil_div(arrays.count, kernel::root_group) * kernels::group_threads;
  Cutter const cutter(kernels::coded_width, 0);
  kernels::enqueue_update<R>(queue, arrays, cutter, [&](Cut const& cut) {
    return try_launch_tiles<kernels::update_codes<R, M, P, G, S, K>>(
        queue, 1, vectors, kernels::random_tile, rule, terms, scalars, scaled, cut.apart == 0);
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::device
