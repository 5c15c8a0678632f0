/// @file
/// Constant-size buckets through which scattered memory travels.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stores/lent.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A view of the staging memory, sized for the largest bucket.
template <class Slots>
class Staging {
 public:
  using Space = typename Slots::Space;

  template <class ArenaT>
  Staging(Partition const& partition, StorageElements const& elements, ArenaT& arena)
      : partition_(&partition),
        memory_(arena.template take<std::byte>(Role::staging, elements.staging_bytes)),
        bucket_(partition.largest_bucket()),
        space_(arena.space()) {}

  /// The i-th buffer for a whole bucket of T.
  template <class T>
  [[nodiscard]] T* buffer(std::size_t i = 0) const noexcept {
    return reinterpret_cast<T*>(memory_.data()) + i * bucket_;
  }

  /// Copies a bucket's tensors from lent memory to one run; gaps and padding become zero, and so do
  /// tensors of which `empty(tensor)` says that nothing is there.
  template <class T, class Empty>
  void pack(BucketSpan const& bucket, LentTensors<T> const& lent, T* to, Empty const& empty) const {
    T* done = to;
    partition_->for_each_segment(bucket.whole(), [&](Segment const& piece) {
      if (empty(piece.tensor)) return;
      T* const here = piece.in_range.in(to);
      clear(done, here);
      space_.copy(here,
                  piece.in_tensor.in(lent[piece.tensor]),
                  static_cast<std::size_t>(piece.count) * sizeof(T));
      done = here + piece.count;
    });
    clear(done, to + bucket.padded());
  }

  /// The reverse: what is not a tensor is not written anywhere.
  template <class T>
  void unpack(BucketSpan const& bucket, T const* from, LentTensors<T> const& lent) const {
    partition_->for_each_segment(bucket.whole(), [&](Segment const& piece) {
      space_.copy(piece.in_tensor.in(lent[piece.tensor]),
                  piece.in_range.in(from),
                  static_cast<std::size_t>(piece.count) * sizeof(T));
    });
  }

 private:
  template <class T>
  void clear(T* begin, T* end) const {
    if (begin < end) space_.zero(begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  }

  Partition const* partition_;
  std::span<std::byte> memory_;
  std::uint64_t bucket_;
  [[no_unique_address]] Space space_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
