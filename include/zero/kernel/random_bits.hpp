/// @file
/// Random bits that depend on what is rounded, and on nothing that differs between two ways to run.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/random_key.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__AVX2__) && !defined(__CUDACC__)
#include <immintrin.h>
#elif defined(__SSE2__) && !defined(__CUDACC__)
#include <emmintrin.h>
#endif

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Four words: a counter, or the random bits that it stands for.
struct RandomBlock {
  std::uint32_t words[4];  ///< the first has the bits of the first elements, in its lowest bits
};

namespace detail {

/// The product of the lower half and a word.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr std::uint64_t product(
    std::uint64_t a, std::uint64_t b) noexcept {
#if defined(__CUDA_ARCH__)
  // In one instruction: nvcc adds the product of the upper half, which is 0.
  std::uint64_t result;
  asm("mul.wide.u32 %0, %1, %2;"
      : "=l"(result)
      : "r"(static_cast<std::uint32_t>(a)), "r"(static_cast<std::uint32_t>(b)));
  return result;
#else
  return (a & 0xffffffffu) * b;
#endif
}

// A word of each of as many blocks as an instruction multiplies, in 64 bits like its products; and
// the numbers of these blocks behind the first, in an order in which whole blocks, and neighbours,
// take two shuffles each.
#if defined(__AVX2__) && !defined(__CUDACC__)
using WordsOfBlocks = std::uint64_t __attribute__((vector_size(32)));
inline constexpr std::uint64_t order_of_blocks[] = {0, 2, 1, 3};
[[nodiscard]] ZERO_ALWAYS_INLINE WordsOfBlocks product(WordsOfBlocks a, std::uint64_t b) noexcept {
  auto const all = reinterpret_cast<__m256i>(WordsOfBlocks{} + b);
  return reinterpret_cast<WordsOfBlocks>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), all));
}
ZERO_ALWAYS_INLINE void store_blocks(WordsOfBlocks const (&words)[4], void* to) noexcept {
  // As floats, of which an instruction takes two from each of two vectors.
  auto const floats = [&](int i) { return reinterpret_cast<__m256>(words[i]); };
  __m256 const low = _mm256_shuffle_ps(floats(0), floats(1), 0x88);
  __m256 const high = _mm256_shuffle_ps(floats(2), floats(3), 0x88);
  auto* const out = static_cast<float*>(to);
  _mm256_storeu_ps(out, _mm256_shuffle_ps(low, high, 0x88));
  _mm256_storeu_ps(out + 8, _mm256_shuffle_ps(low, high, 0xdd));
}
#elif defined(__SSE2__) && !defined(__CUDACC__)
using WordsOfBlocks = std::uint64_t __attribute__((vector_size(16)));
inline constexpr std::uint64_t order_of_blocks[] = {0, 1};
[[nodiscard]] ZERO_ALWAYS_INLINE WordsOfBlocks product(WordsOfBlocks a, std::uint64_t b) noexcept {
  auto const all = reinterpret_cast<__m128i>(WordsOfBlocks{} + b);
  return reinterpret_cast<WordsOfBlocks>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), all));
}
ZERO_ALWAYS_INLINE void store_blocks(WordsOfBlocks const (&words)[4], void* to) noexcept {
  auto const floats = [&](int i) { return reinterpret_cast<__m128>(words[i]); };
  __m128 const low = _mm_shuffle_ps(floats(0), floats(1), 0x88);
  __m128 const high = _mm_shuffle_ps(floats(2), floats(3), 0x88);
  auto* const out = static_cast<float*>(to);
  _mm_storeu_ps(out, _mm_shuffle_ps(low, high, 0x88));
  _mm_storeu_ps(out + 4, _mm_shuffle_ps(low, high, 0xdd));
}
#else
using WordsOfBlocks = std::uint64_t;
inline constexpr std::uint64_t order_of_blocks[] = {0};
#endif

template <class W>
ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr void philox_round(W (&words)[4],
                                                                std::uint64_t low,
                                                                std::uint64_t high) noexcept {
  W const first = product(words[0], 0xd2511f53u);
  W const second = product(words[2], 0xcd9e8d57u);
  words[0] = (second >> 32) ^ words[1] ^ (W{} + low);
  words[1] = second;
  words[2] = (first >> 32) ^ words[3] ^ (W{} + high);
  words[3] = first;
}

/// One round of several counters.
template <class... Words>
ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr void philox_round_of_all(std::uint64_t low,
                                                                       std::uint64_t high,
                                                                       Words&... words) noexcept {
  (philox_round(words, low, high), ...);
}

