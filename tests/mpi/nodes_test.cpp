/// Between nodes: what goes over once per node instead of once per rank, to the byte.
#include "mpi/pooled.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"
#include "zero/comm/mpi/topology.hpp"
#include "zero/comm/shared/node_bytes.hpp"

namespace nodes_test {
namespace {

using conformance::element;
using conformance::naive_sum;
using mpi_tests::collective;
using mpi_tests::on_all;
using mpi_tests::Pooled;
using mpi_tests::Route;
using mpi_tests::wrong_of;
using zero::Op;
using zero::detail::NodeBlocks;
using zero::mpi::Sums;
using zero::mpi::detail::Topology;

/// The nodes that a route makes of this job.
Topology topology_of(Route route) {
  std::vector<int> labels;
  for (int rank = 0; rank < mpi_tests::world_size(); ++rank) {
    labels.push_back(route == Route::two_nodes ? rank % 2 : rank / 2);
  }
  return Topology(labels);
}

/// The bytes that went each way for a collective.
struct Moved {
  std::uint64_t exchanged, direct, node_sums;
};
template <class Comm>
Moved moved_by(Comm& comm, zero::Collective const& op) {
  auto const before = comm.transport();
  zero::run(comm, op);
  auto const after = comm.transport();
  return {.exchanged = after.exchanged_bytes - before.exchanged_bytes,
          .direct = after.direct_bytes - before.direct_bytes,
          .node_sums = after.node_sum_bytes - before.node_sum_bytes};
}

/// Ranks of other nodes that `rank` stands for in its own node.
std::size_t far_ranks_of(Topology const& topology, int rank) {
  std::size_t result = 0;
  for (int other = 0; other < topology.size(); ++other) {
    bool const remote = !topology.share_node(other, rank);
    if (remote && topology.delegate(topology.node(rank), other) == rank) ++result;
  }
  return result;
}

TEST_CASE("nodes: memory of the windows is read where it is, not too early, not too late") {
  for (Route const route : {Route::two_nodes, Route::chain_of_nodes}) {
    CAPTURE(mpi_tests::name(route));
    on_all(route, [](auto& comm) { mpi_tests::check_pooled(comm); });
  }
}

TEST_CASE("a node gets a block once, and its ranks read it there") {
  if (mpi_tests::world_size() < 3) return;
  Topology const topology = topology_of(Route::two_nodes);
  on_all(Route::two_nodes, [&](auto& comm) {
    constexpr std::size_t count = 30001;
    constexpr std::size_t block = count * sizeof(float);
    auto const ranks = static_cast<std::size_t>(comm.size());
    std::size_t const relayed = far_ranks_of(topology, comm.rank());
    Pooled<> const all(comm, count * ranks), own(comm, count);
    own.fill(comm.rank());
    Moved const moved = moved_by(comm, collective(Op::all_gather, count, own.data(), all.data()));
    CHECK(moved.exchanged == relayed * block);
    CHECK(moved.direct == (ranks - 1 - relayed) * block);
    CHECK(wrong_of(count * ranks, [&](std::size_t i) {
            return all[i] == element<float>(static_cast<int>(i / count), i % count);
          }) == 0);
  });
}

/// A reduce-scatter along the nodes: the bits of a sum in rank order, and one block per node and
/// target on the wire.
template <class T, class Acc>
void check_chain(zero::Mpi<>& comm, std::size_t count) {
  Topology const topology = topology_of(Route::chain_of_nodes);
  int const rank = comm.rank();
  Pooled<T> const send(comm, count * static_cast<std::size_t>(comm.size())), recv(comm, count);
  send.fill(rank);
  auto op = collective(Op::reduce_scatter, count, send.data(), recv.data());
  op.accumulate = zero::dtype_of<Acc>;
  conformance::Squares<T> squares(comm, op);
  Moved const moved = moved_by(comm, op);
  CHECK(squares.verdict(op) == "");
  CHECK(wrong_of(count, [&](std::size_t i) {
          std::size_t const at = static_cast<std::size_t>(rank) * count + i;
          T const expected = naive_sum<T, Acc>(comm.size(), at);
          return std::memcmp(&recv[i], &expected, sizeof(T)) == 0;
        }) == 0);
  std::size_t const near = topology.ranks(topology.node(rank)).size();
  std::size_t const targets = far_ranks_of(topology, rank) + 1;
  bool const first = topology.node(rank) == 0;
  bool const last = topology.node(rank) + 1 == topology.nodes();
  std::size_t const partial = first ? 0 : targets * count * sizeof(Acc);
  CHECK(moved.exchanged == partial + (last ? 0 : count * sizeof(T)));
  CHECK(moved.direct == targets * (near - 1) * count * sizeof(T));
  CHECK(moved.node_sums ==
        (last ? (targets - 1) * count * sizeof(T) : targets * count * sizeof(Acc)));
  CHECK(comm.transport().flat_because == "");
}

TEST_CASE("a chain: the sum in rank order, one block per node and target, piece by piece") {
  if (mpi_tests::world_size() < 3) return;
  for (Route const route : {Route::chain_of_nodes, Route::sole_chain}) {
    on_all(route, [](auto& comm) {
      CHECK(comm.transport().flat_because == "there was no sum yet");
      for (std::size_t const count : {1025u, 30001u, 100'003u}) {
        CAPTURE(count);
        check_chain<float, float>(comm, count);
        check_chain<zero::bf16, float>(comm, count);
        check_chain<zero::fp16, float>(comm, count);
        check_chain<float, double>(comm, count);
        check_chain<std::int64_t, std::int64_t>(comm, count);
      }
    });
  }
}

TEST_CASE("chains under way together, among copies and small sums") {
  if (mpi_tests::world_size() < 3) return;
  on_all(Route::chain_of_nodes, [](auto& comm) {
    constexpr std::size_t count = 20'011;
    auto const ranks = static_cast<std::size_t>(comm.size());
    Pooled<> const values(comm, count * ranks), gathered(comm, count * ranks);
    Pooled<> const scattered(comm, 2 * count), reduced(comm, count);
    values.fill(comm.rank());
    float const mine = 1.f;
    float sum = 0.f;
    auto const start = [&](Op op, std::size_t size, float* recv, float const* send) {
      return comm.start(collective(op, size, send, recv));
    };
    for (int round = 0; round < 20; ++round) {
      auto a = start(Op::reduce_scatter, count, scattered.data(), values.data());
      auto b = start(Op::all_gather, count, gathered.data(), values.data());
      auto c = start(Op::all_reduce, count, reduced.data(), values.data());
      auto d = start(Op::all_reduce, 1, &sum, &mine);
      auto e = start(Op::reduce_scatter, count, scattered.data() + count, values.data());
      if (round % 3 == 0) comm.wait(e);
      comm.wait(d);
      comm.wait(b);
      comm.wait(c);
      comm.wait(a);
      if (round % 3 != 0) comm.wait(e);
      CHECK(sum == static_cast<float>(ranks));
      std::size_t const own = static_cast<std::size_t>(comm.rank()) * count;
      CHECK(wrong_of(count, [&](std::size_t i) {
              float const expected = naive_sum<float, float>(comm.size(), own + i);
              return scattered[i] == expected && scattered[count + i] == expected &&
                     reduced[i] == naive_sum<float, float>(comm.size(), i);
            }) == 0);
      CHECK(wrong_of(count * ranks, [&](std::size_t i) {
              return gathered[i] == element<float>(static_cast<int>(i / count), i % count);
            }) == 0);
    }
  });
}

constexpr std::size_t of_formulas = 30'001;

/// The job's nodes, each with so many ranks but for the last one, and their blocks of bf16.
std::vector<NodeBlocks> nodes_of(int per_node) {
  int const size = mpi_tests::world_size();
  int const nodes = (size + per_node - 1) / per_node;
  std::vector<NodeBlocks> all;
  for (int node = 0; node < nodes; ++node) {
    int const here = std::min(per_node, size - node * per_node);
    all.push_back({.ranks = static_cast<std::uint64_t>(size),
                   .here = static_cast<std::uint64_t>(here),
                   .nodes = static_cast<std::uint64_t>(nodes),
                   .count = of_formulas,
                   .element = 2,
                   .accumulate = 4});
  }
  return all;
}

/// Bytes of a collective over memory of the windows that all ranks together got in chunks.
std::uint64_t exchanged(Sums sums, Op op, int per_node) {
  zero::mpi::Options const options{.deadline_s = 60,
                                   .node = mpi_tests::world_rank() / per_node,
                                   .shared_bytes = 16 * zero::MiB,
                                   .sums = sums};
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  {
    std::size_t const all = of_formulas * static_cast<std::size_t>(comm.size());
    Pooled<zero::bf16> const send(comm, all), recv(comm, all);
    send.set(zero::bf16(0.f));
    zero::run(comm, collective(op, of_formulas, send.data(), recv.data()));
  }
  std::uint64_t const own = comm.transport().exchanged_bytes;
  comm.close();
  std::uint64_t sum = 0;
  MPI_Allreduce(&own, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

/// What `bytes(node, last)` says of all nodes.
template <class Bytes>
std::uint64_t total(int per_node, Bytes const& bytes) {
  auto const nodes = nodes_of(per_node);
  std::uint64_t sum = 0;
  for (NodeBlocks const& node : nodes) sum += bytes(node, &node == &nodes.back());
  return sum;
}

std::uint64_t total_flat(int per_node) {
  return total(per_node, [](NodeBlocks const& node, bool) { return node.flat(); });
}

TEST_CASE("a flat sum and a gather send what the formulas say") {
  for (int const per_node : {1, 2, 3}) {
    CAPTURE(per_node);
    CHECK(exchanged(Sums::flat, Op::reduce_scatter, per_node) == total_flat(per_node));
    CHECK(exchanged(Sums::flat, Op::all_gather, per_node) ==
          total(per_node, [](NodeBlocks const& node, bool) { return node.relayed(); }));
  }
}

TEST_CASE("a chain sends partial sums in fp32 and results in bf16, where that is less") {
  for (int const per_node : {1, 2, 3}) {
    CAPTURE(per_node);
    auto const chained =
        total(per_node, [](NodeBlocks const& node, bool last) { return node.chained(last); });
    CHECK(exchanged(Sums::chained, Op::reduce_scatter, per_node) == chained);
    auto const nodes = nodes_of(per_node);
    std::uint64_t most = 0;
    for (NodeBlocks const& node : nodes) most = std::max(most, node.flat());
    CHECK(exchanged(Sums::automatic, Op::reduce_scatter, per_node) ==
          (nodes.front().chain_pays(most) ? chained : total_flat(per_node)));
  }
}

/// Why a sum of pooled floats went the way it did.
std::string flat_because(zero::mpi::Options const& options,
                         bool pooled = true,
                         std::size_t count = 5000) {
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  auto const ranks = static_cast<std::size_t>(comm.size());
  {
    Pooled<> const inside(comm, count * ranks);
    std::vector<float> const outside(count * ranks, 1.f);
    std::vector<float> result(count);
    float const* const send = pooled ? inside.data() : outside.data();
    zero::run(comm, collective(Op::reduce_scatter, count, send, result.data()));
    // Sums that would not be chained anyway change nothing.
    zero::run(comm, collective(Op::all_reduce, 4, outside.data(), result.data()));
  }
  std::string const reason = comm.transport().flat_because;
  comm.close();
  return reason;
}

TEST_CASE("sums are chained where that pays, and it is told why not elsewhere") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 3) return;
  auto options = mpi_tests::options(Route::chain_of_nodes);
  CHECK(flat_because(options) == "");
  CHECK(flat_because(options, true, 513) == "");
  CHECK(flat_because(options, true, 512) == "the blocks of the last sum were at most 2 KiB");
  // What peers do not see goes to them through the window.
  CHECK(flat_because(options, false) == "");
  options.sums = Sums::flat;
  CHECK(flat_because(options) == "Options::sums is flat");
  options.sums = Sums::automatic;
  // Of 3 ranks on 2 nodes a node sends 2 blocks flat and 3 in a chain, of 4 ranks 4 and 4, of 5
  // ranks on 3 nodes 6 and 5, but has to wait for two hops.
  std::string const not_worth_it = "a chain would not have paid for the last sum";
  CHECK(flat_because(options) == not_worth_it);
  CHECK(flat_because(options, true, 400'000) == (ranks < 5 ? not_worth_it : ""));
  options.sums = Sums::chained;
  options.node = mpi_tests::world_rank() % 2;
  CHECK(flat_because(options) == "ranks of a node are not consecutive in the group");
  options.node.reset();
  CHECK(flat_because(options) == "the group is on one node");
}

TEST_CASE("who hangs is named, not who waits for what it passes on") {
  struct {
    Route route;
    Op op;
    int culprit;
    std::size_t count;
    int least_ranks = 5;
    std::size_t exchange_bytes = 8 * zero::MiB;
  } const rows[] = {
      // Of large blocks more is to come than there is room for; of small ones all but the culprit
      // have passed everything on.
      {Route::chain_of_nodes, Op::reduce_scatter, 0, 300'000},
      {Route::chain_of_nodes, Op::reduce_scatter, 2, 300'000},
      {Route::chain_of_nodes, Op::reduce_scatter, 2, 5000},
      {Route::chain_of_nodes, Op::reduce_scatter, 4, 300'000},
      {Route::chain_of_nodes, Op::reduce_scatter, 4, 5000},
      // More of its block is to come than its peers have room for.
      {Route::two_nodes, Op::all_gather, 1, 300'000, 3, 256 * zero::KiB},
  };
  for (auto const& row : rows) {
    if (mpi_tests::world_size() < row.least_ranks) continue;
    CAPTURE(row.culprit);
    CAPTURE(row.count);
    auto options = mpi_tests::options(row.route);
    options.deadline_s = 0.5;
    options.exchange_bytes = row.exchange_bytes;
    zero::Mpi<> comm(MPI_COMM_WORLD, options);
    std::size_t const all = row.count * static_cast<std::size_t>(comm.size());
    Pooled<> const send(comm, all), recv(comm, all);
    auto const op = collective(row.op, row.count, send.data(), recv.data());
    zero::run(comm, op);
    std::string const message = mpi_tests::error_of([&] {
      bool const hangs = comm.rank() == row.culprit;
      if (!hangs) mpi_tests::sleep_ms(100);
      auto ticket = comm.start(op);
      if (hangs) mpi_tests::sleep_ms(1500);
      comm.wait(ticket);
    });
    std::string const named = "rank " + std::to_string(row.culprit) + " fell silent";
    CHECK_MESSAGE(mpi_tests::contains(message, named), message);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

}  // namespace
}  // namespace nodes_test
