/// @file
/// One rank of a group that does not exist: collectives take virtual time and move nothing.
#pragma once

#include "space.hpp"
#include "timeline.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

namespace plan::simulate {

using namespace zero;

/// Where the ranks of a group are: the same number on each of its nodes.
struct Placement {
  int size = 1;      ///< ranks of the group
  int per_node = 1;  ///< of them on one node; the last node may have fewer
  /// Groups that do the same at the same time and share the node's adapters: with a model axis
  /// inside the node, as many as it has ranks.
  int sharing = 1;

  /// Nodes that the group is on.
  [[nodiscard]] int nodes() const noexcept { return (size + per_node - 1) / per_node; }
};

/// A collective whose time is asked for.
struct CollectiveSize {
  Op op = Op::all_gather;        ///< which
  std::uint64_t count = 0;       ///< elements, as `Collective::count`
  std::uint64_t element = 1;     ///< bytes of one, as it travels
  std::uint64_t accumulate = 1;  ///< bytes of one, as partial sums travel

  /// Bytes of the larger buffer: of all ranks' blocks, or of the one there is.
  [[nodiscard]] double bytes(int ranks) const noexcept {
    bool const many = op == Op::reduce_scatter || op == Op::all_gather || op == Op::all_to_all;
    return static_cast<double>(count * element) * (many ? ranks : 1);
  }
};

/// How long a rank's work takes, in seconds.
struct Machine {
  /// Of a collective in a group.
  std::function<CollectiveCost(Placement const&, CollectiveSize const&)> collective;
  /// Of a kernel.
  PassTime pass;
  /// Are collectives carried out by the ranks' own processors while they wait? See `Timeline`.
  bool by_ranks = false;
};

/// One rank's time and memory. See `Communicator`.
class World {
 public:
  /// @throws Error (invalid_argument) if a function is missing
  explicit World(Machine machine) : machine_(std::move(machine)), timeline_(machine_.by_ranks) {
    if (!machine_.collective || !machine_.pass) {
      fail(ErrorKind::invalid_argument,
           {"a simulated machine says how long ",
            machine_.collective ? "kernels" : "collectives",
            " take"});
    }
  }
  World(World const&) = delete;
  World& operator=(World const&) = delete;

  /// What a collective costs.
  [[nodiscard]] CollectiveCost cost(Placement const& placement, CollectiveSize const& size) const {
    return machine_.collective(placement, size);
  }
  /// Virtual time of the rank.
  [[nodiscard]] Timeline& timeline() noexcept { return timeline_; }
  /// Memory of the rank's device.
  [[nodiscard]] Space space() noexcept { return {machine_.pass, timeline_}; }
  /// The memory slot of its optimizers.
  [[nodiscard]] Owned<Allocator> memory() noexcept { return {Allocator(memory_)}; }

 private:
  Machine machine_;
  Timeline timeline_;
  Memory memory_;
};

/// A communicator of one rank, on which a whole optimizer runs: its own partition, buckets,
/// prefetcher and step, in virtual time and without the model's memory.
///
///     using namespace plan::simulate;
///     World world{{.collective = [](Placement const& group, CollectiveSize const& one) {
///                    return CollectiveCost{20e-6, one.bytes(group.size) / 50e9};
///                  },
///                  .pass = [](double bytes, std::string_view) { return 4e-6 + bytes / 2e12; }}};
///     Communicator comm{world, {.size = 1024, .per_node = 8}};
///     zero::ShardedOptimizer opt{comm, tensors, zero::stage::PosGP{}, world.memory()};
///     opt.adopt_parameters();
///
/// All ranks are taken to be in the same state at the same time, with gradients of zeros: sums of
/// the words of control are this rank's times the number of ranks. Ranks that are late are not
/// simulated. All communicators of a world are one rank's, and share its links: collectives that
/// are under way at once take as long as one after another, in the order of their starts.
class Communicator {
 public:
  using Space = simulate::Space;  ///< buffers are simulated memory, or real words of control

