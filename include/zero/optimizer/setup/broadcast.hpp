/// @file
/// One rank's values on every rank.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/value_loading.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Whole parameters as they lie in the root's memory, tensor by tensor. Collective; blocks.
ZERO_APART ZERO_COLD void broadcast_held(Parts& parts, int root);

/// Parameters, master weights and frozen tensors from values that the root alone is asked for.
/// Every rank keeps what it holds of what passes. Collective; blocks.
/// @param loaded  tensors that are, the same on all ranks; null for all
ZERO_APART ZERO_COLD void broadcast_values(Parts& parts,
                                           ValueSource values,
                                           int root,
                                           std::vector<bool> const* loaded);

/// What the root is asked for, for every rank that asks. The first element that is not at hand
/// arrives with those that follow it in its tensor, so that each travels once where all ranks ask
/// in the order of elements.
class FromRoot {
 public:
  ZERO_APART ZERO_COLD FromRoot(Parts& parts, ValueSource values, int root);

  /// Collective where elements are not at hand.
  ZERO_APART void operator()(Tensor const& tensor, std::size_t first, Elements out);

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 18;

  ZERO_APART ZERO_COLD void fetch(Tensor const& tensor, std::size_t first);

  Parts* parts_;
  ValueSource values_;
  int root_;
  std::vector<std::byte> memory_;
  std::optional<Arena::Scratch> scratch_;  ///< where the host cannot reach the space
  std::size_t count_ = 0;                  ///< elements [first_, first_ + count_) of the tensor
  Tensor const* tensor_ = nullptr;
  DType type_{};  ///< of its values
  std::size_t first_ = 0;
};

#if ZERO_BODIES

ZERO_BODY void broadcast_held(Parts& parts, int root) {
  for (std::size_t t = 0; t < parts.tensors.size(); ++t) {
    TensorPlace const& place = parts.partition.place(t);
    if (place.storage != t || place.count == 0) continue;
    Array const memory = parts.parameters.tensor(t);
    parts.comm().run({.op = Op::broadcast,
                      .dtype = memory.dtype,
                      .accumulate = memory.dtype,
                      .count = static_cast<std::size_t>(place.count),
                      .send = memory.first,
                      .recv = memory.first,
                      .root = root});
  }
}

ZERO_BODY FromRoot::FromRoot(Parts& parts, ValueSource values, int root)
    : parts_(&parts), values_(values), root_(root) {
  std::size_t width = 0;
  for (std::size_t t = 0; t < parts.described.size(); ++t) {
    width = (std::max)(width, size_of(parts.value_type(t)));
  }
  memory_.resize(capacity * width);
  if (!parts.space().host_accessible()) scratch_.emplace(parts.arena, memory_.size());
}

ZERO_BODY void FromRoot::operator()(Tensor const& tensor, std::size_t first, Elements out) {
  auto* to = static_cast<std::byte*>(out.first);
  while (out.count > 0) {
    if (&tensor != tensor_ || first < first_ || first >= first_ + count_) fetch(tensor, first);
    std::size_t const count = (std::min)(first_ + count_ - first, out.count);
    Array const from{memory_.data(), type_};
    std::memcpy(to, from.at(first - first_), from.bytes(count));
    to += from.bytes(count);
    out.count -= count;
    first += count;
  }
}

ZERO_BODY void FromRoot::fetch(Tensor const& tensor, std::size_t first) {
  // Slices of one tensor are not asked for one after the other.
  auto const elements = static_cast<std::size_t>(element_count(tensor));
  std::size_t const slice = tensor.stacked ? elements / tensor.shape.front() : elements;
  std::size_t const count = (first / slice + 1) * slice;
  tensor_ = &tensor;
  type_ = parts_->value_type(static_cast<std::size_t>(&tensor - parts_->described.data()));
  first_ = first;
  count_ = (std::min)(capacity, count - first);
  Ranks& ranks = parts_->comm();
  AnySpace const& space = parts_->space();
  bool const gives = ranks.rank() == root_;
  if (gives) values_(tensor, first, {memory_.data(), count_});
  void* const memory = scratch_ ? scratch_->data() : memory_.data();
  std::size_t const bytes = count_ * size_of(type_);
  if (scratch_ && gives) space.upload(memory, memory_.data(), bytes);
  ranks.run({.op = Op::broadcast,
             .dtype = type_,
             .accumulate = type_,
             .count = count_,
             .send = memory,
             .recv = memory,
             .root = root_});
  if (!scratch_) return;
  space.download(memory_.data(), memory, bytes);
  ranks.confirm();
}

ZERO_BODY void broadcast_values(Parts& parts,
                                ValueSource values,
                                int root,
                                std::vector<bool> const* loaded) {
  bool const shares = parts.states.shares();
  FromRoot source(parts, values, root);
  Loader loader(parts, ValueSource(source), parts.overflow);
  // All ranks ask for all shares, in the same order.
  auto const of_bucket = [&](BucketSpan const& bucket) {
    for (int rank = 0; rank < (shares ? parts.comm().size() : 1); ++rank) {
      bool const updates = !shares || rank == parts.comm().rank();
      Range const range = shares ? bucket.share(rank) : bucket.whole();
      parts.partition.for_each_segment(range, [&](Segment const& piece) {
        if (loaded != nullptr && !(*loaded)[piece.tensor]) return;
        Array parameter;
        Array master;
        if (!parts.parameters.shares(bucket.kind()) || updates) {
          parameter = parts.parameters.segment(bucket, piece);
        }
        if (parts.types[bucket.kind()].has_master() && updates)
          master = parts.states.at(bucket, 0).from(piece.in_range);
        loader.load(
            piece.tensor, piece.in_tensor.offset(), piece.count, nullptr, parameter, master);
      });
    }
  };
  parts.partition.for_each_bucket(of_bucket);
  parts.partition.for_each_bucket(of_bucket, true);
  require_fit(parts);
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