/// From the words of counters to random ones, each of one block or of several; of each 64 bits, the
/// lower half counts. Written out, since what the rounds mix in is the same for all blocks.
/// Counters take turns, since a round waits for the one before it.
template <std::size_t... Round, class... Words>
ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr void philox_rounds(std::uint64_t key,
                                                                 std::index_sequence<Round...>,
                                                                 Words&... words) noexcept {
  (philox_round_of_all(key + Round * 0x9e3779b9u, (key >> 32) + Round * 0xbb67ae85u, words...),
   ...);
}
using PhiloxRounds = std::make_index_sequence<7>;

}  // namespace detail

/// Philox4x32 with 7 rounds: the block of a counter.
///
/// A function of counter and key without a state: whoever has an element has its bits, whichever
/// rank, thread or bucket that is. Blocks of neighbouring counters and keys pass all tests of
/// TestU01 from 7 rounds on. Other libraries take 10 rounds, to be on the safe side, which costs
/// three sevenths more. One block serves 8 elements with 16 bits each.
/// @par Cost    14 products of 32 bits for 128 random bits; exact on every processor
/// @par Source  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr RandomBlock philox(
    RandomBlock counter, std::uint64_t key) noexcept {
  auto const& from = counter.words;
  std::uint64_t words[4] = {from[0], from[1], from[2], from[3]};
  detail::philox_rounds(key, detail::PhiloxRounds{}, words);
  for (int i = 0; i < 4; ++i) counter.words[i] = static_cast<std::uint32_t>(words[i]);
  return counter;
}

/// The random numbers of one array of one tensor in one update.
struct RandomStream {
  std::uint64_t key = 0;    ///< of seed, tensor and array
  std::uint64_t count = 0;  ///< updates of the tensor, this one included
};

/// The stream of an array in an update. Seed and count may be words of a device.
/// @param array  `random_key` of it
/// @param seed   of the optimizer
/// @param count  updates of the tensor, this one included
[[nodiscard]] ZERO_HOST_DEVICE constexpr RandomStream random_stream(std::uint64_t array,
                                                                    std::uint64_t seed,
                                                                    std::uint64_t count) noexcept {
  return {detail::key_with(array, seed), count};
}

/// Elements whose bits are in one block, if each has 16, or 8.
template <class Bits>
inline constexpr std::size_t elements_of_block = sizeof(RandomBlock) / sizeof(Bits);

/// A block of a stream.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr RandomBlock random_block(
    RandomStream stream, std::uint64_t number) noexcept {
  return philox({{static_cast<std::uint32_t>(number),
                  static_cast<std::uint32_t>(number >> 32),
                  static_cast<std::uint32_t>(stream.count),
                  static_cast<std::uint32_t>(stream.count >> 32)}},
                stream.key);
}

/// The bits of the element at `place` of a block, from 0.
template <class Bits>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr Bits bits_of_block(
    RandomBlock const& block, std::size_t place) noexcept {
  constexpr std::size_t in_word = sizeof(std::uint32_t) / sizeof(Bits);
  std::uint32_t const word = block.words[place / in_word];
  return static_cast<Bits>(word >> (place % in_word * 8 * sizeof(Bits)));
}

/// The random bits of one element, 16 or 8 of them.
/// @param stream   of its array, in this update
/// @param element  its number in the whole tensor, or in the whole stack
template <class Bits>
[[nodiscard]] ZERO_HOST_DEVICE constexpr Bits random_bits(RandomStream stream,
                                                          std::uint64_t element) noexcept {
  constexpr std::size_t elements = elements_of_block<Bits>;
  return bits_of_block<Bits>(random_block(stream, element / elements),
                             static_cast<std::size_t>(element % elements));
}

namespace detail {

/// With what begins at `skipped` bytes of a block, a multiple of `bytes`, at its begin.
template <std::size_t bytes>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr RandomBlock from_multiple(
    RandomBlock block, unsigned skipped) noexcept {
  // No index depends on the place: a device has no array of registers.
  if constexpr (bytes <= 8) {
    block.words[0] = (skipped & 8u) != 0 ? block.words[2] : block.words[0];
    block.words[1] = (skipped & 8u) != 0 ? block.words[3] : block.words[1];
  }
  if constexpr (bytes <= 4) {
    block.words[0] = (skipped & 4u) != 0 ? block.words[1] : block.words[0];
  }
  if constexpr (bytes < 4) block.words[0] >>= skipped % 4 * 8;
  return block;
}

}  // namespace detail

/// The bits of neighbouring elements, where `bits_of_block` finds them from place 0 on.
/// @tparam count   of elements: a power of two, at most those of a block
/// @param  stream  of their array, in this update
/// @param  first   number of the first of them, as of `random_bits`; a multiple of `count`
template <class Bits, std::size_t count>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr RandomBlock random_bits_from(
    RandomStream stream, std::uint64_t first) noexcept {
  constexpr std::size_t elements = elements_of_block<Bits>;
  auto const skipped = static_cast<unsigned>(first % elements * sizeof(Bits));
  return detail::from_multiple<count * sizeof(Bits)>(random_block(stream, first / elements),
                                                     skipped);
}

