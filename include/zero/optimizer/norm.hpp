/// @file
/// The squares of this rank's reduced gradients, and whether they are finite.
#pragma once

#include "zero/layout/exact_sum.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/gradient_store.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace zero::inline v0_1::detail {

/// Adds up squares bucket by bucket, best while a bucket's share is still in the cache.
///
/// Squares are added in fp64 over fixed blocks of `block` logical elements, and the blocks' sums
/// exactly: neither stage nor bucket size nor rank count nor the order of buckets can change a clip
/// decision.
/// @par Cost  one pass over the reduced share
template <class Slots>
class GradientNorm {
 public:
  GradientNorm(Partition const& partition, int rank, GradientStore<Slots> const& store)
      : partition_(&partition), rank_(rank), store_(&store) {}

  /// Takes in one bucket whose reduction is done. Once per bucket and step.
  void add(BucketSpan const& bucket) {
    auto const* const gradients = store_->reduced(bucket);
    std::uint64_t const begin = bucket.begin + static_cast<std::uint64_t>(rank_) * bucket.shard;
    std::uint64_t open_block = 0;
    double lanes[8] = {};
    auto const add_piece = [&](Segment const& piece) {
      for (std::uint64_t done = 0; done < piece.count;) {
        std::uint64_t const at = piece.range_offset + done;
        if (at / block != open_block) {
          close_block(lanes);
          open_block = at / block;
        }
        std::uint64_t const count = std::min(piece.count - done, (open_block + 1) * block - at);
        Slots::Space::add_squares(gradients + at, static_cast<std::size_t>(count), at, lanes);
        done += count;
      }
    };
    partition_->for_each_segment(begin, partition_->owned_count(bucket, rank_), add_piece);
    close_block(lanes);
  }

  [[nodiscard]] ExactSum const& squares() const noexcept { return squares_; }
  /// Blocks with an element that is not finite.
  [[nodiscard]] std::int64_t overflows() const noexcept { return overflows_; }

  void reset() noexcept {
    squares_ = {};
    overflows_ = 0;
  }

 private:
  void close_block(double (&lanes)[8]) {
    double const sum = Slots::Space::sum_lanes(lanes);
    if (std::isfinite(sum)) {
      squares_.add(sum);
    } else {
      ++overflows_;
    }
    for (double& lane : lanes) lane = 0.;
  }

  Partition const* partition_;
  int rank_;
  GradientStore<Slots> const* store_;
  ExactSum squares_;
  std::int64_t overflows_ = 0;
};

}  // namespace zero::inline v0_1::detail
