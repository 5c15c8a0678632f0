#include "zero/comm/mpi/route.hpp"

#include "support/test.hpp"

namespace route_test {
namespace {

using namespace zero::mpi::detail;
using zero::Collective;
using zero::Op;

std::vector<std::vector<int>> const layouts{{7},
                                            {4, 4, 4},
                                            {0, 1, 2},
                                            {0, 0, 1, 1},
                                            {5, 2, 5, 2, 5},
                                            {0, 0, 0, 1},
                                            {0, 1, 1, 1, 2, 2},
                                            {3, 2, 1, 1, 2, 3, 3}};

/// Where every element of every rank's result comes from: the contributing ranks, by element.
using Origin = std::multiset<std::pair<int, std::size_t>>;  ///< rank and place in its send buffer

/// Carries a collective out by its hops, keeping account of origins instead of values.
struct Ledger {
  Ledger(Collective const& what, Route way, std::vector<int> const& labels)
      : op(what), route(way), topology(labels) {
    std::size_t const ranks = labels.size();
    bool const gathers = op.op == Op::all_gather || op.op == Op::all_to_all;
    results.assign(ranks, std::vector<Origin>(gathers ? op.count * ranks : op.count));
    for (int pass = 0; pass < passes(op, route); ++pass) run(pass);
  }

  void run(int pass) {
    auto const before = results;
    for (int target = 0; target < topology.size(); ++target) {
      for (int source = 0; source < topology.size(); ++source) {
        Hop const hop = zero::mpi::detail::hop(op, route, topology, pass, source, target);
        if (hop.part.count == 0) continue;
        if (!topology.share_node(hop.holder, target)) ++blocks_between_nodes;
        if (hop.holder != source) CHECK(topology.share_node(hop.holder, target));
        for (std::size_t i = 0; i < hop.part.count; ++i) take(before, hop, pass, source, target, i);
      }
    }
  }

  void take(std::vector<std::vector<Origin>> const& before,
            Hop const& hop,
            int pass,
            int source,
            int target,
            std::size_t i) {
    auto const at = [](int rank) { return static_cast<std::size_t>(rank); };
    Origin& to = results[at(target)][hop.part.to + i];
    std::size_t const from = hop.part.from + i;
    if (hop.part.result) {
      Origin const& held = before[at(hop.holder)][from];
      // A result is not read before it is there, and written once.
      CHECK(!held.empty());
      CHECK(to.empty());
      to = held;
      return;
    }
    if (!is_sum(op, pass)) CHECK(to.empty());
    bool const near = topology.share_node(source, target);
    if (is_sum(op, pass) && route.by_node && !near) {
      for (int const rank : topology.ranks(topology.node(source))) to.emplace(rank, from);
    } else {
      to.emplace(source, from);
    }
  }

