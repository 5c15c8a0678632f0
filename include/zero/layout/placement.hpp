/// @file
/// Where tensors lie in the logical element space: a function of the model alone.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/number.hpp"
#include "zero/layout/name_index.hpp"
#include "zero/layout/sort_indices.hpp"
#include "zero/layout/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// Granularity of ownership, in elements: vector loads, window registration, and the fixed blocks
/// of the exact gradient norm all rely on it.
inline constexpr std::uint64_t block = 512;

/// Tensors begin at multiples of this many elements: 64 bytes of a 16-bit type, 128 of fp32.
inline constexpr std::uint64_t tensor_alignment = 32;

/// A tensor's place. A tied tensor has the place of the tensor whose memory it shares.
struct TensorPlace {
  std::uint64_t offset = 0;  ///< first element
  std::uint64_t count = 0;   ///< elements
  std::size_t cluster = 0;   ///< index into `clusters()`
  std::size_t storage = 0;   ///< the tensor whose memory this is: itself unless tied
  std::uint32_t kind = 0;    ///< index into `kinds()`
  // Together in what one of them takes: a model of layers has as many places as it has tensors.
  std::uint32_t trained : 31 = 0;  ///< how many of `trained_tensors()` lie before it
  bool frozen : 1 = false;         ///< whether nothing updates it
};

/// Which tensors are held in the same way.
struct StorageKind {
  std::uint32_t types = 0;  ///< the number of their types
  bool frozen = false;      ///< nothing updates them
  bool whole = false;       ///< every rank has all of them, whatever the stage
  friend constexpr bool operator==(StorageKind const&, StorageKind const&) = default;
};

/// Neighbouring tensors of one kind that the same units use. Begins at a multiple of `block`.
struct Cluster {
  std::uint64_t begin = 0;  ///< first element
  std::uint64_t count = 0;  ///< from the first tensor's begin to the last one's end
  std::vector<int> units;   ///< ascending
  bool tied = false;        ///< whether more than one unit uses it
  std::uint32_t kind = 0;   ///< of its tensors
};

/// The logical element space of a model's tensors.
///
/// Storage kinds, tensors that are held alike, lie one after the other, and each begins at a
/// multiple of `block`. Those that are trained come first, so that no frozen tensor moves them.
///
/// It depends on the tensors only, never on world size, stage or bucket size: this is what the
/// gradient norm's block grid and every promise of bit-identity rest on.
class Placement {
 public:
  /// `types` has the number of each tensor's types, from 0 on; empty: all have the same. Trained
  /// tensors of types i are of kind i.
  /// @throws Error (invalid_argument) for duplicate or missing names, negative or absurd units,
  ///   bad ties, element counts that overflow
  ZERO_APART ZERO_COLD explicit Placement(std::vector<Tensor> const& tensors,
                                          std::vector<std::uint32_t> const& types = {});

  /// Places of the described tensors, in registration order.
  [[nodiscard]] std::vector<TensorPlace> const& places() const noexcept { return places_; }
  /// Clusters in the order of the logical space.
  [[nodiscard]] std::vector<Cluster> const& clusters() const noexcept { return clusters_; }
  /// Tensors that own memory and have elements, in ascending order of offset.
  [[nodiscard]] std::vector<std::size_t> const& by_offset() const noexcept { return by_offset_; }
  /// Units, empty ones included: the largest number named plus 1.
  [[nodiscard]] int unit_count() const noexcept { return unit_count_; }
  /// Storage kinds, the frozen ones last.
  [[nodiscard]] std::vector<StorageKind> const& kinds() const noexcept { return kinds_; }
  /// The first of them, which are trained: at least one.
  [[nodiscard]] std::size_t trained_kinds() const noexcept { return trained_kinds_; }
  /// Elements that are trained: the paper's Ψ.
  [[nodiscard]] std::uint64_t trainable_elements() const noexcept { return trainable_elements_; }
  /// Tensors that are trained, own memory and have elements.
  [[nodiscard]] std::size_t trained_tensors() const noexcept { return trained_tensors_; }
  /// Elements of frozen tensors.
  [[nodiscard]] std::uint64_t frozen_elements() const noexcept { return frozen_elements_; }

 private:
  static constexpr int max_units = 1 << 20;

  ZERO_APART [[noreturn]] ZERO_COLD static void refuse(Tensor const& tensor, Message const& why);

  ZERO_APART ZERO_COLD void number_kinds(std::vector<Tensor> const& tensors,
                                         std::vector<std::uint32_t> const& types);

  ZERO_APART ZERO_COLD void resolve_ties(std::vector<Tensor> const& tensors);

  ZERO_APART ZERO_COLD void lay_out_clusters(std::vector<Tensor> const& tensors);

  ZERO_APART ZERO_COLD void index_by_offset(std::vector<Tensor> const& tensors);

  std::vector<TensorPlace> places_;
  std::vector<Cluster> clusters_;
  std::vector<std::size_t> by_offset_;
  std::vector<std::vector<int>> users_;
  int unit_count_ = 0;
  std::vector<StorageKind> kinds_{StorageKind{}};
  std::size_t trained_kinds_ = 1;
  std::size_t trained_tensors_ = 0;
  std::uint64_t trainable_elements_ = 0;
  std::uint64_t frozen_elements_ = 0;
};

#if ZERO_BODIES

ZERO_BODY Placement::Placement(std::vector<Tensor> const& tensors,
                               std::vector<std::uint32_t> const& types)
    : places_(tensors.size()), users_(tensors.size()) {
  number_kinds(tensors, types);
  resolve_ties(tensors);
  lay_out_clusters(tensors);
  index_by_offset(tensors);
}

ZERO_BODY void Placement::refuse(Tensor const& tensor, Message const& why) {
  fail(ErrorKind::invalid_argument, {"tensor '", tensor.name, "' ", why});
}

