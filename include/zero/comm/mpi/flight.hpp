/// @file
/// A collective under way on one rank.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::inline v0_1::mpi::detail {

/// Bytes of one source that are worked on between two looks at everything else under way.
inline constexpr std::size_t part_bytes = 256 * KiB;

/// How far this rank has come with one collective.
struct Flight {
  /// How far it has come with one peer, in elements of the present pass.
  struct Pair {
    std::size_t in = 0;
    std::size_t out = 0;
    int out_pass = 0;
  };

  std::uint64_t sequence = never;
  Collective op{};
  std::byte const* send = nullptr;  ///< the send buffer, or its copy
  std::size_t at = 0;               ///< elements of a sum that are done
  int pass = 0;
  bool matched = false;    ///< all ranks have started it and agree
  bool native = false;     ///< MPI reduces
  bool received = false;   ///< the result is complete
  bool told = false;       ///< peers know that this rank reads nothing more of theirs
  bool complete = false;   ///< and no peer reads anything of this rank's
  bool withdrawn = false;  ///< nobody waits for it: its buffers may be gone
  std::vector<Pair> pairs{};

  void begin(Collective const& what, std::uint64_t number) {
    sequence = number;
    op = what;
    at = 0;
    pass = 0;
    matched = native = received = told = complete = withdrawn = false;
    for (Pair& pair : pairs) pair = {};
  }
};

}  // namespace zero::inline v0_1::mpi::detail
