/// @file
/// What a rank owns, shown to its trainer or filled in by it, run by run.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/assembly.hpp"
#include "zero/optimizer/stores/host_chunk.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Calls `visit(tensor, first, masters, states)` for master weights and states of a run of elements
/// that this rank updates: where they lie if the host can reach them there, else chunk by chunk.
/// @tparam fills  whether the spans are to be written
template <bool fills, class Slots, class Visit>
void visit_run(Assembly<Slots> const& parts,
               BucketSpan const& bucket,
               Segment const& piece,
               Visit& visit) {
  using Space = typename Slots::Space;
  constexpr std::size_t arrays = Slots::state_arrays;
  using Master = std::conditional_t<fills, typename Slots::Master, typename Slots::Master const>;
  using State = std::conditional_t<fills, typename Slots::State, typename Slots::State const>;
  Slice const& slice = parts.slices[piece.tensor];
  Tensor const& tensor = parts.described[slice.described];
  auto const first = static_cast<std::size_t>(slice.first + piece.in_tensor.offset());
  auto const count = static_cast<std::size_t>(piece.count);
  auto* const master = parts.states.master(bucket, piece, parts.parameters);
  auto const states = parts.states.states(bucket, piece);
  std::array<std::span<State>, arrays> views{};
  if constexpr (Space::host_accessible) {
    for (std::size_t k = 0; k != arrays; ++k) views[k] = {states[k], count};
    visit(tensor, first, std::span<Master>(master, count), views);
  } else {
    HostChunk<typename Slots::Master, Space> master_chunk;
    std::array<HostChunk<typename Slots::State, Space>, arrays> state_chunks;
    Space const& space = parts.space();
    for (std::size_t done = 0; done < count;) {
      auto const masters = master_chunk.first(count - done);
      if constexpr (!fills) space.download(masters.data(), master + done, masters.size_bytes());
      for (std::size_t k = 0; k != arrays; ++k) {
        auto const copy = state_chunks[k].first(masters.size());
        if constexpr (!fills) space.download(copy.data(), states[k] + done, copy.size_bytes());
        views[k] = copy;
      }
      visit(tensor, first + done, std::span<Master>(masters), views);
      if constexpr (fills) {
        space.upload(master + done, masters.data(), masters.size_bytes());
        for (std::size_t k = 0; k != arrays; ++k) {
          space.upload(states[k] + done, views[k].data(), views[k].size_bytes());
        }
      }
      done += masters.size();
    }
  }
}

/// Shows all that this rank updates. Local.
template <class Slots, class Visit>
void visit_owned(Assembly<Slots> const& parts, Visit& visit) {
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts.partition.for_each_segment(parts.states.updated(bucket), [&](Segment const& piece) {
      visit_run<false>(parts, bucket, piece, visit);
    });
  });
}

/// Parameters follow their master weights, bucket by bucket, on every rank. Collective.
/// @param before  called with each piece that this rank updates, before its parameters follow;
///   where it returns false, they do not
template <class Slots, class Before>
void follow_masters(Assembly<Slots>& parts, Before&& before) {
  parts.refresh.settle();
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts.partition.for_each_segment(parts.states.updated(bucket), [&](Segment const& piece) {
      if (!before(bucket, piece)) return;
      if constexpr (Slots::has_master) {
        parts.space().convert(parts.parameters.segment(bucket, piece),
                              parts.states.master(bucket, piece, parts.parameters),
                              static_cast<std::size_t>(piece.count));
      }
    });
    parts.refresh.after_update(bucket);
  });
  parts.refresh.settle();
}

/// Has all that this rank updates filled in; parameters follow on every rank. Collective.
template <class Slots, class Fill>
void fill_owned(Assembly<Slots>& parts, Fill& fill) {
  follow_masters(parts, [&](BucketSpan const& bucket, Segment const& piece) {
    visit_run<true>(parts, bucket, piece, fill);
    return true;
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
