/// @file
/// Initial values into parameters and master weights, without a second copy of either.
#pragma once

#include "zero/base/error.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/parameter_store.hpp"
#include "zero/optimizer/update.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace zero::inline v0_1::detail {

/// Elements asked for at a time; they pass through the stack.
inline constexpr std::size_t load_chunk = 1024;

/// Splits [0, count) of a tensor into chunks, asks for their values and hands them on.
template <class Values, class Take>
void load_piece(Tensor const& tensor,
                std::uint64_t first,
                std::uint64_t count,
                Values& values,
                Take const& take) {
  std::array<float, load_chunk> chunk;
  for (std::uint64_t done = 0; done < count;) {
    auto const size = static_cast<std::size_t>(std::min<std::uint64_t>(load_chunk, count - done));
    std::span<float> const out(chunk.data(), size);
    values(tensor, static_cast<std::size_t>(first + done), out);
    take(done, out);
    done += size;
  }
}

/// Rounds a chunk of values on the host and brings it to a space.
template <class T, class Space>
void upload_as(Space const& space, T* to, std::span<float const> chunk) {
  if constexpr (std::is_same_v<T, float>) {
    space.upload(to, chunk.data(), chunk.size_bytes());
  } else {
    std::array<T, load_chunk> rounded;
    for (std::size_t i = 0; i < chunk.size(); ++i) rounded[i] = T(chunk[i]);
    space.upload(to, rounded.data(), chunk.size() * sizeof(T));
  }
}

/// Asks for what this rank holds: its parameters, then its master weights, then frozen tensors.
template <class Slots, class Values>
void load(std::vector<Tensor> const& tensors,
          Partition const& partition,
          int rank,
          ParameterStore<Slots> const& parameters,
          Update<Slots> const& update,
          typename Slots::Space const& space,
          Values& values) {
  auto const load_range = [&](std::uint64_t begin, std::uint64_t count, auto const& address) {
    partition.for_each_segment(begin, count, [&](Segment const& piece) {
      auto* const to = address(piece);
      load_piece(tensors[piece.tensor],
                 piece.tensor_offset,
                 piece.count,
                 values,
                 [&](std::uint64_t at, std::span<float const> chunk) {
                   upload_as(space, to + at, chunk);
                 });
    });
  };
  for (BucketSpan const& bucket : partition.buckets()) {
    std::uint64_t const own = bucket.begin + static_cast<std::uint64_t>(rank) * bucket.shard;
    constexpr bool sharded = Slots::sharding.parameters;
    load_range(sharded ? own : bucket.begin,
               sharded ? partition.owned_count(bucket, rank) : bucket.count,
               [&](Segment const& piece) { return parameters.segment(bucket, piece); });
    if constexpr (Slots::has_master) {
      load_range(update.begin(bucket), update.count(bucket), [&](Segment const& piece) {
        return update.master(bucket, piece, parameters);
      });
    }
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    TensorPlace const& place = partition.placement().places()[t];
    if (!place.frozen || place.storage != t) continue;
    auto* const to = parameters.tensor(t);
    load_piece(
        tensors[t], 0, place.count, values, [&](std::uint64_t at, std::span<float const> chunk) {
          upload_as(space, to + at, chunk);
        });
  }
}

/// Master weights from the parameters as they are.
template <class Slots>
void adopt(Partition const& partition,
           ParameterStore<Slots> const& parameters,
           Update<Slots> const& update,
           typename Slots::Space const& space) {
  if constexpr (Slots::has_master) {
    for (BucketSpan const& bucket : partition.buckets()) {
      partition.for_each_segment(
          update.begin(bucket), update.count(bucket), [&](Segment const& piece) {
            space.convert(update.master(bucket, piece, parameters),
                          parameters.segment(bucket, piece),
                          static_cast<std::size_t>(piece.count));
          });
    }
  }
}

inline void check_value_sizes(std::vector<Tensor> const& tensors,
                              Placement const& placement,
                              std::span<std::span<float const> const> values) {
  if (tensors.size() != values.size()) {
    fail(ErrorKind::invalid_argument,
         {tensors.size(), " tensors are described but values of ", values.size(), " are given"});
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    TensorPlace const& place = placement.places()[t];
    if (place.storage != t || values[t].size() == place.count) continue;
    fail(ErrorKind::invalid_argument,
         {"tensor '",
          tensors[t].name,
          "' has ",
          place.count,
          " elements, but values for ",
          values[t].size(),
          " are given"});
  }
}

}  // namespace zero::inline v0_1::detail
