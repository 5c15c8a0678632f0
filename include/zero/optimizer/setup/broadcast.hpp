/// @file
/// One rank's values on every rank.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/assembly.hpp"
#include "zero/optimizer/setup/loading.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

inline void require_root(int ranks, int root) {
  if (root >= 0 && root < ranks) return;
  fail(ErrorKind::invalid_argument,
       {"there is no rank ", root, " to broadcast from; ranks are [0, ", ranks, ")"});
}

/// Whole parameters as they lie in the root's memory, tensor by tensor. Collective; blocks.
template <class Slots>
ZERO_COLD void broadcast_held(Assembly<Slots>& parts, int root) {
  using Parameter = typename Slots::Parameter;
  require_root(parts.comm->size(), root);
  for (std::size_t t = 0; t < parts.tensors.size(); ++t) {
    TensorPlace const& place = parts.partition.placement().places()[t];
    if (place.storage != t || place.count == 0) continue;
    Parameter* const memory = parts.parameters.tensor(t);
    run(*parts.comm,
        {.op = Op::broadcast,
         .dtype = dtype_of<Parameter>,
         .accumulate = dtype_of<Parameter>,
         .count = static_cast<std::size_t>(place.count),
         .send = memory,
         .recv = memory,
         .root = root});
  }
}

/// What the root is asked for, for every rank that asks. The first element that is not at hand
/// arrives with those that follow it in its tensor, so that each travels once where all ranks ask
/// in the order of elements.
template <class Slots>
class FromRoot {
 public:
  FromRoot(Assembly<Slots>& parts, ValueSource values, int root)
      : parts_(&parts),
        values_(values),
        root_(root),
        memory_(capacity),
        scratch_(parts.arena, capacity * sizeof(float)) {}

  /// Collective where elements are not at hand.
  void operator()(Tensor const& tensor, std::size_t first, std::span<float> out) {
    while (!out.empty()) {
      if (&tensor != tensor_ || first < first_ || first >= first_ + piece_.size()) {
        fetch(tensor, first);
      }
      auto const here = piece_.subspan(first - first_);
      std::size_t const count = (std::min)(here.size(), out.size());
      std::copy_n(here.data(), count, out.data());
      out = out.subspan(count);
      first += count;
    }
  }

 private:
  using ArenaT = decltype(Assembly<Slots>::arena);
  static constexpr bool on_host = Slots::Space::host_accessible;
  static constexpr std::size_t capacity = std::size_t{1} << 18;
  struct Nothing {
    Nothing(ArenaT& /*arena*/, std::size_t /*bytes*/) noexcept {}
  };

  ZERO_COLD void fetch(Tensor const& tensor, std::size_t first) {
    // Slices of one tensor are not asked for one after the other.
    auto const elements = static_cast<std::size_t>(element_count(tensor));
    std::size_t const slice = tensor.stacked ? elements / tensor.shape.front() : elements;
    std::size_t const count = (first / slice + 1) * slice;
    tensor_ = &tensor;
    first_ = first;
    piece_ = std::span(memory_).first((std::min)(capacity, count - first));
    bool const gives = parts_->comm->rank() == root_;
    if (gives) values_(tensor, first, piece_);
    Collective broadcast{.op = Op::broadcast,
                         .count = piece_.size(),
                         .send = piece_.data(),
                         .recv = piece_.data(),
                         .root = root_};
    if constexpr (on_host) {
      run(*parts_->comm, broadcast);
    } else {
      broadcast.send = broadcast.recv = scratch_.data();
      if (gives) parts_->space().upload(scratch_.data(), piece_.data(), piece_.size_bytes());
      run(*parts_->comm, broadcast);
      parts_->space().download(piece_.data(), scratch_.data(), piece_.size_bytes());
      confirm(*parts_->comm);
    }
  }

  Assembly<Slots>* parts_;
  ValueSource values_;
  int root_;
  std::vector<float> memory_;
  [[no_unique_address]] std::conditional_t<on_host, Nothing, typename ArenaT::Scratch> scratch_;
  std::span<float> piece_{};  ///< elements [first_, first_ + size) of the tensor
  Tensor const* tensor_ = nullptr;
  std::size_t first_ = 0;
};

/// Parameters, master weights and frozen tensors from values that the root alone is asked for.
/// Every rank keeps what it holds of what passes. Collective; blocks.
template <class Slots>
ZERO_COLD void broadcast_values(Assembly<Slots>& parts, ValueSource values, int root) {
  using Parameter = typename Slots::Parameter;
  using Master = typename Slots::Master;
  require_root(parts.comm->size(), root);
  constexpr bool shares = Slots::form.update == StorageForm::Update::share;
  constexpr bool whole = Slots::form.parameters != StorageForm::Parameters::share;
  FromRoot<Slots> source(parts, values, root);
  Loader<typename Slots::Space> loader(parts, parts.space(), ValueSource(source));
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    for (int rank = 0; rank < (shares ? parts.comm->size() : 1); ++rank) {
      bool const updates = !shares || rank == parts.comm->rank();
      Range const range = shares ? bucket.share(rank) : bucket.whole();
      parts.partition.for_each_segment(range, [&](Segment const& piece) {
        Parameter* parameter = nullptr;
        Master* master = nullptr;
        if (whole || updates) parameter = parts.parameters.segment(bucket, piece);
        if constexpr (Slots::has_master) {
          if (updates) master = parts.states.master(bucket, piece, parts.parameters);
        }
        loader.load(
            piece.tensor, piece.in_tensor.offset(), piece.count, nullptr, parameter, master);
      });
    }
  });
  for (std::size_t t = 0; t < parts.tensors.size(); ++t) {
    TensorPlace const& place = parts.partition.placement().places()[t];
    if (!place.frozen || place.storage != t) continue;
    loader.load(t, 0, place.count, nullptr, parts.parameters.tensor(t));
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
