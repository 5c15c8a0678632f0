/// @file
/// Constant-size buckets through which scattered memory travels.
#pragma once

#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/lent.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace zero::inline v0_1::detail {

/// A view of the staging memory, sized for the largest bucket.
template <class Slots>
class Staging {
 public:
  using Space = typename Slots::Space;

  template <class ArenaT>
  Staging(Partition const& partition, StorageElements const& elements, ArenaT& arena)
      : partition_(&partition),
        memory_(arena.template take<std::byte>(Role::staging, elements.staging_bytes)),
        bucket_(largest_bucket(partition)),
        space_(arena.space()) {}

  /// The i-th buffer for a whole bucket of T.
  template <class T>
  [[nodiscard]] T* buffer(std::size_t i = 0) const noexcept {
    return reinterpret_cast<T*>(memory_.data()) + i * bucket_;
  }

  /// Copies a bucket's tensors from lent memory to one run; gaps and padding become zero.
  template <class T>
  void pack(BucketSpan const& bucket, LentTensors<T> const& lent, T* to) const {
    std::uint64_t done = 0;
    partition_->for_each_segment(bucket.begin, bucket.count, [&](Segment const& piece) {
      fill_gap(to, done, piece.range_offset);
      space_.copy(to + piece.range_offset,
                  lent[piece.tensor] + piece.tensor_offset,
                  static_cast<std::size_t>(piece.count) * sizeof(T));
      done = piece.range_offset + piece.count;
    });
    fill_gap(to, done, bucket.shard * static_cast<std::uint64_t>(partition_->world_size()));
  }

  /// The reverse: what is not a tensor is not written anywhere.
  template <class T>
  void unpack(BucketSpan const& bucket, T const* from, LentTensors<T> const& lent) const {
    partition_->for_each_segment(bucket.begin, bucket.count, [&](Segment const& piece) {
      space_.copy(lent[piece.tensor] + piece.tensor_offset,
                  from + piece.range_offset,
                  static_cast<std::size_t>(piece.count) * sizeof(T));
    });
  }

 private:
  template <class T>
  void fill_gap(T* to, std::uint64_t begin, std::uint64_t end) const {
    if (begin < end) space_.zero(to + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  }

  Partition const* partition_;
  std::span<std::byte> memory_;
  std::uint64_t bucket_;
  [[no_unique_address]] Space space_;
};

}  // namespace zero::inline v0_1::detail
