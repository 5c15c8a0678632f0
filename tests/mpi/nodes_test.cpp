/// Between nodes: what goes over once per node instead of once per rank, to the byte.
#include "conformance/communicator.hpp"
#include "mpi/pooled.hpp"
#include "mpi/world.hpp"
#include "zero/comm/mpi/topology.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nodes_test {
namespace {

using mpi_tests::Route;
using zero::Op;
using zero::mpi::detail::Topology;

/// The nodes that `Route::two_nodes` makes of this job.
Topology two_nodes() {
  std::vector<int> labels;
  for (int rank = 0; rank < mpi_tests::world_size(); ++rank) labels.push_back(rank % 2);
  return Topology(labels);
}

/// Elements in a piece of the window, which is given back.
template <class T = float>
class Pooled {
 public:
  template <class Comm>
  Pooled(Comm& comm, std::size_t count)
      : allocator_(comm.allocator()),
        count_(count),
        data_(static_cast<T*>(allocator_.allocate(count * sizeof(T), 64))) {}
  Pooled(Pooled const&) = delete;
  Pooled& operator=(Pooled const&) = delete;
  ~Pooled() { allocator_.deallocate(data_, count_ * sizeof(T), 64); }
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] T& operator[](std::size_t i) const { return data_[i]; }

  /// What `rank` brings to a collective.
  void fill(int rank) const {
    for (std::size_t i = 0; i < count_; ++i) data_[i] = conformance::element<T>(rank, i);
  }

 private:
  zero::mpi::SharedAllocator allocator_;
  std::size_t count_;
  T* data_;
};

/// The result of a collective over memory of the windows, and the bytes that went each way for it.
struct Moved {
  std::vector<float> result;
  std::uint64_t exchanged;
  std::uint64_t direct;
  std::uint64_t native;
  std::uint64_t node_sums;
};

template <class Comm>
Moved moved_by(Comm& comm, Op op, std::size_t count) {
  std::size_t const all = count * static_cast<std::size_t>(comm.size());
  std::size_t const received = op == Op::all_gather ? all : count;
  Pooled<> const send(comm, op == Op::all_gather ? count : all);
  Pooled<> const recv(comm, received);
  send.fill(comm.rank());
  auto const before = comm.transport();
  zero::run(comm, {.op = op, .count = count, .send = send.data(), .recv = recv.data()});
  auto const after = comm.transport();
  return {.result = {recv.data(), recv.data() + received},
          .exchanged = after.exchanged_bytes - before.exchanged_bytes,
          .direct = after.direct_bytes - before.direct_bytes,
          .native = after.native_bytes - before.native_bytes,
          .node_sums = after.node_sum_bytes - before.node_sum_bytes};
}

/// Ranks of other nodes that `rank` stands for in its own node.
std::size_t far_ranks_of(Topology const& topology, int rank) {
  std::size_t result = 0;
  for (int other = 0; other < topology.size(); ++other) {
    bool const far = !topology.share_node(other, rank);
    if (far && topology.delegate(topology.node(rank), other) == rank) ++result;
  }
  return result;
}

TEST_CASE("nodes: memory of the windows is read where it is, not too early, not too late") {
  for (Route const route : {Route::two_nodes, Route::chain_of_nodes}) {
    CAPTURE(mpi_tests::name(route));
    mpi_tests::with_group<zero::mpi::Ordered>(
        mpi_tests::world_size(), route, [](auto& comm) { mpi_tests::check_pooled(comm); });
  }
}

TEST_CASE("an all-gather brings a block to a node once, and to nobody else") {
  if (mpi_tests::world_size() < 2) return;
  Topology const topology = two_nodes();
  mpi_tests::with_group<zero::mpi::Ordered>(
      mpi_tests::world_size(), Route::two_nodes, [&](auto& comm) {
        constexpr std::size_t count = 5000;
        constexpr std::size_t block = count * sizeof(float);
        Moved const moved = moved_by(comm, Op::all_gather, count);
        auto const ranks = static_cast<std::size_t>(comm.size());
        std::size_t const relayed = far_ranks_of(topology, comm.rank());
        CHECK(moved.exchanged == relayed * block);
        CHECK(moved.direct == (ranks - 1 - relayed) * block);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < moved.result.size(); ++i) {
          auto const source = static_cast<int>(i / count);
          if (moved.result[i] != conformance::element<float>(source, i % count)) ++wrong;
        }
        CHECK(wrong == 0);
      });
}

