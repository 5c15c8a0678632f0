/// @file
/// Memory a trainer lends: checked once per binding, never written outside.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/sort_indices.hpp"
#include "zero/layout/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Addresses of the trainer's tensors, one per described tensor.
///
/// Binding again with other pointers costs O(tensors log tensors) and allocates nothing, so that
/// trainers whose gradients move from step to step can bind every step.
template <class T>
class LentTensors {
 public:
  /// @param lends  false where the library owns this memory, and nothing is ever lent
  LentTensors(std::vector<Tensor> const& tensors,
              Partition const& partition,
              char const* what,
              bool lends)
      : tensors_(&tensors),
        partition_(&partition),
        what_(what),
        address_(lends ? tensors.size() : 0, nullptr),
        in_place_(lends ? partition.bucket_count() : 0, nullptr) {
    if (lends) by_address_.reserve(tensors.size());
  }

  [[nodiscard]] bool bound() const noexcept { return bound_; }
  [[nodiscard]] T* operator[](std::size_t tensor) const noexcept { return address_[tensor]; }

  /// Is a tensor's memory not lent, which a gradient's need not be?
  [[nodiscard]] bool missing(std::size_t tensor) const noexcept {
    return address_[tensor] == nullptr;
  }

  /// The bucket's elements if they lie in one run of lent memory that needs no padding, or null.
  [[nodiscard]] T* in_place(std::size_t bucket) const noexcept { return in_place_[bucket]; }

  /// @param lent       one span per described tensor; a tied tensor's may be empty
  /// @param need_frozen whether frozen tensors must be lent too
  /// @throws Error (invalid_argument) for wrong sizes, null pointers or overlaps
  void bind(std::span<std::span<T> const> lent, bool need_frozen) {
    if (lent.size() != tensors_->size()) {
      fail(ErrorKind::invalid_argument,
           {tensors_->size(), " tensors are described but ", lent.size(), " ", what_, " are lent"});
    }
    bind_each([&](std::size_t t) { return lent[t]; }, need_frozen);
  }

  /// Tensors that lie one after the other in one buffer; tied tensors do not lie there again.
  /// @throws Error (invalid_argument) if the buffer has not exactly their size
  void bind_flat(std::span<T> flat, bool need_frozen) {
    auto const& places = partition_->placement().places();
    std::uint64_t total = 0;
    for (std::size_t t = 0; t < places.size(); ++t) {
      if (places[t].storage == t) total = checked_add(total, places[t].count);
    }
    if (total != flat.size()) {
      fail(ErrorKind::invalid_argument,
           {"the tensors have ",
            total,
            " elements, but the flat buffer of ",
            what_,
            " has ",
            flat.size()});
    }
    auto next = [&, used = std::size_t{0}](std::size_t t) mutable -> std::span<T> {
      if (places[t].storage != t) return {};
      auto const count = static_cast<std::size_t>(places[t].count);
      used += count;
      return flat.subspan(used - count, count);
    };
    bind_each(next, need_frozen);
  }

  /// To be called when both are bound.
  /// @throws Error (invalid_argument) if a tensor lent here shares memory with one lent there
  template <class U>
  void refuse_overlap_with(LentTensors<U> const& other) {
    auto const begin = [](auto const& lent, std::size_t i) {
      return reinterpret_cast<std::uintptr_t>(lent.address_[lent.by_address_[i]]);
    };
    auto const end = [&](auto const& lent, std::size_t i) {
      auto const count = partition_->placement().places()[lent.by_address_[i]].count;
      return begin(lent, i) + static_cast<std::size_t>(count) * sizeof(*lent.address_[0]);
    };
    for (std::size_t i = 0, k = 0; i < by_address_.size() && k < other.by_address_.size();) {
      if (end(*this, i) <= begin(other, k)) {
        ++i;
      } else if (end(other, k) <= begin(*this, i)) {
        ++k;
      } else {
        bound_ = false;
        refuse(by_address_[i],
               {"overlaps the ",
                other.what_,
                " of tensor '",
                (*tensors_)[other.by_address_[k]].name,
                "'"});
      }
    }
  }

 private:
  template <class U>
  friend class LentTensors;

  /// Asks `lent_span(t)` for every tensor's memory, once each and in order.
  template <class LentSpan>
  void bind_each(LentSpan lent_span, bool need_frozen) {
    auto const& places = partition_->placement().places();
    bound_ = false;
    by_address_.clear();
    for (std::size_t t = 0; t < places.size(); ++t) {
      TensorPlace const& place = places[t];
      std::span<T> const lent = lent_span(t);
      bool const tied = place.storage != t;
      if ((place.frozen && !need_frozen) || (tied && lent.empty()) ||
          (!need_frozen && lent.data() == nullptr && lent.empty())) {
        address_[t] = tied ? address_[place.storage] : nullptr;
        continue;
      }
      if (lent.size() != place.count) {
        refuse(t, {"has ", place.count, " elements, but ", lent.size(), " are lent"});
      }
      if (place.count > 0 && lent.data() == nullptr) refuse(t, "is lent as a null pointer");
      if (lent.size() > (UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(lent.data())) / sizeof(T)) {
        refuse(t, "is lent beyond the end of the address space");
      }
      if (tied && lent.data() != address_[place.storage]) {
        refuse(t, "is tied, but lent at another address than the tensor it is tied to");
      }
      address_[t] = lent.data();
      if (!tied && place.count > 0) by_address_.push_back(t);
    }
    refuse_overlaps();
    find_in_place();
    bound_ = true;
  }

  [[noreturn]] void refuse(std::size_t tensor, Message const& why) const {
    fail(ErrorKind::invalid_argument, {what_, ": tensor '", (*tensors_)[tensor].name, "' ", why});
  }

  /// Addresses of different objects compare as integers only.
  [[nodiscard]] std::uintptr_t begin_of(std::size_t tensor) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address_[tensor]);
  }

  void refuse_overlaps() {
    auto const& places = partition_->placement().places();
    sort_indices(by_address_,
                 [&](std::size_t a, std::size_t b) { return begin_of(a) < begin_of(b); });
    for (std::size_t i = 1; i < by_address_.size(); ++i) {
      std::size_t const before = by_address_[i - 1];
      auto const size = static_cast<std::size_t>(places[before].count) * sizeof(T);
      if (begin_of(by_address_[i]) < begin_of(before) + size) {
        refuse(by_address_[i], {"overlaps tensor '", (*tensors_)[before].name, "'"});
      }
    }
  }

  void find_in_place() {
    partition_->for_each_bucket([&](BucketSpan const& bucket) {
      T* base = nullptr;
      T* end = nullptr;
      bool one_run = bucket.whole().count() == bucket.padded();
      partition_->for_each_segment(bucket.whole(), [&](Segment const& piece) {
        if (missing(piece.tensor)) one_run = false;
        if (!one_run) return;
        T* const here = piece.in_tensor.in(address_[piece.tensor]);
        if (base == nullptr) base = end = here;
        one_run = one_run && here == end && here == piece.in_range.in(base);
        end = here + piece.count;
      });
      one_run = one_run && base != nullptr && end == base + bucket.whole().count();
      in_place_[bucket.index()] = one_run ? base : nullptr;
    });
  }

  std::vector<Tensor> const* tensors_;
  Partition const* partition_;
  char const* what_;
  std::vector<T*> address_;
  std::vector<T*> in_place_;
  std::vector<std::size_t> by_address_;
  bool bound_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
