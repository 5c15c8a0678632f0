/// @file
/// Memory a trainer lends: checked once per binding, never written outside.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/sort_indices.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Addresses of the trainer's tensors, one per described tensor.
///
/// Binding again with other pointers costs O(tensors log tensors), in one call or unit by unit, and
/// allocates nothing, so that trainers whose gradients move from step to step can bind every step.
class LentTensors {
 public:
  /// @param types  of storage kinds, and which of them these elements are of
  /// @param lends  false where the library owns this memory, and nothing is ever lent
  /// @param written  reduced gradients are written here, so that none may be absent
  ZERO_APART ZERO_COLD LentTensors(std::vector<Tensor> const& tensors,
                                   Partition const& partition,
                                   char const* what,
                                   KindTypes const& types,
                                   DType StorageTypes::*type,
                                   bool lends,
                                   bool written);

  [[nodiscard]] bool bound() const noexcept { return bound_; }
  /// Null where nothing is lent.
  [[nodiscard]] std::byte* operator[](std::size_t tensor) const noexcept {
    return address_[partition_->place(tensor).storage];
  }
  [[nodiscard]] Array tensor(std::size_t tensor) const noexcept {
    return {(*this)[tensor], dtype(tensor)};
  }

  /// Is a tensor's memory not lent, which a gradient's need not be?
  [[nodiscard]] bool missing(std::size_t tensor) const noexcept {
    return (*this)[tensor] == nullptr;
  }

  /// The bucket's elements if they lie in one run of lent memory that needs no padding, or null. Of
  /// what was bound unit by unit it is known once `find_in_place` was called.
  [[nodiscard]] std::byte* in_place(std::size_t bucket) const noexcept { return in_place_[bucket]; }
  ZERO_APART void find_in_place(BucketSpan const& bucket);

  /// @param lent       one span per described tensor; a tied tensor's may be empty
  /// @param model      says which slices they have
  /// @param need_frozen whether frozen tensors must be lent too
  /// @throws Error (invalid_argument) for wrong sizes, null pointers or overlaps
  ZERO_APART void bind(LentSpans const& lent, Model const& model, bool need_frozen);

  /// Tensors that lie one after the other in one buffer; tied tensors do not lie there again.
  /// @throws Error (invalid_argument) if the buffer has not exactly their size
  ZERO_APART void bind_flat(Elements flat, bool need_frozen);

  /// Nothing is lent yet: all will be, unit by unit.
  ZERO_APART void bind_none() noexcept;

  /// Lends what one unit has until it is forgotten.
  /// @param own    the unit's tensors
  /// @param lent   one span for each, empty for what is absent, or lent already and shared
  /// @param in_use whether what is lent already stays in use, not tied tensors alone
  /// @param other  what must lie elsewhere
  ZERO_APART void bind_unit(std::span<std::size_t const> own,
                            LentSpans const& lent,
                            bool in_use,
                            LentTensors const& other);

  /// What was lent for one use is not used again.
  ZERO_APART void forget(std::size_t tensor) noexcept;
  ZERO_APART void forget(std::vector<std::size_t> const& own) noexcept;
  /// @throws Error (invalid_argument) if the tensor was lent for one use, which is over
  ZERO_APART void require_lent(std::size_t tensor) const;

  /// To be called when both are bound.
  /// @throws Error (invalid_argument) if a tensor lent here shares memory with one lent there
  ZERO_APART void refuse_overlap_with(LentTensors& other);

 private:
  using ByAddress = std::multimap<std::uintptr_t, std::size_t>;
  /// How long memory stays lent.
  enum class Lent : std::uint8_t { always, once, forgotten };

  /// Asks `lent_elements(t)` for every tensor's memory, once each and in order.
  template <class Memory>
  void bind_each(Memory const& lent_elements, bool need_frozen);

  [[nodiscard]] DType dtype_of_kind(std::size_t kind) const noexcept {
    return (*types_)[kind].*type_;
  }
  /// Of a tensor's elements.
  [[nodiscard]] DType dtype(std::size_t tensor) const noexcept {
    return dtype_of_kind(partition_->place(tensor).kind);
  }
  /// A gradient that is not there, and need not be.
  [[nodiscard]] bool is_absent(std::size_t tensor, Elements lent) const noexcept {
    bool const none = lent.first == nullptr && lent.count == 0;
    return none && !(written_ && partition_->place(tensor).count > 0);
  }
  /// Is a tensor's memory lent in this step already, and others have added to it?
  ZERO_APART [[nodiscard]] bool stays(std::size_t tensor, bool in_use) const noexcept;
  ZERO_APART void require_memory(std::size_t t, LentElements const& lent) const;
  /// Adds a tensor to `by_address_`, at once if it belongs before `hint`.
  ZERO_APART void add(std::size_t tensor, ByAddress::const_iterator hint);
  /// The first tensor, by address, that ends behind one.
  ZERO_APART [[nodiscard]] ByAddress::const_iterator behind(std::uintptr_t begin) const;
  /// Takes back all that was lent in this call if the tensor overlaps one of the others.
  ZERO_APART void refuse_overlap(std::size_t tensor, LentTensors const& other);
  ZERO_APART [[noreturn]] ZERO_COLD void refuse(std::size_t tensor, Message const& why) const;
  ZERO_APART [[noreturn]] ZERO_COLD void refuse(std::string const& name, Message const& why) const;

