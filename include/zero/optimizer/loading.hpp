/// @file
/// Initial values into parameters and master weights, without a second copy of either.
#pragma once

#include "zero/base/error.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/host_chunk.hpp"
#include "zero/optimizer/parameter_store.hpp"
#include "zero/optimizer/update.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace zero::inline v0_1::detail {

/// Brings values to a space, chunk by chunk, rounded on the host.
template <class Space, class Values>
class Loader {
 public:
  Loader(Space const& space, Values& values) : space_(&space), values_(&values) {}

  /// Asks for elements [first, first + count) of a tensor.
  template <class T>
  void load(Tensor const& tensor, std::uint64_t first, std::uint64_t count, T* to) {
    for (std::uint64_t done = 0; done < count;) {
      std::span<float> const chunk = chunk_.first(count - done);
      (*values_)(tensor, static_cast<std::size_t>(first + done), chunk);
      upload(to + done, chunk);
      done += chunk.size();
    }
  }

 private:
  template <class T>
  void upload(T* to, std::span<float const> chunk) {
    if constexpr (std::is_same_v<T, float>) {
      space_->upload(to, chunk.data(), chunk.size_bytes());
    } else {
      HostChunk<T, Space> memory;
      std::span<T> const rounded = memory.first(chunk.size());
      for (std::size_t i = 0; i < chunk.size(); ++i) rounded[i] = T(chunk[i]);
      space_->upload(to, rounded.data(), rounded.size_bytes());
    }
  }

  Space const* space_;
  Values* values_;
  HostChunk<float, Space> chunk_;
};

/// Asks for what this rank holds: its parameters, then its master weights, then frozen tensors.
template <class Slots, class Values>
void load(std::vector<Tensor> const& tensors,
          Partition const& partition,
          int rank,
          ParameterStore<Slots> const& parameters,
          Update<Slots> const& update,
          typename Slots::Space const& space,
          Values& values) {
  Loader<typename Slots::Space, Values> loader(space, values);
  auto const load_range = [&](std::uint64_t begin, std::uint64_t count, auto const& address) {
    partition.for_each_segment(begin, count, [&](Segment const& piece) {
      loader.load(tensors[piece.tensor], piece.tensor_offset, piece.count, address(piece));
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
    loader.load(tensors[t], 0, place.count, parameters.tensor(t));
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
