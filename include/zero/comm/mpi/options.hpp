/// @file
/// How sums are formed over MPI, and what a trainer may set.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/message.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace zero::inline ZERO_NAMESPACE::mpi {

/// Sums are added in rank order in the accumulate dtype and rounded once: the bits of `InProcess`
/// for the same ranks, whatever the transport. Between nodes a rank either receives the others'
/// blocks, N-1 blocks in all, and adds them itself, or the nodes add one after another (`Sums`).
struct Ordered {};

/// Was a choice until 0.2, and goes in 0.4: `Mpi<mpi::Native>` says what there is instead.
struct Native;

/// Which way the sums of `Ordered` go between nodes. The bits are the same.
enum class Sums : std::uint8_t {
  /// Chained where it is possible and saves the busiest node more bytes than its links carry until
  /// a piece has come to the last node, on a fast network.
  automatic,
  flat,  ///< every rank sends its block to the rank that adds: a node of R ranks sends R of N
  /// Every node adds its ranks' blocks to what the node before has sent it, in the accumulate
  /// dtype, and sends that on: one block per target, piece by piece. The last node sends the
  /// results. Needs nodes of consecutive ranks and blocks above 2 KiB; `Transport::flat_because`
  /// says what is missing.
  chained,
};

/// Who advances transfers while the trainer computes.
enum class ProgressThread : std::uint8_t {
  off,       ///< nobody: call `progress()` now and then, as the optimizer does in its own loops
  multiple,  ///< a thread of the library; MPI must provide MPI_THREAD_MULTIPLE
  sole,      ///< the same under MPI_THREAD_SERIALIZED: the trainer calls MPI itself only while no
             ///< communicator of this library exists, and there is one family of them at a time
};

/// Settings of a family of groups; the same on all ranks, but for `node`.
struct Options {
  /// Seconds after which a rank is given up on that a collective waits for, if nothing of its group
  /// moves meanwhile.
  double deadline_s = 600;
  /// Do ranks of one node share a window? If not, every rank counts as a node of its own.
  bool shared_memory = true;
  /// Treats ranks that give different numbers as if they were on different machines. Given by all
  /// ranks or by none; not negative.
  std::optional<int> node{};
  /// Room for `allocator()` in the window of one rank. Memory that is never allocated costs no
  /// pages.
  std::size_t shared_bytes = 64 * MiB;
  /// Staging memory of one group on one rank, for what does not go through the window.
  std::size_t exchange_bytes = 8 * MiB;
  /// The largest message handed to MPI; at least 72.
  std::size_t message_bytes = detail::largest_message;
  /// Who advances transfers meanwhile.
  ProgressThread progress_thread = ProgressThread::off;
  /// How ordered sums go between nodes.
  Sums sums = Sums::automatic;
};

/// What a group really uses, and what has gone which way on this rank.
struct Transport {
  std::string library;             ///< of MPI, by its own description
  int nodes = 0;                   ///< over which the group spreads
  int local_ranks = 0;             ///< of the group that share a window with this rank, itself too
  bool window = false;             ///< is there a shared window?
  bool progress_thread = false;    ///< does a thread advance transfers?
  bool always_deadline = true;     ///< do construction, split and close end by it? Always
  std::size_t shared_bytes = 0;    ///< of the window's pool on this rank
  std::size_t shared_left = 0;     ///< of them not handed out
  std::size_t chunk_bytes = 0;     ///< the largest message of an exchange
  std::uint64_t direct_bytes = 0;  ///< read from peers' memory
  std::uint64_t exchanged_bytes = 0;   ///< received in chunks
  std::uint64_t node_sum_bytes = 0;    ///< sent to other nodes as sums up to this one
  std::uint64_t data_messages = 0;     ///< sent to other nodes, with calls or data
  std::uint64_t sent_bytes = 0;        ///< in them
  std::uint64_t control_messages = 0;  ///< sent to other nodes to say what was taken, 8 bytes each
  std::string
      flat_because;  ///< why the last sum was not chained from node to node; empty if it was
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi
