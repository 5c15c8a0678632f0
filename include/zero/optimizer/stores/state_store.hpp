/// @file
/// Where master weights and optimizer states live.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stores/parameter_store.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Master weights and states of what one rank updates: its share of each bucket, or the whole
/// bucket where every rank updates everything.
template <class Slots>
class StateStore {
 public:
  using Master = typename Slots::Master;
  using State = typename Slots::State;
  static constexpr std::size_t arrays = Slots::state_arrays;
  static constexpr bool shares = Slots::form.update == StorageForm::Update::share;

  template <class ArenaT>
  ZERO_COLD StateStore(int rank, StorageElements const& elements, ArenaT& arena)
      : rank_(rank), master_(arena.template take<Master>(Role::master, elements.master)) {
    for (auto& state : states_) state = arena.template take<State>(Role::state, elements.state);
  }

  /// The elements of a bucket that this rank updates.
  [[nodiscard]] Range updated(BucketSpan const& bucket) const noexcept {
    return shares ? bucket.share(rank_) : bucket.whole();
  }
  /// Master weights of a piece of that range.
  [[nodiscard]] Master* master(BucketSpan const& bucket,
                               Segment const& piece,
                               ParameterStore<Slots> const& parameters) const {
    if constexpr (Slots::has_master) {
      return piece.in_range.in(place(bucket).in(master_));
    } else {
      return parameters.segment(bucket, piece);
    }
  }
  /// States of a piece of that range.
  [[nodiscard]] std::array<State*, arrays> states(BucketSpan const& bucket,
                                                  Segment const& piece) const {
    std::array<State*, arrays> result{};
    for (std::size_t k = 0; k != arrays; ++k) {
      result[k] = piece.in_range.in(place(bucket).in(states_[k]));
    }
    return result;
  }

 private:
  [[nodiscard]] static Place place(BucketSpan const& bucket) noexcept {
    return shares ? bucket.in_shards() : bucket.in_full();
  }

  int rank_;
  std::span<Master> master_;
  std::array<std::span<State>, arrays> states_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
