/// @file
/// Options that all ranks have to give alike.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/options.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Compares what the ranks want, before anything is done in which they would wait for each other if
/// they differ. Collective over `comm`; blocks.
/// @throws Error on all ranks: (communication) if two of them differ, (invalid_argument) if one of
///   them wants what cannot be
inline void agree_on_options(
    Blocking& blocking, MPI_Comm comm, int rank, int size, Options const& options) {
  struct Facts {
    std::int64_t node;
    std::int64_t same[7];
  };
  // Ranks of 0.2 say in the first word whether MPI adds.
  constexpr char const* names[] = {"mpi::Native",
                                   "shared_memory",
                                   "shared_bytes",
                                   "exchange_bytes",
                                   "message_bytes",
                                   "node.has_value()",
                                   "sums"};
  Facts const mine{options.node.value_or(0),
                   {0,
                    options.shared_memory ? 1 : 0,
                    static_cast<std::int64_t>(options.shared_bytes),
                    static_cast<std::int64_t>(options.exchange_bytes),
                    static_cast<std::int64_t>(options.message_bytes),
                    options.node.has_value() ? 1 : 0,
                    static_cast<std::int64_t>(options.sums)}};
  zero::ErrorContext const context{.rank = rank, .operation = "construction"};
  std::vector<Facts> const all = blocking.gather(comm, size, mine);
  for (int peer = 0; peer < size; ++peer) {
    Facts const& theirs = all[static_cast<std::size_t>(peer)];
    for (std::size_t i = 0; i < std::size(names); ++i) {
      if (theirs.same[i] == all[0].same[i]) continue;
      fail(ErrorKind::communication,
           {"ranks 0 and ",
            peer,
            " were constructed with different Options: ",
            names[i],
            " is ",
            all[0].same[i],
            " and ",
            theirs.same[i]},
           context);
    }
    if (theirs.node >= 0) continue;
    fail(ErrorKind::invalid_argument,
         {"Options::node of rank ", peer, " is ", theirs.node, ", which is negative"},
         context);
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
