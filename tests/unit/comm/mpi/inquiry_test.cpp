#include "zero/comm/mpi/inquiry.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace inquiry_test {
namespace {

using namespace zero::mpi::detail;

constexpr std::uint64_t asked = 9;

/// Two ranks on a node.
Topology pairs(std::size_t nodes) {
  std::vector<int> labels;
  for (std::size_t rank = 0; rank < 2 * nodes; ++rank) labels.push_back(static_cast<int>(rank / 2));
  return Topology(labels);
}

TEST_CASE("a story is complete with its last node, and not before") {
  std::mt19937 random(18);
  for (std::size_t nodes = 2; nodes <= 20; ++nodes) {
    Topology const topology = pairs(nodes);
    for (int trial = 0; trial < 40; ++trial) {
      Inquiry inquiry(topology);
      std::vector<std::uint8_t> inside(nodes, 0);
      bool all = false;
      for (int notices = 0; notices < 400 && !all; ++notices) {
        std::size_t const node = random() % nodes;
        Notice notice{.kind = Notice::Kind::answer,
                      .rank = static_cast<int>(2 * node + random() % 2),
                      .sequence = asked};
        // Of its own node, and of one round.
        auto const round =
            static_cast<std::uint32_t>(random() % static_cast<unsigned>(rounds(nodes)));
        bool const own = random() % 4 == 0;
        notice.heard = (own ? 1u : 0u) | (random() % 8 == 0 ? 2u << round : 0u);
        if (own) inside[node] = 1;
        if (notice.heard > 1) {
          for (std::size_t back = 0; back < std::size_t{1} << round; ++back) {
            inside[(telling_in(static_cast<int>(round), node, nodes) + nodes - back) % nodes] = 1;
          }
        }
        notice.known = Summary::of(notice.rank, {.sequence = asked, .count = 3}, false);
        inquiry.hear(notice);
        all = true;
        for (std::uint8_t const one : inside) all = all && one != 0;
        REQUIRE((inquiry.all(asked) != nullptr) == all);
        REQUIRE(inquiry.all(asked + 1) == nullptr);
      }
      CHECK(all);
      CHECK(inquiry.all(asked)->call.count == 3);
      inquiry.forget(asked);
      CHECK(inquiry.has_stories());
      inquiry.forget(asked + 1);
      CHECK_FALSE(inquiry.has_stories());
    }
  }
}

TEST_CASE(
    "what is known of a rank's calls: its own words, its node's, those of the node behind it") {
  Topology const topology = pairs(3);
  Inquiry inquiry(topology);
  CHECK(inquiry.posted_by(4) == 0);
  CHECK(inquiry.told_by(4) == 0);
  inquiry.hear({.kind = Notice::Kind::question, .rank = 1, .calls = 8, .near = 5, .before = 7});
  CHECK(inquiry.told_by(1) == 8);
  CHECK(inquiry.told_by(0) == 0);
  CHECK(inquiry.posted_by(0) == 5);
  CHECK(inquiry.posted_by(1) == 8);
  CHECK(inquiry.posted_by(2) == 0);
  CHECK(inquiry.posted_by(4) == 7);
  CHECK(inquiry.posted_by(5) == 7);
  CHECK(inquiry.told_by(5) == 0);
  inquiry.hear({.kind = Notice::Kind::answer, .rank = 1, .calls = 6, .near = 4, .before = 6});
  CHECK(inquiry.posted_by(1) == 8);
  CHECK(inquiry.posted_by(0) == 5);
  CHECK(inquiry.posted_by(4) == 7);
}

}  // namespace
}  // namespace inquiry_test
