/// @file
/// Memory a trainer lends: checked once per binding, never written outside.
#pragma once

#include "zero/base/error.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace zero::inline v0_1::detail {

/// Addresses of the trainer's tensors, one per described tensor.
///
/// Binding again with other pointers costs O(tensors log tensors) and allocates nothing, so that
/// trainers whose gradients move from step to step can bind every step.
template <class T>
class LentTensors {
 public:
  LentTensors(std::vector<Tensor> const& tensors, Partition const& partition, char const* what)
      : tensors_(&tensors),
        partition_(&partition),
        what_(what),
        address_(tensors.size(), nullptr),
        in_place_(partition.buckets().size(), nullptr) {
    by_address_.reserve(tensors.size());
  }

  [[nodiscard]] bool bound() const noexcept { return bound_; }
  [[nodiscard]] T* operator[](std::size_t tensor) const noexcept { return address_[tensor]; }

  /// The bucket's elements if they lie in one run of lent memory that needs no padding, or null.
  [[nodiscard]] T* in_place(std::size_t bucket) const noexcept { return in_place_[bucket]; }

  /// @param lent       one span per described tensor; a tied tensor's may be empty
  /// @param need_frozen whether frozen tensors must be lent too
  /// @throws Error (invalid_argument) for wrong sizes, null pointers or overlaps
  void bind(std::span<std::span<T> const> lent, bool need_frozen) {
    if (lent.size() != tensors_->size()) {
      fail(ErrorKind::invalid_argument,
           std::to_string(tensors_->size()) + " tensors are described but " +
               std::to_string(lent.size()) + " " + what_ + " are lent");
    }
    auto const& places = partition_->placement().places();
    bound_ = false;
    by_address_.clear();
    for (std::size_t t = 0; t < lent.size(); ++t) {
      TensorPlace const& place = places[t];
      bool const tied = place.storage != t;
      if ((place.frozen && !need_frozen) || (tied && lent[t].empty())) {
        address_[t] = tied ? address_[place.storage] : nullptr;
        continue;
      }
      if (lent[t].size() != place.count) {
        refuse(t,
               "has " + std::to_string(place.count) + " elements, but " +
                   std::to_string(lent[t].size()) + " are lent");
      }
      if (place.count > 0 && lent[t].data() == nullptr) refuse(t, "is lent as a null pointer");
      if (tied && lent[t].data() != address_[place.storage]) {
        refuse(t, "is tied, but lent at another address than the tensor it is tied to");
      }
      address_[t] = lent[t].data();
      if (!tied && place.count > 0) by_address_.push_back(t);
    }
    refuse_overlaps();
    find_in_place();
    bound_ = true;
  }

 private:
  [[noreturn]] void refuse(std::size_t tensor, std::string const& why) const {
    fail(ErrorKind::invalid_argument,
         std::string(what_) + ": tensor '" + (*tensors_)[tensor].name + "' " + why);
  }

  void refuse_overlaps() {
    auto const& places = partition_->placement().places();
    std::sort(by_address_.begin(), by_address_.end(), [&](std::size_t a, std::size_t b) {
      return std::less<T const*>{}(address_[a], address_[b]);
    });
    for (std::size_t i = 1; i < by_address_.size(); ++i) {
      std::size_t const before = by_address_[i - 1];
      if (std::less<T const*>{}(address_[by_address_[i]],
                                address_[before] + places[before].count)) {
        refuse(by_address_[i], "overlaps tensor '" + (*tensors_)[before].name + "'");
      }
    }
  }

  void find_in_place() {
    auto const ranks = static_cast<std::uint64_t>(partition_->world_size());
    for (std::size_t b = 0; b < in_place_.size(); ++b) {
      BucketSpan const& bucket = partition_->buckets()[b];
      T* base = nullptr;
      std::uint64_t covered = 0;
      bool one_run = bucket.count == bucket.shard * ranks;
      partition_->for_each_segment(bucket.begin, bucket.count, [&](Segment const& segment) {
        T* const here = address_[segment.tensor] + segment.tensor_offset;
        if (base == nullptr) base = here;
        one_run = one_run && segment.range_offset == covered && here == base + covered;
        covered += segment.count;
      });
      in_place_[b] = one_run && covered == bucket.count ? base : nullptr;
    }
  }

  std::vector<Tensor> const* tensors_;
  Partition const* partition_;
  char const* what_;
  std::vector<T*> address_;
  std::vector<T*> in_place_;
  std::vector<std::size_t> by_address_;
  bool bound_ = false;
};

}  // namespace zero::inline v0_1::detail
