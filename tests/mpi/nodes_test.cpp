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

/// A piece of the window that is given back.
template <class T, class Comm>
class Pooled {
 public:
  Pooled(Comm& comm, std::size_t count)
      : allocator_(comm.allocator()),
        count_(count),
        data_(static_cast<T*>(allocator_.allocate(count * sizeof(T), 64))) {}
  Pooled(Pooled const&) = delete;
  Pooled& operator=(Pooled const&) = delete;
  ~Pooled() { allocator_.deallocate(data_, count_ * sizeof(T), 64); }
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] T& operator[](std::size_t i) const { return data_[i]; }

 private:
  zero::mpi::SharedAllocator allocator_;
  std::size_t count_;
  T* data_;
};

TEST_CASE("two nodes: memory of the windows is read where it is, not too early, not too late") {
  mpi_tests::with_group<zero::mpi::Ordered>(
      mpi_tests::world_size(), Route::two_nodes, [](auto& comm) {
        for (int late = 0; late < comm.size(); ++late) {
          for (Op const op : {Op::reduce_scatter, Op::all_gather, Op::all_reduce}) {
            for (bool const in_place : {false, true}) {
              INFO(std::string(zero::name(op)) << ", in place " << in_place << ", late " << late);
              CHECK(mpi_tests::wrong_elements(comm, op, in_place, late) == 0);
            }
          }
        }
      });
}

TEST_CASE("an all-gather brings a block to a node once, and to nobody else") {
  if (mpi_tests::world_size() < 2) return;
  Topology const topology = two_nodes();
  mpi_tests::with_group<zero::mpi::Ordered>(
      mpi_tests::world_size(), Route::two_nodes, [&](auto& comm) {
        constexpr std::size_t count = 5000;
        auto const ranks = static_cast<std::size_t>(comm.size());
        Pooled<float, zero::Mpi<>> const send(comm, count);
        Pooled<float, zero::Mpi<>> const recv(comm, count * ranks);
        for (std::size_t i = 0; i < count; ++i) {
          send[i] = conformance::element<float>(comm.rank(), i);
        }
        auto const before = comm.transport();
        zero::run(comm,
                  {.op = Op::all_gather, .count = count, .send = send.data(), .recv = recv.data()});
        auto const after = comm.transport();
        std::size_t relayed = 0;
        for (int source = 0; source < comm.size(); ++source) {
          bool const far = !topology.share_node(source, comm.rank());
          if (far && topology.delegate(topology.node(comm.rank()), source) == comm.rank()) {
            ++relayed;
          }
        }
        constexpr std::size_t block = count * sizeof(float);
        CHECK(after.exchanged_bytes - before.exchanged_bytes == relayed * block);
        CHECK(after.direct_bytes - before.direct_bytes == (ranks - 1 - relayed) * block);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count * ranks; ++i) {
          auto const source = static_cast<int>(i / count);
          if (recv[i] != conformance::element<float>(source, i % count)) ++wrong;
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
        auto const ranks = static_cast<std::size_t>(comm.size());
        Pooled<float, zero::Mpi<zero::mpi::Native>> const send(comm, count * ranks);
        Pooled<float, zero::Mpi<zero::mpi::Native>> const recv(comm, count);
        for (std::size_t i = 0; i < count * ranks; ++i) {
          send[i] = conformance::element<float>(comm.rank(), i);
        }
        auto const before = comm.transport();
        zero::run(
            comm,
            {.op = Op::reduce_scatter, .count = count, .send = send.data(), .recv = recv.data()});
        auto const after = comm.transport();
        std::size_t const near = topology.ranks(topology.node(comm.rank())).size();
        std::size_t targets = 0;
        for (int target = 0; target < comm.size(); ++target) {
          bool const far = !topology.share_node(target, comm.rank());
          std::size_t const home = topology.node(comm.rank());
          if (far && topology.delegate(home, target) == comm.rank()) ++targets;
        }
        constexpr std::size_t block = count * sizeof(float);
        CHECK(after.native_bytes == before.native_bytes);
        CHECK(after.exchanged_bytes - before.exchanged_bytes == block);
        CHECK(after.direct_bytes - before.direct_bytes == (near - 1) * block);
        CHECK(after.node_sum_bytes - before.node_sum_bytes == (near > 1 ? targets * block : 0));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i) {
          std::size_t const at = static_cast<std::size_t>(comm.rank()) * count + i;
          if (recv[i] != sum_by_node(topology, comm.rank(), at)) ++wrong;
        }
        CHECK(wrong == 0);
      });
}

TEST_CASE("Native: an all-reduce over nodes is the same on every rank, bit for bit") {
  if (mpi_tests::world_size() < 3) return;
  mpi_tests::with_group<zero::mpi::Native>(
      mpi_tests::world_size(), Route::two_nodes, [&](auto& comm) {
        constexpr std::size_t count = 100'003;
        Pooled<float, zero::Mpi<zero::mpi::Native>> const values(comm, count);
        double largest = 0;
        for (int round = 0; round < 3; ++round) {
          for (std::size_t i = 0; i < count; ++i) {
            values[i] = conformance::element<float>(comm.rank(), i);
          }
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
  Pooled<float, zero::Mpi<>> const send(comm, count);
  Pooled<float, zero::Mpi<>> const recv(comm, count * static_cast<std::size_t>(comm.size()));
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
