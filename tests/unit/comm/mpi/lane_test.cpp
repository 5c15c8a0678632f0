#include "zero/comm/mpi/lane.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <thread>

namespace lane_test {
namespace {

using zero::mpi::detail::chunks_under_way;
using zero::mpi::detail::Lane;

TEST_CASE("a lane holds two chunks and gives them in order") {
  Lane lane;
  CHECK(lane.arrived() == -1);
  for (int turn = 0; turn < 5; ++turn) {
    int const first = lane.room();
    lane.send(10);
    int const second = lane.room();
    lane.send(20);
    CHECK(first != second);
    CHECK(lane.room() == -1);
    CHECK(lane.arrived() == first);
    CHECK(lane.bytes[first] == 10);
    lane.take();
    CHECK(lane.room() == first);
    CHECK(lane.arrived() == second);
    CHECK(lane.bytes[second] == 20);
    lane.take();
    CHECK(lane.arrived() == -1);
  }
}

TEST_CASE("what a sender wrote before is there when a chunk arrives, and room is room") {
  Lane lane;
  std::uint64_t chunks[chunks_under_way][100] = {};
  constexpr std::uint64_t count = 2000;
  std::uint64_t wrong = 0;
  {
    std::jthread const sender([&] {
      for (std::uint64_t number = 1; number <= count;) {
        int const slot = lane.room();
        if (slot < 0) {
          std::this_thread::yield();
          continue;
        }
        for (std::uint64_t& word : chunks[slot]) word = number;
        lane.send(number);
        ++number;
      }
    });
    for (std::uint64_t number = 1; number <= count;) {
      int const slot = lane.arrived();
      if (slot < 0) {
        std::this_thread::yield();
        continue;
      }
      if (lane.bytes[slot] != number) ++wrong;
      for (std::uint64_t const word : chunks[slot]) wrong += word == number ? 0u : 1u;
      lane.take();
      ++number;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace lane_test
