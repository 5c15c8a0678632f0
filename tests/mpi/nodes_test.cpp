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
#include <string>
#include <thread>
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

/// Floats in a piece of the window, which is given back.
class Pooled {
 public:
  template <class Comm>
  Pooled(Comm& comm, std::size_t count)
      : allocator_(comm.allocator()),
        count_(count),
        data_(static_cast<float*>(allocator_.allocate(count * sizeof(float), 64))) {}
  Pooled(Pooled const&) = delete;
  Pooled& operator=(Pooled const&) = delete;
  ~Pooled() { allocator_.deallocate(data_, count_ * sizeof(float), 64); }
  [[nodiscard]] float* data() const { return data_; }
  [[nodiscard]] float& operator[](std::size_t i) const { return data_[i]; }

  /// What `rank` brings to a collective.
  void fill(int rank) const {
    for (std::size_t i = 0; i < count_; ++i) data_[i] = conformance::element<float>(rank, i);
  }

 private:
  zero::mpi::SharedAllocator allocator_;
  std::size_t count_;
  float* data_;
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
  Pooled const send(comm, op == Op::all_gather ? count : all);
  Pooled const recv(comm, received);
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

TEST_CASE("two nodes: memory of the windows is read where it is, not too early, not too late") {
  mpi_tests::with_group<zero::mpi::Ordered>(
      mpi_tests::world_size(), Route::two_nodes, [](auto& comm) { mpi_tests::check_pooled(comm); });
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
        Pooled const values(comm, count);
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

TEST_CASE("who hangs is named, not who waits to pass its block on") {
  if (mpi_tests::world_size() < 3) return;
  auto options = mpi_tests::options(Route::two_nodes);
  options.deadline_s = 0.5;
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  constexpr std::size_t count = 5000;
  Pooled const send(comm, count);
  Pooled const recv(comm, count * static_cast<std::size_t>(comm.size()));
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
