/// @file
/// How large a reservation has to be.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/plan.hpp"
#include "zero/memory/regions.hpp"

#include <cstdint>

namespace zero::inline ZERO_NAMESPACE {

/// Bytes of a reservation in which an optimizer of this plan fits, whatever lies there already:
/// what the plan says but for the communicator's, which is from elsewhere, and a page for each of
/// its blocks, which begin at one. What the trainer takes for itself comes on top. On a device,
/// construction and loading take about a MiB more for a moment.
/// @throws Error (invalid_argument) if the size does not fit in 64 bits
[[nodiscard]] inline std::uint64_t reservation_bytes(Plan const& plan) {
  // At most three arrays of a role; pools are one array each, states one for each of the rule's.
  std::uint64_t const blocks = 3 * optimizer_role_count + plan.state_arrays.size();
  MemoryBytes own = plan.memory;
  own[Role::communicator] = 0;
  return checked_add(own.total(), checked_mul(blocks, detail::Regions::page));
}

}  // namespace zero::inline ZERO_NAMESPACE