/// What this rank's share of a reduce-scatter must be: the sums of other nodes arrive as one
/// addend each, in the place of the rank that sent it.
float sum_by_node(Topology const& topology, int target, std::size_t at) {
  std::size_t const home = topology.node(target);
  float sum = 0;
  bool first = true;
  for (int source = 0; source < topology.size(); ++source) {
    std::size_t const node = topology.node(source);
    float addend = 0;
    if (node == home) {
      addend = conformance::element<float>(source, at);
    } else if (topology.delegate(node, target) == source) {
      bool begun = false;
      for (int const rank : topology.ranks(node)) {
        float const x = conformance::element<float>(rank, at);
        addend = begun ? addend + x : x;
        begun = true;
      }
    } else {
      continue;
    }
    sum = first ? addend : sum + addend;
    first = false;
  }
  return sum;
}

TEST_CASE("Native: each node adds first, and sends one block per target instead of one per rank") {
  if (mpi_tests::world_size() < 3) return;
  Topology const topology = two_nodes();
  mpi_tests::with_group<zero::mpi::Native>(
      mpi_tests::world_size(), Route::two_nodes, [&](auto& comm) {
        constexpr std::size_t count = 30001;
        constexpr std::size_t block = count * sizeof(float);
        Moved const moved = moved_by(comm, Op::reduce_scatter, count);
        std::size_t const near = topology.ranks(topology.node(comm.rank())).size();
        std::size_t const targets = far_ranks_of(topology, comm.rank());
        CHECK(moved.native == 0);
        CHECK(moved.exchanged == block);
        CHECK(moved.direct == (near - 1) * block);
        CHECK(moved.node_sums == (near > 1 ? targets * block : 0));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i) {
          std::size_t const at = static_cast<std::size_t>(comm.rank()) * count + i;
          if (moved.result[i] != sum_by_node(topology, comm.rank(), at)) ++wrong;
        }
        CHECK(wrong == 0);
      });
}

TEST_CASE("Native: an all-reduce over nodes is the same on every rank, bit for bit") {
  if (mpi_tests::world_size() < 3) return;
  mpi_tests::with_group<zero::mpi::Native>(
      mpi_tests::world_size(), Route::two_nodes, [&](auto& comm) {
        constexpr std::size_t count = 100'003;
        Pooled<> const values(comm, count);
        double largest = 0;
        for (int round = 0; round < 3; ++round) {
          values.fill(comm.rank());
          zero::run(
              comm,
              {.op = Op::all_reduce, .count = count, .send = values.data(), .recv = values.data()});
          for (std::size_t i = 0; i < count; ++i) {
            double sum = 0;
            double size = 0;
            for (int rank = 0; rank < comm.size(); ++rank) {
              auto const x = static_cast<double>(conformance::element<float>(rank, i));
              sum += x;
              size += std::abs(x);
            }
            double const error = std::abs(static_cast<double>(values[i]) - sum);
            largest = std::max(largest, size > 0 ? error / size : error);
          }
          std::vector<float> own(values.data(), values.data() + count);
          std::vector<float> all(count * static_cast<std::size_t>(comm.size()));
          zero::run(comm,
                    {.op = Op::all_gather, .count = count, .send = own.data(), .recv = all.data()});
          for (int rank = 0; rank < comm.size(); ++rank) {
            auto const* const theirs = all.data() + static_cast<std::size_t>(rank) * count;
            // Bits: equal values may differ in the sign of a zero.
            auto const same = [](float a, float b) {
              return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
            };
            CHECK(std::equal(own.begin(), own.end(), theirs, same));
          }
        }
        CHECK(largest < comm.size() * 0x1p-24);
        CHECK(comm.transport().native_bytes == 0);
      });
}