/// The same from any element on: two blocks, where the number of the first is no multiple.
template <class Bits, std::size_t count>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr RandomBlock random_bits_across(
    RandomStream stream, std::uint64_t first) noexcept {
  constexpr std::size_t elements = elements_of_block<Bits>;
  auto const skipped = static_cast<unsigned>(first % elements * sizeof(Bits));
  RandomBlock block = random_block(stream, first / elements);
  if (first % count == 0) return detail::from_multiple<count * sizeof(Bits)>(block, skipped);
  RandomBlock const next = random_block(stream, first / elements + 1);
  std::uint32_t words[] = {block.words[0],
                           block.words[1],
                           block.words[2],
                           block.words[3],
                           next.words[0],
                           next.words[1],
                           next.words[2],
                           next.words[3]};
  // As above, no index depends on the place.
  for (int i = 0; i < 6; ++i) words[i] = (skipped & 8u) != 0 ? words[i + 2] : words[i];
  for (int i = 0; i < 5; ++i) words[i] = (skipped & 4u) != 0 ? words[i + 1] : words[i];
  for (int i = 0; i < 4; ++i) {
    std::uint64_t const both = std::uint64_t{words[i + 1]} << 32 | words[i];
    block.words[i] = static_cast<std::uint32_t>(both >> (skipped % 4 * 8));
  }
  return block;
}

namespace detail {

/// The bits of a block, or of twice as many as a vector W has words of, from block `number` on.
/// @param upper  the upper half of their numbers, if W has several; so that it does not change from
///               block to block, nor does what the first rounds make of it
template <class W, class Bits>
ZERO_ALWAYS_INLINE void fill_blocks(Bits* out,
                                    RandomStream stream,
                                    std::uint64_t number,
                                    std::uint64_t upper) noexcept {
  if constexpr (std::is_same_v<W, std::uint64_t>) {
    RandomBlock const block = random_block(stream, number);
    for (std::size_t i = 0; i < elements_of_block<Bits>; ++i) {
      out[i] = bits_of_block<Bits>(block, i);
    }
  } else {
    W words[4], next[4];
    __builtin_memcpy(words, order_of_blocks, sizeof(W));
    words[0] += number;
    words[1] = W{} + upper;
    words[2] = W{} + stream.count;
    words[3] = W{} + (stream.count >> 32);
    for (int i = 0; i < 4; ++i) next[i] = words[i];
    next[0] += sizeof(W) / sizeof(std::uint64_t);
    philox_rounds(stream.key, PhiloxRounds{}, words, next);
    store_blocks(words, out);
    store_blocks(next, out + elements_of_block<Bits> * sizeof(W) / sizeof(std::uint64_t));
  }
}

/// What `fill_random` does with vectors of W.
template <class W, class Bits>
void fill_in_blocks(Bits* out,
                    RandomStream stream,
                    std::uint64_t first,
                    std::size_t count) noexcept {
  constexpr std::size_t elements = elements_of_block<Bits>;
  constexpr std::size_t at_once =
      elements * (std::is_same_v<W, std::uint64_t> ? 1 : 2 * sizeof(W) / sizeof(std::uint64_t));
  std::uint64_t const upper = first / elements >> 32;
  while (count != 0) {
    auto const skipped = static_cast<std::size_t>(first % elements);
    std::size_t taken = count - count % at_once;
    if (skipped == 0 && taken != 0) {
      for (std::size_t i = 0; i < taken; i += at_once) {
        fill_blocks<W>(out + i, stream, (first + i) / elements, upper);
      }
    } else {
      Bits some[at_once];
      fill_blocks<W>(static_cast<Bits*>(some), stream, first / elements, upper);
      taken = (std::min)(count, at_once - skipped);
      std::copy_n(static_cast<Bits const*>(some) + skipped, taken, out);
    }
    out += taken;
    first += taken;
    count -= taken;
  }
}

}  // namespace detail

/// out[i] = random_bits<Bits>(stream, first + i) for i in [0, count).
/// @par Cost  one block for 16 bytes of bits; a block that is not needed whole is computed whole
template <Isa I = native, class Bits>
void fill_random(Bits* out, RandomStream stream, std::uint64_t first, std::size_t count) noexcept {
  constexpr bool vectors = (I & isa::sse2) != 0;
  using Words = std::conditional_t<vectors, detail::WordsOfBlocks, std::uint64_t>;
  // Blocks whose numbers differ in the upper half, once in 2^32 of them, go one by one. Those that
  // a vector has beyond the last element are not used.
  constexpr std::size_t elements = elements_of_block<Bits>;
  if (first / elements >> 32 == (first + count) / elements >> 32) {
    detail::fill_in_blocks<Words>(out, stream, first, count);
  } else {
    detail::fill_in_blocks<std::uint64_t>(out, stream, first, count);
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
