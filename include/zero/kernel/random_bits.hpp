/// @file
/// Random bits that depend on what is rounded, and on nothing that differs between two ways to run.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/hash.hpp"
#include "zero/kernel/element_hash.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Four words: a counter, or the random bits that it stands for.
struct RandomBlock {
  std::uint32_t words[4];  ///< the first has the bits of the first elements, in its lowest bits
};

/// Philox4x32 with 7 rounds: the block of a counter.
///
/// A function of counter and key without a state: whoever has an element has its bits, whichever
/// rank, thread or bucket that is. Blocks of neighbouring counters and keys pass all tests of
/// TestU01 from 7 rounds on; other libraries take 10, which is a margin for games with millions of
/// draws of one number and costs two fifths more. One block serves 8 elements with 16 bits each.
/// @par Cost    14 products of 32 bits for 128 random bits; exact on every processor
/// @par Source  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr RandomBlock philox(
    RandomBlock counter, std::uint64_t key) noexcept {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 7; ++round) {
    std::uint64_t const first = std::uint64_t{0xd2511f53u} * counter.words[0];
    std::uint64_t const second = std::uint64_t{0xcd9e8d57u} * counter.words[2];
    counter = {{static_cast<std::uint32_t>(second >> 32) ^ counter.words[1] ^ low,
                static_cast<std::uint32_t>(second),
                static_cast<std::uint32_t>(first >> 32) ^ counter.words[3] ^ high,
                static_cast<std::uint32_t>(first)}};
    low += 0x9e3779b9u;
    high += 0xbb67ae85u;
  }
  return counter;
}

/// The random numbers of one array of one tensor in one update.
struct RandomStream {
  std::uint64_t key = 0;    ///< of seed, tensor and array
  std::uint64_t count = 0;  ///< updates of the tensor, this one included
};

namespace detail {

/// The next of a chain of words that make a key.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint64_t key_with(std::uint64_t key,
                                                                std::uint64_t word) noexcept {
  return stir((key ^ word) + 0x9e3779b97f4a7c15u);
}

}  // namespace detail

/// What an array of a tensor is known by: the same on all ranks and in all stages, and another
/// number for each tensor, part and array. Two are equal by chance only, once in 2^64.
/// @param tensor  its name; of a slice, the name of its stack
/// @param part    0, or where an axis of the model cuts the tensor, 1 and more: which part it is
/// @param array   0 for masters, then 1 for the rule's first state, and so on
[[nodiscard]] inline std::uint64_t random_key(std::string_view tensor,
                                              std::uint64_t part,
                                              std::uint64_t array) noexcept {
  zero::detail::Hash name;
  name.add(tensor.data(), tensor.size());
  return detail::key_with(detail::key_with(detail::key_with(0, name.value()), part), array);
}

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

/// out[i] = random_bits<Bits>(stream, first + i) for i in [0, count).
/// @par Cost  one block for 16 bytes of bits; a block that is not needed whole is computed whole
template <class Bits>
void fill_random(Bits* out, RandomStream stream, std::uint64_t first, std::size_t count) noexcept {
  constexpr std::size_t elements = elements_of_block<Bits>;
  constexpr std::size_t blocks = 8;
  Bits all[blocks * elements];
  while (count != 0) {
    std::uint64_t const number = first / elements;
    auto const skipped = static_cast<std::size_t>(first % elements);
    std::size_t const taken = (std::min)(count, blocks * elements - skipped);
    for (std::size_t b = 0; b < blocks; ++b) {
      RandomBlock const block = random_block(stream, number + b);
      for (std::size_t i = 0; i < elements; ++i) {
        all[b * elements + i] = bits_of_block<Bits>(block, i);
      }
    }
    std::copy_n(static_cast<Bits const*>(all) + skipped, taken, out);
    out += taken;
    first += taken;
    count -= taken;
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