  /// When a collective ends.
  struct Ticket {
    Op op = Op::all_gather;  ///< which
    double end = 0.;         ///< seconds
  };

  /// @param world      outlives the communicator
  /// @param placement  of the group
  /// @param rank       in the group; the first one holds most
  /// @throws Error (invalid_argument) for a group without ranks, or a rank outside of it
  Communicator(World& world, Placement const& placement, int rank = 0)
      : world_(&world), placement_(placement), rank_(rank) {
    if (placement.size < 1 || placement.per_node < 1 || placement.sharing < 1) {
      fail(ErrorKind::invalid_argument,
           {"a simulated group of ",
            placement.size,
            " ranks, ",
            placement.per_node,
            " on each node, ",
            placement.sharing,
            " groups at once: each is at least 1"});
    }
    if (rank < 0 || rank >= placement.size) {
      fail(ErrorKind::invalid_argument,
           {"rank ",
            rank,
            " of a simulated group of ",
            placement.size,
            placement.size == 1 ? " rank" : " ranks"});
    }
  }

  /// Rank within the group.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// Ranks of the group.
  [[nodiscard]] int size() const noexcept { return placement_.size; }
  /// Memory of the rank's device.
  [[nodiscard]] Space space() const noexcept { return world_->space(); }

  /// Puts the collective on the queue of communication.
  /// @throws Error (invalid_argument) for a call that no group could carry out, or of floating
  ///   point in real memory, whose sums nobody knows
  Ticket start(Collective const& op);
  /// Has computation wait for it.
  void wait(Ticket& ticket) { world_->timeline().await(ticket.op, ticket.end); }

 private:
  World* world_;
  Placement placement_;
  int rank_;
};

static_assert(zero::Communicator<Communicator>);

inline Communicator::Ticket Communicator::start(Collective const& op) {
  zero::detail::check_arguments(op, rank_, placement_.size);
  CollectiveCost const taken =
      world_->cost(placement_, {op.op, op.count, size_of(op.dtype), size_of(op.accumulate)});
  Ticket const ticket{op.op, world_->timeline().communicate(op.op, taken, op.bucket)};
  if (op.count == 0 || Memory::simulated(op.recv)) return ticket;
  // Words of control: every rank brings the same.
  std::size_t const bytes = op.block_bytes();
  auto* const recv = static_cast<std::byte*>(op.recv);
  auto const* const send = static_cast<std::byte const*>(op.send);
  bool const sums = op.op == Op::reduce_scatter || op.op == Op::all_reduce;
  if (sums && op.dtype != DType::i64) {
    fail(ErrorKind::invalid_argument,
         {"a simulated ", zero::name(op.op), " of floating point in the host's memory"});
  }
  auto const own = static_cast<std::size_t>(rank_);
  switch (op.op) {
    case Op::all_gather:
      for (std::size_t r = 0; r < static_cast<std::size_t>(placement_.size); ++r) {
        if (recv + r * bytes != send) std::memcpy(recv + r * bytes, send, bytes);
      }
      break;
    case Op::all_to_all:
      for (std::size_t r = 0; r < static_cast<std::size_t>(placement_.size); ++r) {
        std::memcpy(recv + r * bytes, send + own * bytes, bytes);
      }
      break;
    case Op::broadcast:
      if (recv != send) std::memcpy(recv, send, bytes);
      break;
    case Op::reduce_scatter:
    case Op::all_reduce:
      for (std::size_t i = 0; i < op.count; ++i) {
        std::size_t const block = op.op == Op::reduce_scatter ? own * op.count : 0;
        std::int64_t const word = static_cast<std::int64_t const*>(op.send)[block + i];
        static_cast<std::int64_t*>(op.recv)[i] = static_cast<std::int64_t>(
            static_cast<std::uint64_t>(word) * static_cast<std::uint64_t>(placement_.size));
      }
      break;
  }
  return ticket;
}

}  // namespace plan::simulate
