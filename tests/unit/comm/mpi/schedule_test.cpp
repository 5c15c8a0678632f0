#include "zero/comm/mpi/schedule.hpp"

#include "support/test.hpp"
#include "zero/comm/shared/node_bytes.hpp"

namespace schedule_test {
namespace {

using namespace zero::mpi::detail;
using zero::Collective;
using zero::Op;
using zero::detail::NodeBlocks;
using zero::mpi::Sums;

std::vector<std::vector<int>> const layouts{{7},
                                            {4, 4, 4},
                                            {0, 1, 2},
                                            {0, 0, 1, 1},
                                            {5, 2, 5, 2, 5},
                                            {0, 0, 0, 1},
                                            {0, 1, 1, 1, 2, 2},
                                            {3, 2, 1, 1, 2, 3, 3}};
constexpr Op ops[] = {
    Op::reduce_scatter, Op::all_gather, Op::all_to_all, Op::all_reduce, Op::broadcast};

/// Bytes of data that a rank sends to other nodes.
std::uint64_t bytes_sent(Schedule const& schedule,
                         Collective const& op,
                         Topology const& topology,
                         int rank) {
  std::uint64_t bytes = 0;
  for (Task const& task : schedule.tasks()) {
    if (topology.share_node(task.to, rank)) continue;
    bytes += task.count * size_of(task.rounded ? op.dtype : op.accumulate);
  }
  return bytes;
}

/// What one element is made of: ranks and places in their send buffers, in the order of additions.
using Origin = std::vector<std::pair<int, std::size_t>>;
using Chunk = std::vector<Origin>;

constexpr std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

/// Carries out the schedules of all ranks, keeping account of origins instead of values. Links and
/// lanes are queues.
struct Machine {
  struct Rank {
    Schedule schedule;
    std::vector<std::size_t> done;
    std::vector<bool> over;
    std::vector<std::uint32_t> taken, given;
    std::vector<Origin> result;
    int pass = 0;
    bool outside[2] = {};  ///< its neighbours do not see its buffers, to send and to receive

    [[nodiscard]] bool lends(From from) const { return outside[from == From::result ? 1 : 0]; }
  };

  Machine(Collective const& what, Route way, std::vector<int> const& labels, std::mt19937& random)
      : op(what), route(way), topology(labels), ranks(labels.size()) {
    bool const gathers = op.op == Op::all_gather || op.op == Op::all_to_all;
    for (int rank = 0; rank < topology.size(); ++rank) {
      Rank& one = ranks[at(rank)];
      // Chunks of four elements.
      one.schedule.build(op, route, topology, rank, 16);
      one.done.resize(one.schedule.tasks().size());
      one.over.resize(one.done.size());
      one.taken.resize(ranks.size());
      one.given.resize(ranks.size());
      one.result.resize(gathers ? op.count * ranks.size() : op.count);
      for (bool& outside : one.outside) outside = random() % 2 == 0;
    }
    for (int rank = 0; rank < topology.size(); ++rank) skip_lanes(rank);
    // In any order, until nothing moves.
    for (int still = 0; still < 4; ++still) {
      for (std::size_t turn = 0; turn < 3 * ranks.size(); ++turn) {
        int const rank = static_cast<int>(random() % ranks.size());
        for (std::size_t i = 0; i < ranks[at(rank)].done.size(); ++i) {
          if (step(rank, i)) still = 0;
        }
        while (end_pass(ranks[at(rank)], rank)) still = 0;
      }
    }
  }

  [[nodiscard]] bool is_remote(int a, int b) const { return !topology.share_node(a, b); }
  /// Neighbours read what they see: nobody gives it to them.
  void skip_lanes(int rank) {
    Rank& one = ranks[at(rank)];
    for (std::size_t i = 0; i < one.over.size(); ++i) {
      Task const& task = one.schedule.tasks()[i];
      if (task.to == rank || is_remote(task.to, rank) || one.lends(task.way)) continue;
      one.over[i] = true;
    }
  }
  /// Turns begin behind what a rank gives without chunks.
  [[nodiscard]] std::uint32_t turn_of(
      int source, int target, Rank const& gives, LaneTurns tasks, std::uint32_t turn) const {
    return is_remote(source, target) || gives.lends(From::send_buffer) ? turn : turn - tasks.sends;
  }
  bool end_pass(Rank& one, int rank) {
    if (one.pass >= passes(op, route)) return false;
    for (std::size_t i = 0; i < one.over.size(); ++i) {
      Task const& task = one.schedule.tasks()[i];
      if (task.to == rank && task.pass == one.pass && !one.over[i]) return false;
    }
    ++one.pass;
    return true;
  }