ZERO_BODY void Placement::number_kinds(std::vector<Tensor> const& tensors,
                                       std::vector<std::uint32_t> const& types) {
  auto const kind_of = [&](std::size_t t) {
    return StorageKind{types.empty() ? 0 : types[t], tensors[t].frozen, tensors[t].whole};
  };
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    places_[t].frozen = tensors[t].frozen;
    if (tensors[t].whole && !tensors[t].frozen) {
      refuse(tensors[t], "is whole, which only a frozen tensor can be");
    }
    places_[t].kind = kind_of(t).types;
    while (!tensors[t].frozen && places_[t].kind >= kinds_.size()) {
      kinds_.push_back({static_cast<std::uint32_t>(kinds_.size())});
    }
  }
  trained_kinds_ = kinds_.size();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].frozen) continue;
    auto const known = std::find(kinds_.begin(), kinds_.end(), kind_of(t));
    places_[t].kind = static_cast<std::uint32_t>(known - kinds_.begin());
    if (known == kinds_.end()) kinds_.push_back(kind_of(t));
  }
}

ZERO_BODY void Placement::resolve_ties(std::vector<Tensor> const& tensors) {
  detail::NameIndex const index(tensors);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    Tensor const& tensor = tensors[t];
    if (tensor.stacked) refuse(tensor, "is stacked: take_apart() comes before");
    if (tensor.name.empty()) {
      fail(ErrorKind::invalid_argument, {"tensor ", t, " has no name"});
    }
    if (index.find(tensors, tensor.name) != t) refuse(tensor, "is described twice");
    if (tensor.unit < 0 || tensor.unit >= max_units) {
      refuse(tensor, {"has unit ", tensor.unit, ", outside [0, 2^20)"});
    }
    detail::require_number(
        {"learning_rate of tensor '", tensor.name, "'"}, tensor.learning_rate, 0.);
    detail::require_number({"weight_decay of tensor '", tensor.name, "'"}, tensor.weight_decay, 0.);
    unit_count_ = (std::max)(unit_count_, tensor.unit + 1);
    TensorPlace& place = places_[t];
    place.storage = t;
    place.count = element_count(tensor);
    if (!tensor.tied_to.empty()) {
      auto const require = [&](bool holds, char const* otherwise) {
        if (!holds) refuse(tensor, {"is tied to '", tensor.tied_to, "', ", otherwise});
      };
      std::size_t const found = index.find(tensors, tensor.tied_to);
      require(found < t, "which is not described before it");
      Tensor const& target = tensors[found];
      require(target.shape == tensor.shape, "which has another shape");
      require(target.frozen == tensor.frozen, "but only one of them is frozen");
      require(target.whole == tensor.whole, "but only one of them is whole");
      require(target.weight_decay == tensor.weight_decay &&
                  target.learning_rate == tensor.learning_rate,
              "which has another weight decay or learning rate; they share one memory");
      require(places_[found].kind == place.kind,
              target.full_states == tensor.full_states
                  ? "which is held in other types"
                  : "but only one of them has its states in full");
      require(target.group == tensor.group, "which is of another group");
      place.storage = places_[found].storage;
    }
    std::vector<int>& units = users_[place.storage];
    auto const at = std::lower_bound(units.begin(), units.end(), tensor.unit);
    if (at == units.end() || *at != tensor.unit) units.insert(at, tensor.unit);
  }
}

ZERO_BODY void Placement::lay_out_clusters(std::vector<Tensor> const& tensors) {
  // Units ascending, registration order inside a unit, tied tensors first: what only one unit
  // uses of a kind is then one range, whatever the order in which the trainer lists its tensors.
  std::vector<std::size_t> order;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (places_[t].storage == t) order.push_back(t);
  }
  detail::sort_indices(order, [&](std::size_t a, std::size_t b) {
    if (places_[a].kind != places_[b].kind) return places_[a].kind < places_[b].kind;
    if (tensors[a].unit != tensors[b].unit) return tensors[a].unit < tensors[b].unit;
    bool const tied_a = users_[a].size() > 1;
    bool const tied_b = users_[b].size() > 1;
    if (tied_a != tied_b) return tied_a;
    if (users_[a] != users_[b]) return users_[a] < users_[b];
    return a < b;
  });
  std::uint64_t end = 0;
  for (std::size_t const t : order) {
    TensorPlace& place = places_[t];
    bool const tied = users_[t].size() > 1;
    if (clusters_.empty() || clusters_.back().kind != place.kind ||
        clusters_.back().units != users_[t]) {
      clusters_.push_back({round_up(end, block), 0, users_[t], tied, place.kind});
      end = clusters_.back().begin;
    }
    place.offset = round_up(end, tensor_alignment);
    end = checked_add(place.offset, place.count);
    clusters_.back().count = end - clusters_.back().begin;
    place.cluster = clusters_.size() - 1;
    std::uint64_t& sum = place.frozen ? frozen_elements_ : trainable_elements_;
    sum = checked_add(sum, place.count);
  }
  for (TensorPlace& place : places_) {
    place.offset = places_[place.storage].offset;
    place.cluster = places_[place.storage].cluster;
  }
}

ZERO_BODY void Placement::index_by_offset(std::vector<Tensor> const& tensors) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (places_[t].storage == t && places_[t].count > 0) by_offset_.push_back(t);
  }
  detail::sort_indices(by_offset_, [&](std::size_t a, std::size_t b) {
    return places_[a].offset < places_[b].offset;
  });
  for (std::size_t const t : by_offset_) {
    places_[t].trained = static_cast<std::uint32_t>(trained_tensors_) & 0x7fff'ffffu;
    if (!places_[t].frozen) ++trained_tensors_;
  }
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
