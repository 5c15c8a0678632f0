/// @file
/// Random cases on communicators over the memory of real devices, for tests that nvcc compiles.
#pragma once

#include "case.hpp"
#include "combinations.hpp"
#include "reference.hpp"
#include "support/test.hpp"
#include "trainer.hpp"

namespace differential {

/// Has this process ranks of a group of so many? Where ranks are threads, it has all of them.
template <class World>
[[nodiscard]] bool takes_part(int ranks) {
  if constexpr (requires { World::takes_part(ranks); }) {
    return World::takes_part(ranks);
  } else {
    return true;
  }
}

/// Plays cases of a combination on at most so many ranks.
/// @tparam World  `World::run(ranks, body)` calls `body(comm, allocator)` on those of a new group
///                that this process has
template <std::size_t Combination, class World>
void check_cases(int most_ranks, std::uint64_t cases) {
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    Case const test = draw(seed, combinations[Combination], most_ranks);
    auto const expected = expect(test);
    std::atomic<bool> played{false};
    try {
      World::run(test.ranks, [&](auto& comm, auto const& allocator) {
        using C = std::remove_reference_t<decltype(comm)>;
        Trainer<Combination, C>(comm, AnyAllocator(allocator), test, expected).play();
        played = true;
      });
    } catch (std::exception const& error) {
      FAIL_CHECK(std::string(error.what()), "\n", describe(test));
    }
    CHECK(played == takes_part<World>(test.ranks));
  }
}

/// Every stage, precisions in turn.
template <class World>
void check_stages(int most_ranks, std::uint64_t cases) {
  check_cases<0, World>(most_ranks, cases);
  check_cases<6, World>(most_ranks, cases);
  check_cases<12, World>(most_ranks, cases);
  check_cases<19, World>(most_ranks, cases);
}

/// Every accumulation, memory that is lent, and tensors of two types.
template <class World>
void check_policies(int most_ranks, std::uint64_t cases) {
  check_cases<3, World>(most_ranks, cases);
  check_cases<9, World>(most_ranks, cases);
  check_cases<13, World>(most_ranks, cases);
  check_cases<15, World>(most_ranks, cases);
  check_cases<23, World>(most_ranks, cases);
  check_cases<35, World>(most_ranks, cases);
}

}  // namespace differential
