/// @file
/// What a rank owns, shown to its trainer run by run.
#pragma once

#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/parameter_store.hpp"
#include "zero/optimizer/update.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline v0_1::detail {

/// Elements brought to the host at a time; they pass through the stack.
inline constexpr std::size_t visit_chunk = 1024;

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
      std::array<Master, visit_chunk> master_chunk;
      std::array<std::array<State, visit_chunk>, arrays> state_chunks;
      for (std::size_t done = 0; done < count; done += visit_chunk) {
        std::size_t const size = std::min(visit_chunk, count - done);
        space.download(master_chunk.data(), master + done, size * sizeof(Master));
        for (std::size_t k = 0; k != arrays; ++k) {
          space.download(state_chunks[k].data(), states[k] + done, size * sizeof(State));
          views[k] = {state_chunks[k].data(), size};
        }
        visit(tensor, first + done, std::span<Master const>(master_chunk.data(), size), views);
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