/// The nodes that `Route::chain_of_nodes` makes of this job.
Topology chain_of_nodes() {
  std::vector<int> labels;
  for (int rank = 0; rank < mpi_tests::world_size(); ++rank) labels.push_back(rank / 2);
  return Topology(labels);
}

/// A reduce-scatter along the nodes: the bits of a sum in rank order, and one block per node and
/// target on the wire.
template <class T, class Acc>
void check_chain(zero::Mpi<>& comm, std::size_t count) {
  Topology const topology = chain_of_nodes();
  auto const ranks = static_cast<std::size_t>(comm.size());
  int const rank = comm.rank();
  Pooled<T> const send(comm, count * ranks);
  Pooled<T> const recv(comm, count);
  send.fill(rank);
  zero::Collective op{.op = Op::reduce_scatter,
                      .dtype = zero::dtype_of<T>,
                      .accumulate = zero::dtype_of<Acc>,
                      .count = count,
                      .send = send.data(),
                      .recv = recv.data()};
  conformance::Squares<T> squares(comm, op);
  auto const before = comm.transport();
  zero::run(comm, op);
  auto const after = comm.transport();
  CHECK(squares.verdict(op) == "");
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t const at = static_cast<std::size_t>(rank) * count + i;
    T const expected = conformance::naive_sum<T, Acc>(comm.size(), at);
    if (std::memcmp(&recv[i], &expected, sizeof(T)) != 0) ++wrong;
  }
  CHECK(wrong == 0);
  std::size_t const near = topology.ranks(topology.node(rank)).size();
  std::size_t const targets = far_ranks_of(topology, rank) + 1;
  bool const first = topology.node(rank) == 0;
  bool const last = topology.node(rank) + 1 == topology.nodes();
  std::size_t const partial = first ? 0 : targets * count * sizeof(Acc);
  CHECK(after.exchanged_bytes - before.exchanged_bytes == partial + (last ? 0 : count * sizeof(T)));
  CHECK(after.direct_bytes - before.direct_bytes == targets * (near - 1) * count * sizeof(T));
  CHECK(after.node_sum_bytes - before.node_sum_bytes ==
        (last ? (targets - 1) * count * sizeof(T) : targets * count * sizeof(Acc)));
  CHECK(after.flat_because == "");
}

