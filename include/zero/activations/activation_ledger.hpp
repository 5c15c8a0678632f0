/// @file
/// What is stored and what is in use, and a sentence for every call that comes out of order.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A layer of a micro-batch under way.
struct LayerKey {
  std::size_t batch = 0;  ///< place of the micro-batch
  std::size_t layer = 0;  ///< index into the layout's layers
  friend constexpr bool operator==(LayerKey const&, LayerKey const&) = default;
};

/// Each micro-batch is a stack of layers: stored upwards, fetched from the top. A micro-batch takes
/// a place with its first checkpoint and gives it back with its last layer.
class ActivationLedger {
 public:
  static constexpr int no_batch = -1;
  static constexpr std::size_t no_checkpoint = ~std::size_t{0};

  ActivationLedger(ActivationLayout const& layout, int micro_batches)
      : layout_(&layout),
        batches_(static_cast<std::size_t>(micro_batches)),
        stored_(batches_.size() * layout.checkpoints().size()),
        fetched_(batches_.size() * layout.layers().size()) {}

  /// Which checkpoint a tensor is, which is a layer's `i`-th.
  /// @throws Error (invalid_argument) if it is not as described
  [[nodiscard]] std::size_t described(
      std::size_t layer, std::size_t i, int micro_batch, std::size_t elements, DType dtype) const {
    PlacedLayer const& placed = layout_->layers()[layer];
    if (i >= placed.count) refuse(layer, micro_batch, "has no checkpoint of this number");
    ActivationCheckpoint const& checkpoint = layout_->checkpoints()[placed.first + i];
    if (checkpoint.dtype != dtype || checkpoint.elements != elements) {
      Message const differing{"is stored as ",
                              elements,
                              " ",
                              name(dtype),
                              ", described as ",
                              checkpoint.elements,
                              " ",
                              name(checkpoint.dtype)};
      refuse(layer, micro_batch, differing.text(), checkpoint.name);
    }
    return placed.first + i;
  }

  /// Where checkpoint `c` of a micro-batch is to be stored. Changes nothing.
  /// @throws Error (invalid_argument) if it may not be stored now
  [[nodiscard]] LayerKey to_store(std::size_t c, int micro_batch) const {
    std::size_t const layer = layout_->placed(c).layer;
    if (micro_batch < 0)
      refuse(layer, micro_batch, "is stored, and micro-batches are counted from 0");
    std::size_t const batch = find(micro_batch);
    if (batch == batches_.size()) return {vacant(layer, micro_batch), layer};
    if (is_stored(batch, c)) {
      refuse(layer, micro_batch, "is stored twice", layout_->checkpoints()[c].name);
    }
    std::size_t const top = highest(batch);
    if (top > layer) {
      Message const late{"is stored after layer ",
                         layout_->layers()[top].number,
                         ": forward passes store layers in ascending order"};
      refuse(layer, micro_batch, late.text());
    }
    if (is_fetched({batch, layer})) {
      refuse(layer, micro_batch, "is stored while it is fetched: release it first");
    }
    return {batch, layer};
  }

  /// Checkpoint `c` has been stored.
  void store(LayerKey key, std::size_t c, int micro_batch) noexcept {
    batches_[key.batch].micro_batch = micro_batch;
    ++batches_[key.batch].live;
    stored_[key.batch * layout_->checkpoints().size() + c] = 1;
  }

  /// Which layer is to be fetched. Changes nothing.
  /// @throws Error (invalid_argument) if it may not be fetched now
  [[nodiscard]] LayerKey to_fetch(std::size_t layer, int micro_batch) const {
    std::size_t const batch = find(micro_batch);
    if (batch == batches_.size()) {
      refuse(layer, micro_batch, "is fetched, and nothing of this micro-batch is stored");
    }
    LayerKey const key{batch, layer};
    if (is_fetched(key)) refuse(layer, micro_batch, "is fetched while it is fetched already");
    if (std::size_t const c = missing(key); c != no_checkpoint) {
      refuse(layer, micro_batch, "is fetched before it was stored", layout_->checkpoints()[c].name);
    }
    for (std::size_t above = layout_->layers().size() - 1; above > layer; --above) {
      if (!any_stored(batch, above) || is_fetched({batch, above})) continue;
      Message const early{"is fetched before layer ",
                          layout_->layers()[above].number,
                          ": backward passes fetch layers in descending order"};
      refuse(layer, micro_batch, early.text());
    }
    return key;
  }

  /// A layer has been fetched.
  void fetch(LayerKey key) noexcept { fetched(key) = 1; }

  /// A layer that was fetched is not needed any more.
  void release(LayerKey key) noexcept {
    fetched(key) = 0;
    PlacedLayer const& placed = layout_->layers()[key.layer];
    for (std::size_t c = placed.first; c < placed.first + placed.count; ++c) {
      stored_[key.batch * layout_->checkpoints().size() + c] = 0;
    }
    Batch& batch = batches_[key.batch];
    batch.live -= placed.count;
    if (batch.live == 0) batch.micro_batch = no_batch;
  }

