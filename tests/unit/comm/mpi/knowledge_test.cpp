/// What ranks know of each other's calls: summaries that travel, questions, and how long one waits.
#include "support/test.hpp"
#include "zero/comm/mpi/inquiry.hpp"
#include "zero/comm/mpi/patience.hpp"
#include "zero/comm/mpi/summary.hpp"

namespace knowledge_test {
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

using Step = Patience::Step;
using std::chrono::milliseconds;

TEST_CASE("a wait asks after every eighth of the deadline, and blames after all of it") {
  Patience::Time const start{milliseconds(5000)};
  using Looks = std::vector<std::pair<int, Step>>;
  auto const check = [&](Patience& patience, Looks const& looks) {
    for (auto const& look : looks) {
      CAPTURE(look.first);
      CHECK(patience.look(start + milliseconds(look.first)) == look.second);
    }
  };
  Patience patience(2, start);
  check(patience, {{0, Step::wait}, {249, Step::wait}, {251, Step::ask}, {252, Step::wait}});
  for (int eighths = 2; eighths < 8; ++eighths) {
    check(patience, {{250 * eighths - 1, Step::wait}, {250 * eighths + 1, Step::ask}});
  }
  check(patience,
        {{1999, Step::wait}, {2001, Step::blame}, {2099, Step::blame}, {2101, Step::blame}});
  CHECK(patience.graces(start + milliseconds(2001)) == 0);
  CHECK(patience.graces(start + milliseconds(2099)) == 0);
  CHECK(patience.graces(start + milliseconds(2101)) == 1);
  CHECK(patience.graces(start + milliseconds(2350)) == 3);
  CHECK(patience.graces(start + std::chrono::hours(1)) == 1000);

  // What moves starts all of it again.
  Patience moved(2, start);
  check(moved, {{300, Step::ask}});
  moved.reset(start + milliseconds(1000));
  check(moved,
        {{1249, Step::wait},
         {1251, Step::ask},
         {2700, Step::ask},
         {2850, Step::ask},
         {3001, Step::blame}});

  // Who did not run for a while leaves others time to answer before blaming them.
  Patience absent(2, start);
  check(absent, {{9000, Step::ask}, {9099, Step::wait}, {9101, Step::blame}});
}

}  // namespace
}  // namespace knowledge_test