  /// Addresses of different objects compare as integers only.
  [[nodiscard]] std::uintptr_t begin_of(std::size_t tensor) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address_[tensor]);
  }
  [[nodiscard]] std::uintptr_t end_of(std::size_t tensor) const noexcept {
    auto const count = partition_->place(tensor).count;
    return begin_of(tensor) + static_cast<std::size_t>(count) * size_of(dtype(tensor));
  }
  /// Sorts what was lent in one call, and adds it.
  ZERO_APART void add_all();

  // By name, since nvcc writes a member's declaration with parentheses that GCC warns of.
  using WhichType = DType StorageTypes::*;

  std::vector<Tensor> const* tensors_;
  Partition const* partition_;
  char const* what_;
  KindTypes const* types_;
  WhichType type_;
  bool written_;
  std::vector<std::byte*> address_;
  std::vector<Lent> lent_;
  std::vector<std::byte*> in_place_;
  ByAddress by_address_;                     ///< of all that is lent and not empty: which tensor's
  std::vector<ByAddress::node_type> spare_;  ///< for what is not lent now
  std::vector<std::size_t> order_;           ///< of what is lent in one call
  bool bound_ = false;
};

#if ZERO_BODIES

ZERO_BODY LentTensors::LentTensors(std::vector<Tensor> const& tensors,
                                   Partition const& partition,
                                   char const* what,
                                   KindTypes const& types,
                                   DType StorageTypes::*type,
                                   bool lends,
                                   bool written)
    : tensors_(&tensors),
      partition_(&partition),
      what_(what),
      types_(&types),
      type_(type),
      written_(written),
      address_(lends ? tensors.size() : 0, nullptr),
      lent_(lends ? tensors.size() : 0, Lent::always),
      in_place_(lends ? partition.bucket_count() : 0, nullptr) {
  order_.reserve(address_.size());
  spare_.reserve(address_.size());
  for (std::size_t t = 0; t < address_.size(); ++t) {
    spare_.push_back(by_address_.extract(by_address_.emplace(0, t)));
  }
}

ZERO_BODY void LentTensors::bind(LentSpans const& lent, Model const& model, bool need_frozen) {
  std::vector<Tensor> const& described = model.described;
  if (lent.size() != described.size()) {
    fail(ErrorKind::invalid_argument,
         {described.size(), " tensors are described but ", lent.size(), " ", what_, " are lent"});
  }
  auto const slice = [&](std::size_t t) -> LentElements {
    Tensor const& tensor = described[model.slices[t].described];
    LentElements const whole = lent[model.slices[t].described];
    if (!tensor.stacked || whole.count == 0) return whole;
    if (std::uint64_t const count = element_count(tensor); whole.count != count) {
      refuse(tensor.name, {"has ", count, " elements, but ", whole.count, " are lent"});
    }
    Array const all{static_cast<std::byte*>(whole.first), dtype(t)};
    auto const count = static_cast<std::size_t>(partition_->place(t).count);
    return {{all.at(model.slices[t].first), count}, whole.dtype};
  };
  bind_each(slice, need_frozen);
}

ZERO_BODY void LentTensors::bind_flat(Elements flat, bool need_frozen) {
  auto const& places = partition_->placement().places();
  std::uint64_t total = 0;
  for (std::size_t t = 0; t < places.size(); ++t) {
    if (places[t].storage != t) continue;
    total = checked_add(total, places[t].count);
    if (dtype(t) == dtype_of_kind(0)) continue;
    refuse(t,
           {"is of ",
            name(dtype(t)),
            ", and a flat buffer has elements of one type, ",
            name(dtype_of_kind(0)),
            "; lend a span for each tensor"});
  }
  if (total != flat.count) {
    fail(ErrorKind::invalid_argument,
         {"the tensors have ",
          total,
          " elements, but the flat buffer of ",
          what_,
          " has ",
          flat.count,
          flat.count > total ? "; where tensors lie with gaps between them, lend a span for each"
                             : ""});
  }
  Array const all{static_cast<std::byte*>(flat.first), dtype_of_kind(0)};
  std::uint64_t used = 0;
  auto const next = [&](std::size_t t) -> LentElements {
    if (places[t].storage != t) return {};
    LentElements const lent{{all.at(used), static_cast<std::size_t>(places[t].count)}};
    used += places[t].count;
    return lent;
  };
  bind_each(next, need_frozen);
}