  /// A piece of a task, if its inputs are there.
  bool step(int rank, std::size_t i) {
    Rank& one = ranks[at(rank)];
    Task const& task = one.schedule.tasks()[i];
    if (one.over[i] || task.pass > one.pass) return false;
    if (task.to != rank) {
      LaneTurns const tasks = one.schedule.with(task.to).out;
      if (one.given[at(task.to)] != turn_of(rank, task.to, one, tasks, task.turn)) return false;
    }

    std::size_t const now = (std::min)(task.piece, task.count - one.done[i]);
    Chunk sum(now);
    for (int pass = 0; pass < 2; ++pass) {  // at first only looks
      for (std::uint32_t k = 0; k < task.inputs; ++k) {
        Input const& input = one.schedule.inputs(task)[k];
        Rank const& from = ranks[at(input.rank)];
        if (is_queued(rank, input)) {
          auto& queue = queues[{input.rank, rank}];
          LaneTurns const tasks = one.schedule.with(input.rank).in;
          std::uint32_t const turn = turn_of(input.rank, rank, from, tasks, input.turn);
          if (one.taken[at(input.rank)] != turn || queue.empty()) return false;
          if (pass == 0) continue;
          CHECK(queue.front().size() == now);
          append(sum, queue.front());
          queue.pop_front();
          continue;
        }
        if (input.from == From::result && input.rank != rank && from.pass < task.pass) return false;
        if (pass == 0) continue;
        std::size_t const begin = input.at + one.done[i];
        Chunk read(now);
        for (std::size_t e = 0; e < now; ++e) {
          if (input.from == From::result) {
            // A result is not read before it is there.
            CHECK_FALSE(from.result[begin + e].empty());
            read[e] = from.result[begin + e];
          } else {
            read[e] = {{input.rank, begin + e}};
          }
        }
        append(sum, read);
      }
    }
    if (task.to == rank) {
      for (std::size_t e = 0; e < now; ++e) {
        Origin& to = one.result[task.at + one.done[i] + e];
        CHECK(to.empty());  // written once
        to = sum[e];
      }
    } else {
      if (is_remote(task.to, rank)) {
        elements_sent += now;
        ++chunks_sent;
      }
      queues[{rank, task.to}].push_back(std::move(sum));
    }
    one.done[i] += now;
    if (one.done[i] < task.count) return true;
    one.over[i] = true;
    if (task.to != rank) ++one.given[at(task.to)];
    for (std::uint32_t k = 0; k < task.inputs; ++k) {
      Input const& input = one.schedule.inputs(task)[k];
      if (is_queued(rank, input)) ++one.taken[at(input.rank)];
    }
    return true;
  }
  [[nodiscard]] bool is_queued(int rank, Input const& input) const {
    return input.from == From::link ||
           (input.rank != rank && ranks[at(input.rank)].lends(input.from));
  }
  static void append(Chunk& sum, Chunk const& more) {
    for (std::size_t e = 0; e < sum.size(); ++e) {
      sum[e].insert(sum[e].end(), more[e].begin(), more[e].end());
    }
  }

