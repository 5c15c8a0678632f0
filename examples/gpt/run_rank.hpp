/// @file
/// From the name of a precision to its runs, on one rank of any kind.
#pragma once

#include "run.hpp"

#include <stdexcept>

namespace gpt {

/// Trains as one rank of `world` under the stage and with the precision that `options` names.
/// Collective.
/// @throws std::invalid_argument  a name is unknown
template <class World, class Memory>
StageResult run_rank(World& world,
                     Memory const& memory,
                     Options const& options,
                     Text const& text,
                     std::atomic<bool> const& stop_requested,
                     ShowProgress const& show) {
  if (options.precision == "fp32") {
    return run_precision<zero::Fp32>(world, memory, options, text, stop_requested, show);
  }
  if (options.precision == "bf16") {
    return run_precision<zero::Mixed<zero::bf16>>(
        world, memory, options, text, stop_requested, show);
  }
  // A device's products are of fp32 and bf16.
  if constexpr (World::Space::host_accessible) {
    if (options.precision == "fp16") {
      return run_precision<zero::Mixed<zero::fp16>>(
          world, memory, options, text, stop_requested, show);
    }
  }
  throw std::invalid_argument("unknown precision '" + options.precision + "'");
}

}  // namespace gpt
