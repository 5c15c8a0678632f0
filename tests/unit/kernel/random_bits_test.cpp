#include "zero/kernel/random_bits.hpp"

#include "support/test.hpp"

namespace random_bits_test {
namespace {

namespace kernel = zero::kernel;
using kernel::RandomStream;

}  // namespace

TEST_CASE("random bits: the known answers of Random123 for Philox4x32 with 7 rounds") {
  struct Row {
    kernel::RandomBlock counter;
    std::uint64_t key;
    kernel::RandomBlock result;
  };
  std::vector<Row> const rows{
      {{{0, 0, 0, 0}}, 0, {{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}}},
      {{{~0u, ~0u, ~0u, ~0u}},
       ~std::uint64_t{0},
       {{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0x299f31d0a4093822u,
       {{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}}}};
  for (Row const& row : rows) {
    auto const block = kernel::philox(row.counter, row.key);
    for (std::size_t i = 0; i < 4; ++i) CHECK(block.words[i] == row.result.words[i]);
  }
}

TEST_CASE("random bits: an element has those of its place in its block") {
  RandomStream const stream{0x299f31d0a4093822u, 0x0370734413198a2eu};
  std::uint64_t const number = 0x05a308d3243f6a88u;
  // Whose counter is that number and then the count of updates.
  auto const block = kernel::philox({{0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}}, stream.key);
  std::uint16_t const expected16[] = {static_cast<std::uint16_t>(block.words[0]),
                                      static_cast<std::uint16_t>(block.words[0] >> 16),
                                      static_cast<std::uint16_t>(block.words[1]),
                                      static_cast<std::uint16_t>(block.words[1] >> 16),
                                      static_cast<std::uint16_t>(block.words[2]),
                                      static_cast<std::uint16_t>(block.words[2] >> 16),
                                      static_cast<std::uint16_t>(block.words[3]),
                                      static_cast<std::uint16_t>(block.words[3] >> 16)};
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(kernel::random_bits<std::uint16_t>(stream, number * 8 + i) == expected16[i]);
    CHECK(kernel::random_bits<std::uint8_t>(stream, number * 16 + 2 * i) ==
          (expected16[i] & 0xffu));
    CHECK(kernel::random_bits<std::uint8_t>(stream, number * 16 + 2 * i + 1) == expected16[i] >> 8);
  }
}

TEST_CASE_TEMPLATE("random bits: a range has the bits of its elements, wherever it begins",
                   Bits,
                   std::uint16_t,
                   std::uint8_t) {
  RandomStream const stream =
      kernel::random_stream(kernel::random_key(kernel::random_key("w", 0), 2), 1, 17);
  std::uint64_t const far = (kernel::elements_of_block<Bits> << 32) - 20;  // blocks of 33 bits
  for (std::uint64_t const begin : {std::uint64_t{0}, std::uint64_t{5}, far, far + 7}) {
    for (std::size_t count = 0; count < 300; count += count < 40 ? 1 : 37) {
      std::vector<Bits> out(count + 1, 99), of_others(count + 1, 99);
      kernel::fill_random(out.data(), stream, begin, count);
      kernel::fill_random<kernel::isa::generic>(of_others.data(), stream, begin, count);
      CHECK(out[count] == 99);
      CHECK(of_others == out);
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(out[i] == kernel::random_bits<Bits>(stream, begin + i));
      }
    }
  }
}

template <class Bits, std::size_t count>
void check_neighbours(RandomStream stream) {
  for (std::uint64_t const near : {std::uint64_t{0}, std::uint64_t{1} << 36}) {
    for (std::uint64_t first = near; first < near + 40; ++first) {
      auto const block = kernel::random_bits_across<Bits, count>(stream, first);
      for (std::size_t i = 0; i < count; ++i) {
        auto const expected = kernel::random_bits<Bits>(stream, first + i);
        CHECK(kernel::bits_of_block<Bits>(block, i) == expected);
      }
    }
  }
  std::uint64_t const far = (kernel::elements_of_block<Bits> << 32) - 32;
  for (std::uint64_t first = far; first < far + 64; first += count) {
    auto const block = kernel::random_bits_from<Bits, count>(stream, first);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(kernel::bits_of_block<Bits>(block, i) == kernel::random_bits<Bits>(stream, first + i));
    }
  }
}

TEST_CASE("random bits: those of neighbours come from one block, wherever in it they are") {
  RandomStream const stream{0x299f31d0a4093822u, 0x0370734413198a2eu};
  check_neighbours<std::uint16_t, 1>(stream);
  check_neighbours<std::uint16_t, 2>(stream);
  check_neighbours<std::uint16_t, 4>(stream);
  check_neighbours<std::uint16_t, 8>(stream);
  check_neighbours<std::uint8_t, 1>(stream);
  check_neighbours<std::uint8_t, 2>(stream);
  check_neighbours<std::uint8_t, 4>(stream);
  check_neighbours<std::uint8_t, 8>(stream);
  check_neighbours<std::uint8_t, 16>(stream);
}

TEST_CASE("random bits: seed, name, part, array and count each give other bits") {
  auto const stream = [](std::uint64_t seed,
                         std::string_view name,
                         std::uint64_t part,
                         std::uint64_t array,
                         std::uint64_t count) {
    return kernel::random_stream(
        kernel::random_key(kernel::random_key(name, part), array), seed, count);
  };
  std::vector<RandomStream> const streams{stream(0, "w", 0, 0, 1),
                                          stream(1, "w", 0, 0, 1),
                                          stream(0, "v", 0, 0, 1),
                                          stream(0, "", 0, 0, 1),
                                          stream(0, "w", 1, 0, 1),
                                          stream(0, "w", 0, 1, 1),
                                          stream(0, "w", 0, 0, 2),
                                          stream(0, "w", 0, 0, (std::uint64_t{1} << 32) + 1)};
  constexpr std::size_t count = 1 << 13;
  std::vector<std::vector<std::uint16_t>> drawn;
  for (RandomStream const& one : streams) {
    kernel::fill_random(drawn.emplace_back(count).data(), one, 0, count);
    // The same, one element further: neighbours have nothing in common.
    kernel::fill_random(drawn.emplace_back(count).data(), one, 1, count);
  }
  // Of a number of independent bits half are equal, with a deviation of half its root.
  constexpr double bits = 16. * count;
  for (std::size_t a = 0; a < drawn.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      double equal = 0;
      for (std::size_t i = 0; i < count; ++i) {
        equal += 16 - std::popcount(static_cast<std::uint16_t>(drawn[a][i] ^ drawn[b][i]));
      }
      REQUIRE(std::abs(equal - bits / 2) < 5. * std::sqrt(bits) / 2);
    }
  }
  // And each of the 16 bits is set in half of the elements.
  for (int bit = 0; bit < 16; ++bit) {
    double set = 0;
    for (std::uint16_t const h : drawn[0]) set += (h >> bit) & 1;
    REQUIRE(std::abs(set - count / 2.) < 5. * std::sqrt(double{count}) / 2);
  }
}

}  // namespace random_bits_test
