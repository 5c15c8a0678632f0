#include "zero/base/unanimity.hpp"

#include "support/test.hpp"

namespace {

using zero::detail::Unanimity;

bool same(std::vector<std::uint64_t> const& of_ranks) {
  std::vector<std::int64_t> sums(Unanimity::word_count);
  for (std::uint64_t const value : of_ranks) {
    std::int64_t words[Unanimity::word_count];
    Unanimity::write(value, words);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += words[i];
  }
  return Unanimity::holds(sums.data(), static_cast<std::int64_t>(of_ranks.size()));
}

TEST_CASE("unanimity: the sums tell whether all ranks bring one number") {
  for (std::uint64_t const value : {0ull, 1ull, 0xffffull, 0x123456789abcdef0ull, ~0ull}) {
    for (std::size_t ranks = 1; ranks < 9; ++ranks) {
      CHECK(same(std::vector<std::uint64_t>(ranks, value)));
      for (int bit = 0; bit < 64 && ranks > 1; ++bit) {
        std::vector<std::uint64_t> values(ranks, value);
        values[ranks / 2] ^= std::uint64_t{1} << bit;
        CHECK_FALSE(same(values));
      }
    }
  }
}

TEST_CASE("unanimity: a number that is the mean of the others is not taken for theirs") {
  CHECK_FALSE(same({1, 2, 3}));
  CHECK_FALSE(same({0, 0x8000, 0x4000, 0x4000}));
  // Nor are parts that are the mean of other ranks' parts.
  CHECK_FALSE(same({0x0001000100010001, 0x0002000200020002, 0x0003000300030003}));
}

TEST_CASE("unanimity: two million ranks of which one differs") {
  std::int64_t own[Unanimity::word_count];
  std::int64_t other[Unanimity::word_count];
  Unanimity::write(~0ull, own);
  Unanimity::write(~0ull - 1, other);
  constexpr std::int64_t ranks = 1 << 21;
  std::int64_t sums[Unanimity::word_count];
  for (std::size_t i = 0; i < Unanimity::word_count; ++i) sums[i] = own[i] * ranks;
  CHECK(Unanimity::holds(sums, ranks));
  for (std::size_t i = 0; i < Unanimity::word_count; ++i) sums[i] += other[i] - own[i];
  CHECK_FALSE(Unanimity::holds(sums, ranks));
}

}  // namespace