ZERO_BODY void LentTensors::bind_none() noexcept {
  for (std::size_t t = 0; t < address_.size(); ++t) forget(t);
  bound_ = true;
}

ZERO_BODY void LentTensors::bind_unit(std::span<std::size_t const> own,
                                      LentSpans const& lent,
                                      bool in_use,
                                      LentTensors const& other) {
  auto const& places = partition_->placement().places();
  if (lent.size() != own.size()) {
    fail(ErrorKind::invalid_argument,
         {"the unit has ", own.size(), " tensors but ", lent.size(), " ", what_, " are lent"});
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::size_t const t = own[i];
    if (places[t].frozen || is_absent(t, lent[i])) continue;
    if (!stays(t, in_use)) {
      require_memory(t, lent[i]);
    } else if (lent[i].count > 0 && lent[i].first != address_[places[t].storage]) {
      refuse(t, "stays where it was lent in this step before, but is lent at another address");
    }
  }
  order_.clear();
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::size_t const storage = places[own[i]].storage;
    if (places[own[i]].frozen || stays(own[i], in_use)) continue;
    forget(storage);
    lent_[storage] = Lent::once;
    if (is_absent(own[i], lent[i])) continue;
    address_[storage] = static_cast<std::byte*>(lent[i].first);
    order_.push_back(storage);
  }
  // Added in the order of addresses, because neighbours in the tree are then still in the cache.
  // Tied tensors of one unit share their memory, which is added once.
  sort_indices(order_, [&](std::size_t a, std::size_t b) {
    return begin_of(a) != begin_of(b) ? begin_of(a) < begin_of(b) : a < b;
  });
  order_.erase(std::unique(order_.begin(), order_.end()), order_.end());
  for (std::size_t const t : order_) {
    refuse_overlap(t, *this);
    refuse_overlap(t, other);
    add(t, behind(begin_of(t)));
  }
}

ZERO_BODY void LentTensors::forget(std::size_t tensor) noexcept {
  // Nothing that is lent shares an address, but tensors that are tied, of which one is there.
  auto const at = by_address_.find(begin_of(tensor));
  if (at != by_address_.end() && at->second == tensor) spare_.push_back(by_address_.extract(at));
  address_[tensor] = nullptr;
  lent_[tensor] = Lent::forgotten;
}

ZERO_BODY void LentTensors::add(std::size_t tensor, ByAddress::const_iterator hint) {
  if (partition_->place(tensor).count == 0) return;
  ByAddress::node_type node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = begin_of(tensor);
  node.mapped() = tensor;
  by_address_.insert(hint, std::move(node));
}

ZERO_BODY void LentTensors::forget(std::vector<std::size_t> const& own) noexcept {
  for (std::size_t const t : own) {
    std::size_t const storage = partition_->place(t).storage;
    if (lent_[storage] == Lent::once) forget(storage);
  }
}

ZERO_BODY void LentTensors::require_lent(std::size_t tensor) const {
  TensorPlace const& place = partition_->place(tensor);
  if (place.frozen || place.count == 0 || lent_[place.storage] != Lent::forgotten) return;
  refuse(tensor, "is used, but not lent in this step; call bind_gradients(unit, ...) before");
}

ZERO_BODY void LentTensors::refuse_overlap_with(LentTensors& other) {
  auto theirs = other.by_address_.begin();
  for (auto own = by_address_.begin();
       own != by_address_.end() && theirs != other.by_address_.end();) {
    if (end_of(own->second) <= theirs->first) {
      ++own;
    } else if (other.end_of(theirs->second) <= own->first) {
      ++theirs;
    } else {
      bound_ = false;
      std::string const& name = (*tensors_)[theirs->second].name;
      refuse(own->second, {"overlaps the ", other.what_, " of tensor '", name, "'"});
    }
  }
}

