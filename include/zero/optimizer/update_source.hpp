/// @file
/// The reduced gradients that an update reads: this rank's share, or everybody's.
#pragma once

#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/gradient_store.hpp"
#include "zero/optimizer/staging.hpp"

#include <cstddef>

namespace zero::inline v0_1::detail {

/// Reduced gradients of the range of one bucket that this rank updates.
///
/// Where optimizer states are sharded, that is the share which the reduction left here. Where every
/// rank updates everything, the shares are gathered first: in place in the full gradients where
/// those are kept in the same dtype, else in staging, where they last until the next call.
/// @par Collective  where optimizer states are not sharded: yes, blocks
template <class Slots>
typename Slots::Gradient const* update_source(typename Slots::Communicator& comm,
                                              GradientStore<Slots> const& store,
                                              Staging<Slots> const& staging,
                                              BucketSpan const& bucket,
                                              std::size_t b) {
  using Gradient = typename Slots::Gradient;
  Gradient* const own = store.reduced(bucket);
  if constexpr (Slots::sharding.optimizer) {
    return own;
  } else {
    Gradient* all = nullptr;
    if constexpr (Slots::keeps_full_gradients && !Slots::reduced_shard) {
      all = store.whole_bucket(bucket);
    } else {
      all = staging.template buffer<Gradient>();
    }
    run(comm,
        {.op = Op::all_gather,
         .dtype = dtype_of<Gradient>,
         .accumulate = dtype_of<Gradient>,
         .count = static_cast<std::size_t>(bucket.shard),
         .send = own,
         .recv = all,
         .bucket = static_cast<int>(b)});
    return all;
  }
}

}  // namespace zero::inline v0_1::detail
