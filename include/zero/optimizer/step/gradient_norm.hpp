/// @file
/// The squares of this rank's reduced gradients, and whether they are finite.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/range.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Adds up squares bucket by bucket, best while a bucket is being reduced.
///
/// Squares are added in fp64 over fixed blocks of `block` logical elements, and the blocks' sums
/// exactly: neither stage nor bucket size nor rank count nor the order of buckets can change a clip
/// decision.
///
/// A share is added as one run, from its first element to its last trained one. Shares begin at
/// multiples of `block`, so that the blocks are those of the logical space. Padding lies behind the
/// run; the gaps between tensors lie within it and add nothing, being zero on every rank: memory of
/// the library is zeroed and no tensor's span reaches into a gap, buckets are packed with zeros,
/// and lent memory is read in place only where it has no gaps.
/// Over a grid the first rank of a model axis counts all tensors, and the others those that are
/// partitioned over it.
/// @par Cost  none where the reduction takes them, else one pass over the reduced share
class GradientNorm {
 public:
  /// @param squares  in the memory of the space
  /// @param by_reductions  whether a bucket's reduction can take in the bucket on its way
  /// @param divided  where another rank of the model axis counts the tensors that are not
  ///   partitioned over it: the model; null to count all
  GradientNorm(int rank,
               Partition const& partition,
               ExactSum* squares,
               AnySpace space,
               Kernels kernels,
               bool by_reductions,
               std::vector<Tensor> const* divided)
      : rank_(rank),
        partition_(&partition),
        squares_(squares),
        space_(space),
        kernels_(kernels),
        by_reductions_(by_reductions && divided == nullptr),
        divided_(divided) {}

  /// Whether a bucket's reduction takes in the bucket on its way. `add` has to do it elsewhere, and
  /// where a step has several reductions.
  [[nodiscard]] bool on_the_way() const noexcept { return by_reductions_; }

  /// Has a bucket's reduction take it in. Once per bucket and step.
  void add_by(Collective& reduction, BucketSpan const& bucket) const {
    reduction.squares = squares_;
    reduction.squares_count = static_cast<std::size_t>(bucket.share(rank_).count());
  }
  /// Takes in one bucket whose reduction is done. Once per bucket and step.
  /// @param reduced  this rank's share, as one run
  ZERO_APART void add(BucketSpan const& bucket, Array reduced) const;

  /// Has loaded what it takes.
  void load(Kernels const& loading) const { loading.add_squares(nullptr, nullptr, 1); }

  void reset() const { space_.zero(squares_, sizeof(ExactSum)); }

 private:
  /// Takes in the partitioned tensors of a share. Blocks end where tensors do, and begin again
  /// where those of the logical space do.
  ZERO_APART void add_partitioned(Kernels const& kernels, Array reduced, Range share) const;

  int rank_;
  Partition const* partition_;
  ExactSum* squares_;
  AnySpace space_;
  Kernels kernels_;
  bool by_reductions_;
  std::vector<Tensor> const* divided_;
};

#if ZERO_BODIES

ZERO_BODY void GradientNorm::add(BucketSpan const& bucket, Array reduced) const {
  Range const share = bucket.share(rank_);
  Kernels const kernels = kernels_.of(bucket.kind());
  if (divided_ != nullptr) return add_partitioned(kernels, reduced, share);
  auto const count = static_cast<std::size_t>(share.count());
  if (count > 0) kernels.add_squares(squares_, reduced.first, count);
}

ZERO_BODY void GradientNorm::add_partitioned(Kernels const& kernels,
                                             Array reduced,
                                             Range share) const {
  partition_->for_each_segment(share, [&](Segment const& piece) {
    if (!(*divided_)[piece.tensor].partitioned) return;
    std::uint64_t const begin = piece.in_range.offset();
    std::uint64_t const head = (std::min)(piece.count, (block - begin % block) % block);
    auto const add_run = [&](std::uint64_t first, std::uint64_t count) {
      if (count == 0) return;
      kernels.add_squares(squares_, reduced.at(first), static_cast<std::size_t>(count));
    };
    add_run(begin, head);
    add_run(begin + head, piece.count - head);
  });
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