template <class Memory>
void LentTensors::bind_each(Memory const& lent_elements, bool need_frozen) {
  auto const& places = partition_->placement().places();
  bound_ = false;
  order_.clear();
  while (!by_address_.empty()) spare_.push_back(by_address_.extract(by_address_.begin()));
  for (std::size_t t = 0; t < places.size(); ++t) {
    TensorPlace const& place = places[t];
    LentElements const lent = lent_elements(t);
    bool const tied = place.storage != t;
    lent_[t] = Lent::always;
    if ((place.frozen && !need_frozen) || (tied && lent.count == 0) ||
        (!need_frozen && is_absent(t, lent))) {
      address_[t] = tied ? address_[place.storage] : nullptr;
      continue;
    }
    require_memory(t, lent);
    if (tied && lent.first != address_[place.storage]) {
      refuse(t, "is tied, but lent at another address than the tensor it is tied to");
    }
    address_[t] = static_cast<std::byte*>(lent.first);
    if (!tied && place.count > 0) order_.push_back(t);
  }
  add_all();
  partition_->for_each_bucket([&](BucketSpan const& bucket) { find_in_place(bucket); });
  bound_ = true;
}

ZERO_BODY bool LentTensors::stays(std::size_t tensor, bool in_use) const noexcept {
  return lent_[partition_->place(tensor).storage] == Lent::once && !missing(tensor) &&
         (in_use || partition_->groups()[partition_->group_of(tensor)].tied);
}

ZERO_BODY void LentTensors::require_memory(std::size_t t, LentElements const& lent) const {
  std::uint64_t const count = partition_->place(t).count;
  if (written_ && lent.count == 0 && count > 0) {
    refuse(t,
           "is not lent, but reduced gradients are written to all of them; lend it, and say "
           "without_gradient()");
  }
  if (lent.count != count) {
    refuse(t, {"has ", count, " elements, but ", lent.count, " are lent"});
  }
  if (count > 0 && lent.first == nullptr) refuse(t, "is lent as a null pointer");
  if (count > 0 && lent.dtype.value_or(dtype(t)) != dtype(t)) {
    refuse(t, {"is of ", name(dtype(t)), ", but lent as ", name(*lent.dtype)});
  }
  if (lent.count >
      (UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(lent.first)) / size_of(dtype(t))) {
    refuse(t, "is lent beyond the end of the address space");
  }
}

ZERO_BODY LentTensors::ByAddress::const_iterator LentTensors::behind(std::uintptr_t begin) const {
  auto const at = by_address_.lower_bound(begin);
  if (at == by_address_.begin()) return at;
  auto const before = std::prev(at);
  return end_of(before->second) > begin ? before : at;
}

ZERO_BODY void LentTensors::refuse_overlap(std::size_t tensor, LentTensors const& other) {
  auto const at = other.behind(begin_of(tensor));
  if (at == other.by_address_.end() || end_of(tensor) <= at->first) return;
  for (std::size_t const t : order_) forget(t);
  bool const same = &other == this;
  refuse(tensor,
         {"overlaps ",
          same ? "" : "the ",
          same ? "" : other.what_,
          same ? "tensor '" : " of tensor '",
          (*tensors_)[at->second].name,
          "'"});
}

ZERO_BODY void LentTensors::refuse(std::size_t tensor, Message const& why) const {
  refuse((*tensors_)[tensor].name, why);
}

ZERO_BODY void LentTensors::refuse(std::string const& name, Message const& why) const {
  fail(ErrorKind::invalid_argument, {what_, ": tensor '", name, "' ", why});
}

ZERO_BODY void LentTensors::add_all() {
  sort_indices(order_, [&](std::size_t a, std::size_t b) { return begin_of(a) < begin_of(b); });
  for (std::size_t const t : order_) {
    if (!by_address_.empty() && begin_of(t) < end_of(by_address_.rbegin()->second)) {
      std::size_t const before = by_address_.rbegin()->second;
      refuse(t, {"overlaps tensor '", (*tensors_)[before].name, "'"});
    }
    add(t, by_address_.end());
  }
}

ZERO_BODY void LentTensors::find_in_place(BucketSpan const& bucket) {
  Array base{nullptr, dtype_of_kind(bucket.kind())};
  std::byte* end = nullptr;
  bool one_run = bucket.whole().count() == bucket.padded();
  partition_->for_each_segment(bucket.whole(), [&](Segment const& piece) {
    one_run = one_run && !missing(piece.tensor);
    if (!one_run) return;
    std::byte* const here = tensor(piece.tensor).at(piece.in_tensor);
    if (base.first == nullptr) base.first = end = here;
    one_run = one_run && here == end && here == base.at(piece.in_range);
    end = here + base.bytes(piece.count);
  });
  one_run = one_run && base.first != nullptr && end == base.at(bucket.whole().count());
  in_place_[bucket.index()] = one_run ? base.first : nullptr;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
