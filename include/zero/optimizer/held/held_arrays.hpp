/// @file
/// The one walk through all that a rank holds of tensors, run by run.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/optimizer/held/arrays.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/held/held_values.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Which elements are walked through.
enum class Extent : std::uint8_t {
  updated,  ///< what this rank updates
  owned,    ///< what it owns: each element is one rank's
  read      ///< what it holds the parameters of
};

class HeldArrays;

/// Elements of one tensor that lie behind each other in whatever a rank holds of them.
class HeldPiece {
 public:
  [[nodiscard]] std::size_t tensor() const noexcept { return at_.tensor; }
  /// Their storage kind, and its types.
  [[nodiscard]] std::size_t kind() const noexcept { return bucket_->kind(); }
  ZERO_APART [[nodiscard]] StorageTypes const& types() const noexcept;
  /// The first of them in the tensor.
  [[nodiscard]] std::uint64_t first() const noexcept { return at_.in_tensor.offset(); }
  [[nodiscard]] std::size_t count() const noexcept { return static_cast<std::size_t>(at_.count); }
  /// Their parameters.
  ZERO_APART [[nodiscard]] Array parameter() const;
  /// Their part of the k-th array that the rule works on, unless the extent is `read`.
  ZERO_APART [[nodiscard]] Array array(std::size_t k) const;
  /// The values of that part.
  ZERO_APART [[nodiscard]] HeldValues values(std::size_t k) const;
  /// The same as it is saved: of codes, and of scales, the bytes themselves.
  ZERO_APART [[nodiscard]] HeldValues saved(std::size_t k) const;
  /// What the rule changes: their parameters, where there is no master beside them.
  ZERO_APART [[nodiscard]] Array master() const { return array(0); }

 private:
  friend HeldArrays;
  HeldPiece(HeldArrays const& held, BucketSpan const& bucket, Segment const& at)
      : held_(&held), bucket_(&bucket), at_(at) {}

  HeldArrays const* held_;
  BucketSpan const* bucket_;
  Segment at_;
};

/// Where parameters, masters and states of one rank lie, piece by piece. Whoever loads, saves,
/// compares or shows them walks through them here.
class HeldArrays {
 public:
  HeldArrays(Ranks const& ranks,
             Partition const& partition,
             KindTypes const& types,
             ParameterStore const& parameters,
             StateStore const& states) noexcept
      : rank_(ranks.rank()),
        partition_(&partition),
        types_(&types),
        parameters_(&parameters),
        states_(&states) {}

  /// Calls `visit(HeldPiece const&)` for all of one bucket, in the order of the logical space.
  template <class Visit>
  void of_bucket(BucketSpan const& bucket, Extent extent, Visit const& visit) const {
    // Arrays are as long as what is updated.
    Range const whole =
        extent == Extent::read ? parameters_->held(bucket, rank_) : states_->updated(bucket);
    Range const part = extent == Extent::owned ? bucket.share(rank_) : whole;
    partition_->for_each_segment(
        part, whole, [&](Segment const& at) { visit(HeldPiece(*this, bucket, at)); });
  }
  /// The same for all buckets of trained tensors.
  template <class Visit>
  void trained(Extent extent, Visit const& visit) const {
    partition_->for_each_bucket(
        [&](BucketSpan const& bucket) { of_bucket(bucket, extent, visit); });
  }
  /// The same for all of frozen ones, which have parameters alone.
  template <class Visit>
  void frozen(Extent extent, Visit const& visit) const {
    partition_->for_each_bucket([&](BucketSpan const& bucket) { of_bucket(bucket, extent, visit); },
                                true);
  }

 private:
  friend HeldPiece;

  int rank_;
  Partition const* partition_;
  KindTypes const* types_;
  ParameterStore const* parameters_;
  StateStore const* states_;
};

#if ZERO_BODIES

ZERO_BODY StorageTypes const& HeldPiece::types() const noexcept { return (*held_->types_)[kind()]; }

ZERO_BODY Array HeldPiece::parameter() const { return held_->parameters_->segment(*bucket_, at_); }

ZERO_BODY Array HeldPiece::array(std::size_t k) const {
  if (types().arrays[k].coding == Coding::parameter) return parameter();
  return held_->states_->at(*bucket_, k).from(at_.in_range);
}

ZERO_BODY HeldValues HeldPiece::values(std::size_t k) const {
  ArrayForm const& form = types().arrays[k];
  if (form.codes != nullptr) {
    return {.array = array(k), .codes = form.codes, .scales = array(types().scales_of(k)).first};
  }
  if (!is_rest(form.coding)) return {array(k)};
  return {array(k), parameter().first, types().masters};
}

ZERO_BODY HeldValues HeldPiece::saved(std::size_t k) const {
  Coding const coding = types().arrays[k].coding;
  if (coding < Coding::root) return values(k);
  return {{array(k).first, DType::u8, has_scales(coding) ? Coding::values : coding}};
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
