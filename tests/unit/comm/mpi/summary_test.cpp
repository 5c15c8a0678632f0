#include "zero/comm/mpi/summary.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace summary_test {
namespace {

using namespace zero::mpi::detail;

/// Calls of a few kinds, so that any two may be alike or differ.
std::vector<Call> some_calls(int ranks, std::mt19937& random, unsigned kinds) {
  std::vector<Call> calls(static_cast<std::size_t>(ranks));
  for (Call& call : calls) {
    call = {.sequence = 5, .count = random() % kinds};
    call.send_at = random() % 8 == 0 ? outside : inlined;
    call.recv_at = random() % 8 == 0 ? outside : 64;
  }
  return calls;
}

Summary of_range(std::vector<Call> const& calls, std::size_t first, std::size_t count) {
  Summary result;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t const rank = (first + i) % calls.size();
    result.add(Summary::of(static_cast<int>(rank), calls[rank], rank % 3 == 0));
  }
  return result;
}

/// Compares with a look at every call.
bool is_right(Summary const& summary,
              std::vector<Call> const& calls,
              std::vector<std::uint8_t> const& inside) {
  int low = -1;
  int differs = -1;
  bool sends = true;
  bool receives = true;
  for (int rank = 0; rank < static_cast<int>(calls.size()); ++rank) {
    auto const at = static_cast<std::size_t>(rank);
    if (inside[at] == 0) continue;
    if (low < 0) low = rank;
    if (differs < 0 && calls[at].count != calls[static_cast<std::size_t>(low)].count)
      differs = rank;
    sends = sends && (rank % 3 == 0 || calls[at].send_at != outside);
    receives = receives && (rank % 3 == 0 || calls[at].recv_at != outside);
  }
  auto const count = [&](int rank) { return calls[static_cast<std::size_t>(rank)].count; };
  return summary.rank == low && summary.other_rank == differs &&
         (low < 0 || summary.call.count == count(low)) &&
         (differs < 0 || summary.other.count == count(differs)) && summary.sends_seen == sends &&
         summary.receives_seen == receives;
}

TEST_CASE("summaries of any two ranges around the circle, however they overlap") {
  std::mt19937 random(16);
  std::size_t wrong = 0;
  for (int ranks = 1; ranks <= 40; ++ranks) {
    auto const size = static_cast<std::size_t>(ranks);
    std::vector<Call> const calls =
        some_calls(ranks, random, 1 + static_cast<unsigned>(random() % 3));
    for (std::size_t shift = 0; shift < size; ++shift) {
      for (std::size_t a = 0; a <= size; ++a) {
        std::size_t const b = random() % (size + 1);
        std::vector<std::uint8_t> inside(size, 0);
        for (std::size_t i = 0; i < a; ++i) inside[i] = 1;
        for (std::size_t i = 0; i < b; ++i) inside[(shift + i) % size] = 1;
        Summary one = of_range(calls, 0, a);
        Summary other = of_range(calls, shift, b);
        Summary const before = one;
        one.add(other);
        other.add(before);
        if (!is_right(one, calls, inside) || !is_right(other, calls, inside)) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("after ceil(log2 N) rounds everybody knows what all called") {
  std::mt19937 random(17);
  for (std::size_t size = 1; size <= 40; ++size) {
    auto const ranks = static_cast<int>(size);
    for (unsigned const kinds : {1u, 2u, 9u}) {
      std::vector<Call> const calls = some_calls(ranks, random, kinds);
      std::vector<Summary> known;
      for (std::size_t rank = 0; rank < size; ++rank) known.push_back(of_range(calls, rank, 1));
      int const needed = rounds(size);
      CHECK((std::size_t{1} << needed) >= size);
      CHECK((size == 1 || (std::size_t{1} << needed) / 2 < size));
      for (int round = 0; round < needed; ++round) {
        std::vector<Summary> const before = known;
        for (std::size_t rank = 0; rank < size; ++rank) {
          std::size_t const target = told_in(round, rank, size);
          CHECK(telling_in(round, target, size) == rank);
          CHECK(target != rank);
          known[target].add(before[rank]);
        }
      }
      std::size_t wrong = 0;
      for (Summary const& all : known) {
        if (!is_right(all, calls, std::vector<std::uint8_t>(size, 1))) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

}  // namespace
}  // namespace summary_test
