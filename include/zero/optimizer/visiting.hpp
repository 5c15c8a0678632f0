/// @file
/// What a rank owns, shown to its trainer run by run.
#pragma once

#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/host_chunk.hpp"
#include "zero/optimizer/parameter_store.hpp"
#include "zero/optimizer/update.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace zero::inline v0_1::detail {

/// Master weights and states of every piece this rank updates: where they lie if the host can read
/// them there, else chunk by chunk.
template <class Slots, class Visit>
void visit_pieces(std::vector<Tensor> const& tensors,
                  Partition const& partition,
                  ParameterStore<Slots> const& parameters,
                  Update<Slots> const& update,
                  typename Slots::Space const& space,
                  Visit& visit) {
  using Master = typename Slots::Master;
  using State = typename Slots::State;
  constexpr auto arrays = static_cast<std::size_t>(Slots::state_arrays);
  struct Chunks {
    HostChunk<Master, typename Slots::Space> master;
    std::array<HostChunk<State, typename Slots::Space>, arrays> states;
  };
  struct Nothing {};
  [[maybe_unused]] std::conditional_t<Slots::Space::host_accessible, Nothing, Chunks> chunks;
  auto const show = [&](BucketSpan const& bucket, Segment const& piece) {
    Tensor const& tensor = tensors[piece.tensor];
    auto const first = static_cast<std::size_t>(piece.tensor_offset);
    auto const count = static_cast<std::size_t>(piece.count);
    Master const* const master = update.master(bucket, piece, parameters);
    auto const states = update.states(bucket, piece);
    std::array<std::span<State const>, arrays> views{};
    if constexpr (Slots::Space::host_accessible) {
      for (std::size_t k = 0; k != arrays; ++k) views[k] = {states[k], count};
      visit(tensor, first, std::span<Master const>(master, count), views);
    } else {
      for (std::size_t done = 0; done < count;) {
        std::span<Master> const masters = chunks.master.first(count - done);
        space.download(masters.data(), master + done, masters.size_bytes());
        for (std::size_t k = 0; k != arrays; ++k) {
          std::span<State> const copy = chunks.states[k].first(count - done);
          space.download(copy.data(), states[k] + done, copy.size_bytes());
          views[k] = copy;
        }
        visit(tensor, first + done, std::span<Master const>(masters), views);
        done += masters.size();
      }
    }
  };
  for (BucketSpan const& bucket : partition.buckets()) {
    partition.for_each_segment(update.begin(bucket),
                               update.count(bucket),
                               [&](Segment const& piece) { show(bucket, piece); });
  }
}

}  // namespace zero::inline v0_1::detail