TEST_CASE("a chain: the sum in rank order, one block per node and target, piece by piece") {
  if (mpi_tests::world_size() < 3) return;
  for (Route const route : {Route::chain_of_nodes, Route::sole_chain}) {
    mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), route, [](auto& comm) {
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
  mpi_tests::with_group<zero::mpi::Ordered>(
      mpi_tests::world_size(), Route::chain_of_nodes, [](auto& comm) {
        constexpr std::size_t count = 20'011;
        auto const ranks = static_cast<std::size_t>(comm.size());
        Pooled<> const values(comm, count * ranks);
        Pooled<> const scattered(comm, 2 * count);
        Pooled<> const gathered(comm, count * ranks);
        Pooled<> const reduced(comm, count);
        values.fill(comm.rank());
        float const mine = 1.f;
        float sum = 0.f;
        auto const start = [&](Op op, std::size_t size, float* recv, float const* send) {
          return comm.start({.op = op, .count = size, .send = send, .recv = recv});
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
          std::size_t wrong = 0;
          auto const expect = [&](float got, float expected) {
            if (got != expected) ++wrong;
          };
          expect(sum, static_cast<float>(ranks));
          for (std::size_t i = 0; i < count; ++i) {
            std::size_t const at = static_cast<std::size_t>(comm.rank()) * count + i;
            float const expected = conformance::naive_sum<float, float>(comm.size(), at);
            expect(scattered[i], expected);
            expect(scattered[count + i], expected);
            expect(reduced[i], conformance::naive_sum<float, float>(comm.size(), i));
          }
          for (std::size_t i = 0; i < count * ranks; ++i) {
            auto const source = static_cast<int>(i / count);
            expect(gathered[i], conformance::element<float>(source, i % count));
          }
          CHECK(wrong == 0);
        }
      });
}

/// Why a sum of pooled floats went the way it did.
std::string flat_because(zero::mpi::Options const& options,
                         bool pooled = true,
                         std::size_t count = 5000) {
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  auto const ranks = static_cast<std::size_t>(comm.size());
  {
    Pooled<> const inside(comm, count * ranks);
    std::vector<float> outside(count * ranks, 1.f);
    std::vector<float> result(count);
    zero::run(comm,
              {.op = Op::reduce_scatter,
               .count = count,
               .send = pooled ? inside.data() : outside.data(),
               .recv = result.data()});
    // Sums that would not be chained anyway change nothing.
    zero::run(comm,
              {.op = Op::all_reduce, .count = 4, .send = outside.data(), .recv = result.data()});
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
  CHECK(flat_because(options, false) ==
        "a send buffer of the last sum was not in its node's window");
  options.sums = zero::mpi::Sums::flat;
  CHECK(flat_because(options) == "Options::sums is flat");
  options.sums = zero::mpi::Sums::automatic;
  // Of 3 ranks on 2 nodes a node sends 2 blocks flat and 3 in a chain, of 4 ranks 4 and 4, of 5
  // ranks on 3 nodes 6 and 5, but has to wait for two hops.
  std::string const not_worth_it = "a chain would not have paid for the last sum";
  CHECK(flat_because(options) == not_worth_it);
  CHECK(flat_because(options, true, 400'000) == (ranks < 5 ? not_worth_it : ""));
  options.sums = zero::mpi::Sums::chained;
  options.node = mpi_tests::world_rank() % 2;
  CHECK(flat_because(options) == "ranks of a node are not consecutive in the group");
  options.node.reset();
  CHECK(flat_because(options) == "the group is on one node");
  mpi_tests::with_group<zero::mpi::Native>(ranks, Route::chain_of_nodes, [](auto& comm) {
    CHECK(comm.transport().flat_because == "mpi::Native adds in an order of its own");
  });
}

TEST_CASE("who hangs in a chain is named, not who waits for what it passes on") {
  if (mpi_tests::world_size() < 5) return;
  auto options = mpi_tests::options(Route::chain_of_nodes);
  options.deadline_s = 0.5;
  // Of large blocks more is to come than there is room for; of small ones all but the culprit have
  // passed everything on.
  for (auto const& [culprit, count] :
       {std::pair{0, 300'000u}, {2, 300'000u}, {2, 5000u}, {4, 300'000u}, {4, 5000u}}) {
    CAPTURE(culprit);
    CAPTURE(count);
    zero::Mpi<> comm(MPI_COMM_WORLD, options);
    Pooled<> const send(comm, count * static_cast<std::size_t>(comm.size()));
    Pooled<> const recv(comm, count);
    zero::Collective const sum{
        .op = Op::reduce_scatter, .count = count, .send = send.data(), .recv = recv.data()};
    zero::run(comm, sum);
    std::string message;
    try {
      bool const hangs = comm.rank() == culprit;
      if (!hangs) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      auto ticket = comm.start(sum);
      if (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      comm.wait(ticket);
    } catch (zero::Error const& error) {
      message = error.what();
    }
    CHECK_MESSAGE(
        message.find("rank " + std::to_string(culprit) + " fell silent") != std::string::npos,
        message);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_CASE("who hangs is named, not who waits to pass its block on") {
  if (mpi_tests::world_size() < 3) return;
  auto options = mpi_tests::options(Route::two_nodes);
  options.deadline_s = 0.5;
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  constexpr std::size_t count = 5000;
  Pooled<> const send(comm, count);
  Pooled<> const recv(comm, count * static_cast<std::size_t>(comm.size()));
  zero::Collective const gather{
      .op = Op::all_gather, .count = count, .send = send.data(), .recv = recv.data()};
  zero::run(comm, gather);
  std::string message;
  try {
    // Rank 1 is first, so that its block is not on its way when it falls silent.
    bool const hangs = comm.rank() == 1;
    if (!hangs) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    auto ticket = comm.start(gather);
    if (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    comm.wait(ticket);
  } catch (zero::Error const& error) {
    message = error.what();
  }
  CHECK(message.find("rank 1 fell silent") != std::string::npos);
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace nodes_test
