/// @file
/// A simulated machine that a cluster describes.
#pragma once

#include "../simulate/communicator.hpp"
#include "cluster.hpp"
#include "collectives.hpp"
#include "over_mpi.hpp"

#include <optional>
#include <string_view>
#include <utility>

namespace plan {

/// One rank of a cluster in virtual time.
class World : public simulate::World {
 public:
  /// @param cluster  where the rank is
  /// @param mpi      how `zero::Mpi` adds, if it carries collectives; else a library that chooses
  ///   among rings and trees
  /// @throws Error (invalid_argument) as `Cluster::validate`
  explicit World(Cluster cluster, std::optional<Sums> mpi = {})
      : simulate::World(machine_of(cluster, mpi)), cluster_(std::move(cluster)) {
    cluster_.validate();
  }

  /// What is simulated.
  [[nodiscard]] Cluster const& cluster() const noexcept { return cluster_; }

 private:
  [[nodiscard]] static simulate::Machine machine_of(Cluster const& cluster,
                                                    std::optional<Sums> mpi) {
    auto const collective = [cluster, mpi](Placement const& placement,
                                           simulate::CollectiveSize const& one) -> CollectiveCost {
      if (mpi) {
        return cost_over_mpi(
            cluster, placement, one.op, one.count, one.element, one.accumulate, *mpi);
      }
      return plan::cost(cluster, placement, one.op, static_cast<double>(one.count * one.element));
    };
    auto const pass = [device = cluster.device](double bytes, std::string_view what) {
      return device.pass(bytes, what);
    };
    return {.collective = collective, .pass = pass, .by_ranks = cluster.by_ranks};
  }

  Cluster cluster_;
};

}  // namespace plan