  Collective op;
  Route route;
  Topology topology;
  std::vector<std::vector<Origin>> results;
  std::size_t blocks_between_nodes = 0;
};

/// What each element of a result is made of, by the definition of the collective.
Origin expected(Collective const& op, int size, int target, std::size_t i) {
  Origin all;
  auto const own = static_cast<std::size_t>(target) * op.count;
  auto const block = static_cast<int>(i / op.count);
  switch (op.op) {
    case Op::reduce_scatter:
      for (int rank = 0; rank < size; ++rank) all.emplace(rank, own + i);
      break;
    case Op::all_reduce:
      for (int rank = 0; rank < size; ++rank) all.emplace(rank, i);
      break;
    case Op::all_gather: all.emplace(block, i % op.count); break;
    case Op::all_to_all: all.emplace(block, own + i % op.count); break;
    case Op::broadcast: all.emplace(op.root, i); break;
  }
  return all;
}

TEST_CASE("every way of every collective brings each element once, from whom it should") {
  for (auto const& labels : layouts) {
    for (Op const op :
         {Op::reduce_scatter, Op::all_gather, Op::all_to_all, Op::all_reduce, Op::broadcast}) {
      Collective const call{.op = op,
                            .count = op == Op::all_reduce ? 1000u : 5u,
                            .root = op == Op::broadcast ? static_cast<int>(labels.size()) - 1 : 0};
      for (Route const route : {Route{},
                                Route{.by_node = true},
                                Route{.relayed = true},
                                Route{.by_node = true, .relayed = true}}) {
        if (route.relayed && !is_relayable(call)) continue;
        Ledger const ledger(call, route, labels);
        std::size_t wrong = 0;
        for (int target = 0; target < ledger.topology.size(); ++target) {
          auto const& result = ledger.results[static_cast<std::size_t>(target)];
          for (std::size_t i = 0; i < result.size(); ++i) {
            if (result[i] != expected(call, ledger.topology.size(), target, i)) ++wrong;
          }
        }
        INFO(std::string(zero::name(op))
             << ", " << labels.size() << " ranks on " << ledger.topology.nodes()
             << " nodes, by node " << route.by_node << ", relayed " << route.relayed);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("between nodes as many blocks travel as there are other nodes, not ranks") {
  // 2 nodes of 2, then of 3 and 4.
  for (auto const& [labels, ranks] :
       {std::pair{std::vector{0, 0, 1, 1}, 4u}, std::pair{std::vector{3, 2, 2, 3, 3, 2, 3}, 7u}}) {
    for (Op const op : {Op::reduce_scatter, Op::all_gather}) {
      Collective const call{.op = op, .count = 5};
      std::size_t const flat = Ledger(call, {}, labels).blocks_between_nodes;
      Route const route = op == Op::all_gather ? Route{.relayed = true} : Route{.by_node = true};
      CHECK(Ledger(call, route, labels).blocks_between_nodes == ranks);
      CHECK(flat == (ranks == 4 ? 8u : 24u));
    }
  }
}

TEST_CASE("a chain pays where it saves the busiest node more than the way along the nodes costs") {
  auto const pays = [](int nodes, int per_node, std::size_t count, zero::DType dtype) {
    std::vector<int> labels;
    for (int rank = 0; rank < nodes * per_node; ++rank) labels.push_back(rank / per_node);
    if (per_node > 1) labels.pop_back();
    return chain_pays(
        Topology(labels),
        {.op = Op::reduce_scatter, .dtype = dtype, .accumulate = zero::DType::f32, .count = count});
  };
  // 63 ranks: the first nodes send 8 * 55 blocks flat and 63 in a chain, whose 7 hops are worth
  // 256 KiB and 8 small blocks each.
  constexpr std::size_t hops = 7 * 256 * 1024;
  static_assert(hops / ((8 * 55 - 63 - 7 * 8) * 4) == 1429);
  CHECK_FALSE(pays(8, 8, 1429, zero::DType::f32));
  CHECK(pays(8, 8, 1430, zero::DType::f32));
  // In bf16 blocks have two bytes an element and partial sums four.
  static_assert(hops / (8 * 55 * 2 - (63 + 7 * 8) * 4) == 4542);
  CHECK_FALSE(pays(8, 8, 4542, zero::DType::bf16));
  CHECK(pays(8, 8, 4543, zero::DType::bf16));
  CHECK_FALSE(pays(1, 8, 1 << 20, zero::DType::f32));
  CHECK_FALSE(pays(8, 1, 1 << 20, zero::DType::f32));
  for (auto const& labels : layouts) {
    Collective const call{.op = Op::reduce_scatter, .count = 1};
    Topology const topology(labels);
    for (int target = 0; target < topology.size(); ++target) {
      for (int source = 0; source < topology.size(); ++source) {
        if (topology.share_node(source, target)) continue;
        CHECK(hop(call, {.chained = true}, topology, 0, source, target).part.count == 0);
      }
    }
  }
}

TEST_CASE("nodes are consecutive where no rank stands between two of another") {
  CHECK(Topology({7}).is_consecutive());
  CHECK(Topology({4, 4, 4}).is_consecutive());
  CHECK(Topology({3, 1, 1, 2}).is_consecutive());
  CHECK_FALSE(Topology({0, 1, 0}).is_consecutive());
  CHECK_FALSE(Topology({3, 2, 1, 1, 2, 3, 3}).is_consecutive());
}

TEST_CASE("the ranks of a node take turns in standing for it") {
  Topology const topology({0, 0, 1, 1, 1, 1});
  CHECK(topology.nodes() == 2);
  CHECK(topology.has_neighbours());
  CHECK(topology.delegate(0, 2) == 0);
  CHECK(topology.delegate(0, 3) == 1);
  CHECK(topology.delegate(0, 4) == 0);
  CHECK(topology.delegate(0, 5) == 1);
  CHECK(topology.delegate(1, 0) == 2);
  CHECK(topology.delegate(1, 1) == 3);
  CHECK_FALSE(Topology({4, 3, 2}).has_neighbours());
}

}  // namespace
}  // namespace route_test
