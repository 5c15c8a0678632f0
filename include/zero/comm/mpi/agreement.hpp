/// @file
/// What all ranks have to have alike: version and options.
#pragma once

#include "zero/base/compare_fields.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/options.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Compares what the ranks are and want, before anything is done in which they would wait for each
/// other if they differ. Collective over `comm`; blocks.
/// @throws Error on all ranks: (communication) if some of them differ, (invalid_argument) if one of
///   them wants what cannot be
inline void agree_on_options(
    Blocking& blocking, MPI_Comm comm, int rank, int size, Options const& options) {
  // In these places in every version; 0.2 has 0 or 1 for the first of what is compared.
  static constexpr std::array<std::string_view, 7> names{"library version",
                                                         "Options::shared_memory",
                                                         "Options::shared_bytes",
                                                         "Options::exchange_bytes",
                                                         "Options::message_bytes",
                                                         "Options::node.has_value()",
                                                         "Options::sums"};
  struct Facts {
    std::int64_t node;
    std::array<std::int64_t, names.size()> same;
  };
  Facts const mine{options.node.value_or(0),
                   {zero::detail::version_number,
                    options.shared_memory ? 1 : 0,
                    static_cast<std::int64_t>(options.shared_bytes),
                    static_cast<std::int64_t>(options.exchange_bytes),
                    static_cast<std::int64_t>(options.message_bytes),
                    options.node.has_value() ? 1 : 0,
                    static_cast<std::int64_t>(options.sums)}};
  std::vector<Facts> const all = blocking.gather(comm, size, mine);
  std::vector<std::int64_t> same;
  for (Facts const& each : all) same.insert(same.end(), each.same.begin(), each.same.end());
  zero::ErrorContext const context{.rank = rank, .operation = "construction"};
  std::string const difference = zero::detail::compare_fields(names, same);
  if (!difference.empty()) {
    fail(ErrorKind::communication, {"ranks disagree on ", difference}, context);
  }
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (all[peer].node >= 0) continue;
    fail(ErrorKind::invalid_argument,
         {"Options::node of rank ", peer, " is ", all[peer].node, ", which is negative"},
         context);
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