  Collective op;
  Route route;
  Topology topology;
  std::vector<Rank> ranks;
  std::map<std::pair<int, int>, std::deque<Chunk>> queues;
  std::uint64_t elements_sent = 0;
  std::uint64_t chunks_sent = 0;
};

/// What each element of a result is made of, by the definition of the collective.
Origin expected(Collective const& op, int size, int target, std::size_t i) {
  Origin all;
  auto const own = at(target) * op.count;
  auto const block = static_cast<int>(i / op.count);
  switch (op.op) {
    case Op::reduce_scatter:
      for (int rank = 0; rank < size; ++rank) all.emplace_back(rank, own + i);
      break;
    case Op::all_reduce:
      for (int rank = 0; rank < size; ++rank) all.emplace_back(rank, i);
      break;
    case Op::all_gather: all.emplace_back(block, i % op.count); break;
    case Op::all_to_all: all.emplace_back(block, own + i % op.count); break;
    case Op::broadcast: all.emplace_back(op.root, i); break;
  }
  return all;
}

/// Carries a collective out, and counts what is not as it must be.
std::size_t wrong_of(Machine const& machine) {
  std::size_t wrong = 0;
  for (int rank = 0; rank < machine.topology.size(); ++rank) {
    Machine::Rank const& one = machine.ranks[at(rank)];
    for (bool const over : one.over) wrong += over ? 0 : 1;
    if (one.pass != passes(machine.op, machine.route)) ++wrong;
    for (std::size_t i = 0; i < one.result.size(); ++i) {
      if (one.result[i] != expected(machine.op, machine.topology.size(), rank, i)) ++wrong;
    }
  }
  for (auto const& [pair, queue] : machine.queues) wrong += queue.size();
  return wrong;
}

TEST_CASE("every way of every collective brings each element once, from whom it should, in order") {
  std::mt19937 random(7);
  std::size_t ways = 0;
  for (auto const& labels : layouts) {
    Topology const topology(labels);
    for (Op const op : ops) {
      for (std::size_t const count : {0u, 1u, 5u, 1000u}) {
        for (Sums const sums : {Sums::flat, Sums::chained}) {
          Collective const call{
              .op = op, .count = count, .root = op == Op::broadcast ? topology.size() - 1 : 0};
          Route const route = Routing{&topology, sums}.of(call);
          INFO(std::string(zero::name(op))
               << " of " << count << ", " << labels.size() << " ranks on " << topology.nodes()
               << " nodes, chained " << route.chained << ", relayed " << route.relayed);
          Machine const machine(call, route, labels, random);
          CHECK(wrong_of(machine) == 0);
          std::uint64_t bytes = 0;
          std::uint64_t messages = 0;
          for (int rank = 0; rank < topology.size(); ++rank) {
            Schedule const& schedule = machine.ranks[at(rank)].schedule;
            bytes += bytes_sent(schedule, call, topology, rank);
            for (int peer = 0; peer < topology.size(); ++peer) {
              messages += schedule.with(peer).chunks_out;
            }
          }
          CHECK(bytes == machine.elements_sent * sizeof(float));
          CHECK(messages == machine.chunks_sent);
          ++ways;
        }
      }
    }
  }
  CHECK(ways > 300);
}

TEST_CASE("a schedule sends the bytes that plans count on") {
  for (auto const& labels : layouts) {
    Topology const topology(labels);
    for (Sums const sums : {Sums::flat, Sums::chained}) {
      for (Op const op : {Op::reduce_scatter, Op::all_gather}) {
        Collective const call{
            .op = op, .dtype = zero::DType::bf16, .accumulate = zero::DType::f32, .count = 3001};
        Route const route = Routing{&topology, sums}.of(call);
        for (std::size_t node = 0; node < topology.nodes(); ++node) {
          std::uint64_t sent = 0;
          for (int const rank : topology.ranks(node)) {
            Schedule schedule;
            schedule.build(call, route, topology, rank, 4096);
            sent += bytes_sent(schedule, call, topology, rank);
          }
          NodeBlocks const blocks{.ranks = labels.size(),
                                  .here = topology.ranks(node).size(),
                                  .nodes = topology.nodes(),
                                  .count = call.count,
                                  .element = 2,
                                  .accumulate = 4};
          bool const last = node + 1 == topology.nodes();
          CHECK(sent == (op == Op::all_gather ? blocks.relayed()
                         : route.chained      ? blocks.chained(last)
                                              : blocks.flat()));
        }
      }
    }
  }
}

TEST_CASE("the last call reaches every rank with which there was ever a link, by an empty chunk") {
  Topology const topology({0, 1, 2});
  Schedule schedule;
  Collective const nothing{.op = Op::broadcast, .count = 0, .root = 1};
  schedule.build(nothing, {}, topology, 0, 64);
  CHECK(schedule.with(1).chunks_in == 1);
  CHECK(schedule.with(1).chunks_out == 0);
  schedule.add_empty(1, true, true);
  schedule.add_empty(2, false, true);
  CHECK(schedule.with(1).chunks_in == 1);
  CHECK(schedule.with(1).chunks_out == 1);
  CHECK(schedule.with(2).chunks_in == 1);
  CHECK(schedule.with(2).chunks_out == 0);
  CHECK(bytes_sent(schedule, nothing, topology, 0) == 0);
}

TEST_CASE("a chain pays where it saves the busiest node more than the way along the nodes costs") {
  auto const pays = [](int nodes, int per_node, std::size_t count, zero::DType dtype) {
    std::vector<int> labels;
    for (int rank = 0; rank < nodes * per_node; ++rank) labels.push_back(rank / per_node);
    if (per_node > 1) labels.pop_back();
    Topology const topology(labels);
    Collective const op{
        .op = Op::reduce_scatter, .dtype = dtype, .accumulate = zero::DType::f32, .count = count};
    return Routing{&topology}.of(op).chained;
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
}  // namespace schedule_test
