/// @file
/// Where master weights and optimizer states live.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/parameter_store.hpp"

#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Master weights and states of what one rank updates: its share of each bucket, or the whole
/// bucket where every rank updates everything.
class StateStore {
 public:
  ZERO_APART ZERO_COLD StateStore(int rank,
                                  bool shares,
                                  DType master,
                                  DType state,
                                  std::size_t arrays,
                                  StorageElements const& elements,
                                  Arena& arena);

  [[nodiscard]] bool shares() const noexcept { return shares_; }
  [[nodiscard]] std::size_t arrays() const noexcept { return states_.size(); }

  /// The elements of a bucket that this rank updates.
  [[nodiscard]] Range updated(BucketSpan const& bucket) const noexcept {
    return shares_ ? bucket.share(rank_) : bucket.whole();
  }
  /// Master weights of a piece of that range.
  ZERO_APART [[nodiscard]] Array master(BucketSpan const& bucket,
                                        Segment const& piece,
                                        ParameterStore const& parameters) const {
    if (master_.first == nullptr) return {parameters.segment(bucket, piece), master_.dtype};
    return master_.from(place(bucket)).from(piece.in_range);
  }
  /// The k-th state of a piece of that range.
  [[nodiscard]] Array state(BucketSpan const& bucket, Segment const& piece, std::size_t k) const {
    return states_[k].from(place(bucket)).from(piece.in_range);
  }

 private:
  [[nodiscard]] Place place(BucketSpan const& bucket) const noexcept {
    return shares_ ? bucket.in_shards() : bucket.in_full();
  }

  int rank_;
  bool shares_;
  Array master_;  ///< null where parameters are their own masters
  std::vector<Array> states_;
};

#if ZERO_BODIES

ZERO_BODY StateStore::StateStore(int rank,
                                 bool shares,
                                 DType master,
                                 DType state,
                                 std::size_t arrays,
                                 StorageElements const& elements,
                                 Arena& arena)
    : rank_(rank), shares_(shares), master_(arena.take(Role::master, elements.master, master)) {
  for (std::size_t k = 0; k < arrays; ++k) {
    states_.push_back(arena.take(Role::state, elements.state, state));
  }
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
