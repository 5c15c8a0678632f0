/// @file
/// Constant-size buckets through which scattered memory travels.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/held/lent.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The staging memory, sized for the largest bucket.
class Staging {
 public:
  ZERO_APART Staging(Partition const& partition,
                     KindTypes const& types,
                     StorageElements const& elements,
                     Arena& arena)
      : partition_(&partition),
        memory_(arena.take(Role::staging, elements.staging_bytes)),
        space_(arena.space()) {
    for (std::size_t k = 0; k < types.size(); ++k) {
      if (types[k].frozen()) continue;
      Array const bucket{nullptr, types[k].wire};
      bucket_bytes_ = (std::max)(bucket_bytes_, bucket.bytes(partition.largest_bucket(k)));
    }
  }

  /// The i-th buffer for a whole bucket of a type; there are several of gradients on their way.
  [[nodiscard]] Array buffer(DType dtype, std::size_t i = 0) const noexcept {
    return {memory_.data() + i * bucket_bytes_, dtype};
  }

  /// Copies a bucket's tensors from lent memory to one run; gaps and padding become zero, and so do
  /// tensors of which `empty(tensor)` says that nothing is there.
  template <class Empty>
  void pack(BucketSpan const& bucket, LentTensors const& lent, Array to, Empty const& empty) const {
    std::byte* done = to.first;
    auto const clear = [&](std::byte* end) {
      if (done < end) space_.zero(done, static_cast<std::size_t>(end - done));
    };
    partition_->for_each_segment(bucket.whole(), [&](Segment const& piece) {
      if (empty(piece.tensor)) return;
      std::byte* const here = to.at(piece.in_range);
      clear(here);
      space_.copy(here, lent.tensor(piece.tensor).at(piece.in_tensor), to.bytes(piece.count));
      done = here + to.bytes(piece.count);
    });
    clear(to.at(bucket.padded()));
  }

  /// Copies a range of lent tensors to one run, and nothing to its gaps.
  ZERO_APART void collect(Range range, LentTensors const& lent, Array to) const {
    partition_->for_each_segment(range, [&](Segment const& piece) {
      space_.copy(to.at(piece.in_range),
                  lent.tensor(piece.tensor).at(piece.in_tensor),
                  to.bytes(piece.count));
    });
  }

  /// The reverse: what is not a tensor is not written anywhere.
  ZERO_APART void unpack(Range range, Array from, LentTensors const& lent) const {
    partition_->for_each_segment(range, [&](Segment const& piece) {
      space_.copy(lent.tensor(piece.tensor).at(piece.in_tensor),
                  from.at(piece.in_range),
                  from.bytes(piece.count));
    });
  }

  /// Zeroes what is between the tensors of a range in one run.
  ZERO_APART void clear_gaps(Range range, Array run) const {
    std::byte* done = run.first;
    partition_->for_each_segment(range, [&](Segment const& piece) {
      std::byte* const here = run.at(piece.in_range);
      if (done < here) space_.zero(done, static_cast<std::size_t>(here - done));
      done = here + run.bytes(piece.count);
    });
  }

 private:
  Partition const* partition_;
  std::span<std::byte> memory_;
  std::size_t bucket_bytes_ = 0;
  AnySpace space_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