  /// The layer that is fetched after `key` if the backward pass goes on, if one is left.
  [[nodiscard]] std::optional<LayerKey> next(LayerKey key) const noexcept {
    while (key.layer > 0) {
      --key.layer;
      if (is_fetched(key) || !any_stored(key.batch, key.layer)) continue;
      return missing(key) == no_checkpoint ? std::optional(key) : std::nullopt;
    }
    return std::nullopt;
  }

  [[nodiscard]] int micro_batch(LayerKey key) const noexcept {
    return batches_[key.batch].micro_batch;
  }

  /// @throws Error (invalid_argument) if anything is stored, naming the first of it
  void require_empty() const {
    for (std::size_t batch = 0; batch < batches_.size(); ++batch) {
      if (batches_[batch].live == 0) continue;
      std::size_t const layer = highest(batch);
      refuse(layer,
             batches_[batch].micro_batch,
             is_fetched({batch, layer})
                 ? "is still in use at the end of the step"
                 : "is stored at the end of the step, and was never fetched");
    }
  }

  /// Forgets everything that is stored.
  /// @throws Error (invalid_argument) if a layer is fetched, naming it
  void clear() {
    for (std::size_t batch = 0; batch < batches_.size(); ++batch) {
      for (std::size_t layer = 0; layer < layout_->layers().size(); ++layer) {
        if (!is_fetched({batch, layer})) continue;
        refuse(layer, batches_[batch].micro_batch, "is in use, and to be discarded");
      }
    }
    for (Batch& batch : batches_) batch = {};
    for (char& stored : stored_) stored = 0;
  }

  /// Fails about a layer, or one of its checkpoints.
  [[noreturn]] ZERO_COLD void refuse(std::size_t layer,
                                     int micro_batch,
                                     std::string_view what,
                                     std::string_view checkpoint = {}) const {
    Message const named{", checkpoint '", checkpoint, "'"};
    fail(ErrorKind::invalid_argument,
         {"layer ",
          layout_->layers()[layer].number,
          checkpoint.empty() ? std::string_view() : std::string_view(named.text()),
          ", micro-batch ",
          micro_batch,
          " ",
          what});
  }

 private:
  struct Batch {
    int micro_batch = no_batch;
    std::size_t live = 0;  ///< checkpoints that are stored
  };

  [[nodiscard]] std::size_t find(int micro_batch) const noexcept {
    std::size_t batch = 0;
    while (batch < batches_.size() && batches_[batch].micro_batch != micro_batch) ++batch;
    return batch;
  }
  [[nodiscard]] std::size_t vacant(std::size_t layer, int micro_batch) const {
    for (std::size_t batch = 0; batch < batches_.size(); ++batch) {
      if (batches_[batch].live == 0) return batch;
    }
    Message const many{"is stored while ",
                       batches_.size(),
                       " other micro-batches are in flight: raise MicroBatches.in_flight"};
    refuse(layer, micro_batch, many.text());
  }
  [[nodiscard]] bool is_stored(std::size_t batch, std::size_t c) const noexcept {
    return stored_[batch * layout_->checkpoints().size() + c] != 0;
  }
  /// The first checkpoint of a layer that is not stored.
  [[nodiscard]] std::size_t missing(LayerKey key) const noexcept {
    PlacedLayer const& placed = layout_->layers()[key.layer];
    for (std::size_t c = placed.first; c < placed.first + placed.count; ++c) {
      if (!is_stored(key.batch, c)) return c;
    }
    return no_checkpoint;
  }
  [[nodiscard]] bool any_stored(std::size_t batch, std::size_t layer) const noexcept {
    PlacedLayer const& placed = layout_->layers()[layer];
    for (std::size_t c = placed.first; c < placed.first + placed.count; ++c) {
      if (is_stored(batch, c)) return true;
    }
    return false;
  }
  /// The last layer of which something is stored, of a micro-batch with any.
  [[nodiscard]] std::size_t highest(std::size_t batch) const noexcept {
    std::size_t layer = layout_->layers().size() - 1;
    while (layer > 0 && !any_stored(batch, layer)) --layer;
    return layer;
  }
  [[nodiscard]] char& fetched(LayerKey key) noexcept {
    return fetched_[key.batch * layout_->layers().size() + key.layer];
  }
  [[nodiscard]] bool is_fetched(LayerKey key) const noexcept {
    return fetched_[key.batch * layout_->layers().size() + key.layer] != 0;
  }

  ActivationLayout const* layout_;
  std::vector<Batch> batches_;
  std::vector<char> stored_;   ///< by micro-batch and checkpoint
  std::vector<char> fetched_;  ///< by micro-batch and layer
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
