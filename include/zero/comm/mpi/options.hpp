/// @file
/// How sums are formed over MPI, and what a trainer may set.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/comm/mpi/transfer.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace zero::inline v0_1::mpi {

/// Sums are added in rank order in the accumulate dtype and rounded once: the bits of `InProcess`
/// for the same ranks, whatever the transport. Between nodes every rank receives the others'
/// blocks, N-1 blocks in all, and adds them itself.
struct Ordered {
  static constexpr bool native = false;  ///< the library adds
};

/// Where all buffers of a group lie in one node's window, as `Ordered`; elsewhere MPI's own
/// reductions over chunks (`MPI_Ireduce_scatter_block`, `MPI_Iallreduce`): the order of additions
/// is MPI's, `accumulate` is ignored, and 16-bit sums are rounded to 16 bits after every addition.
/// Integer sums are exact.
struct Native {
  static constexpr bool native = true;  ///< MPI adds
};

/// Who advances transfers while the trainer computes.
enum class ProgressThread : std::uint8_t {
  off,       ///< nobody: call `progress()` now and then, as the optimizer does in its own loops
  multiple,  ///< a thread of the library; MPI must provide MPI_THREAD_MULTIPLE
  sole,      ///< the same under MPI_THREAD_SERIALIZED: the trainer calls MPI itself only while no
             ///< communicator of this library exists
};

/// Settings of a family of groups; the same on all ranks, but for `node`.
struct Options {
  /// Seconds after which a rank that nothing is heard of is given up on.
  double deadline_s = 600;
  /// Do ranks of one node share a window? If not, every rank counts as a node of its own.
  bool shared_memory = true;
  /// Treats ranks that give different numbers as if they were on different machines.
  std::optional<int> node{};
  /// Room for `allocator()` in the window of one rank. Memory that is never used costs no pages.
  std::size_t shared_bytes = 64 * MiB;
  /// Staging memory of one group on one rank, for what does not go through the window.
  std::size_t exchange_bytes = 8 * MiB;
  /// The largest message handed to MPI.
  std::size_t message_bytes = detail::largest_message;
  /// Who advances transfers meanwhile.
  ProgressThread progress_thread = ProgressThread::off;
};

/// What a group really uses, and what has gone which way on this rank.
struct Transport {
  std::string library;             ///< of MPI, by its own description
  int nodes = 0;                   ///< over which the group spreads
  int local_ranks = 0;             ///< of the group that share a window with this rank, itself too
  bool window = false;             ///< is there a shared window?
  bool progress_thread = false;    ///< does a thread advance transfers?
  std::size_t shared_bytes = 0;    ///< of the window's pool on this rank
  std::size_t shared_left = 0;     ///< of them not handed out
  std::size_t chunk_bytes = 0;     ///< the largest message of an exchange
  std::uint64_t direct_bytes = 0;  ///< read from peers' memory
  std::uint64_t exchanged_bytes = 0;  ///< received by MPI messages
  std::uint64_t native_bytes = 0;     ///< handed to MPI's own reductions
};

}  // namespace zero::inline v0_1::mpi
