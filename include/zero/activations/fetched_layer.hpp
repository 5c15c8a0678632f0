/// @file
/// What a trainer holds while it recomputes a layer: views that keep their memory in place.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/activations/activation_ledger.hpp"
#include "zero/activations/activation_pool.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// Whole checkpoints of one layer of one micro-batch: gathered if they are partitioned, views of
/// what is kept if they are not.
///
/// Its destructor releases them: they are not stored any more, and spans taken from the guard are
/// invalid. Local and never blocks. A guard must not outlive the activations.
class FetchedLayer {
 public:
  /// Hands the layer over; the source holds nothing any more.
  FetchedLayer(FetchedLayer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        layout_(other.layout_),
        key_(other.key_),
        memory_(other.memory_),
        micro_batch_(other.micro_batch_) {}
  FetchedLayer& operator=(FetchedLayer&&) = delete;
  ~FetchedLayer() {
    if (pool_ != nullptr) pool_->release(key_);
  }

  /// The layer, as the trainer numbers it.
  [[nodiscard]] int layer() const noexcept { return layout_->layers()[key_.layer].number; }
  /// The micro-batch, as the trainer numbers it.
  [[nodiscard]] int micro_batch() const noexcept { return micro_batch_; }
  /// Number of the layer's checkpoints.
  [[nodiscard]] std::size_t size() const noexcept { return layout_->layers()[key_.layer].count; }

  /// The i-th checkpoint of the layer, as described: [its elements].
  /// @throws Error (invalid_argument) if there is none, if it is of another type, or after
  /// `release`
  template <Element T>
  [[nodiscard]] std::span<T const> get(std::size_t i = 0) const& {
    if (pool_ == nullptr) refuse("is used after it was released", i);
    if (i >= size()) refuse("has no checkpoint of this number", i);
    std::size_t const c = layout_->layers()[key_.layer].first + i;
    ActivationCheckpoint const& checkpoint = layout_->checkpoints()[c];
    if (checkpoint.dtype != dtype_of<T>) refuse("is read as another type than it is of", i);
    std::byte const* const at =
        memory_ + (layout_->form().gathered ? layout_->placed(c).gathered_offset
                                            : layout_->placed(c).stored_offset);
    return {reinterpret_cast<T const*>(at), checkpoint.elements};
  }
  /// The layer's checkpoint of that name: [its elements].
  /// @throws Error (invalid_argument) as above
  template <Element T>
  [[nodiscard]] std::span<T const> get(std::string_view name) const& {
    PlacedLayer const& layer = layout_->layers()[key_.layer];
    std::size_t i = 0;
    while (i < layer.count && layout_->checkpoints()[layer.first + i].name != name) ++i;
    return get<T>(i);
  }
  /// A view must not outlive its guard: give the guard a name.
  template <Element T>
  std::span<T const> get(std::size_t = 0) && = delete;
  template <Element T>
  std::span<T const> get(std::string_view) && = delete;

  /// Releases the layer now.
  /// @throws Error (invalid_argument) if it was released or moved away before
  void release() {
    if (pool_ == nullptr) refuse("is released twice", 0);
    std::exchange(pool_, nullptr)->release(key_);
  }

 private:
  template <class...>
  friend class Activations;
  using PlacedLayer = detail::PlacedLayer;

  FetchedLayer(detail::ActivationPool& pool,
               detail::ActivationLayout const& layout,
               detail::LayerKey key,
               std::byte const* memory,
               int micro_batch)
      : pool_(&pool), layout_(&layout), key_(key), memory_(memory), micro_batch_(micro_batch) {}

  [[noreturn]] ZERO_COLD void refuse(char const* what, std::size_t i) const {
    fail(ErrorKind::invalid_argument,
         {"layer ", layer(), ", checkpoint ", i, ", micro-batch ", micro_batch_, " ", what});
  }

  detail::ActivationPool* pool_;
  detail::ActivationLayout const* layout_;
  detail::LayerKey key_;
  std::byte const* memory_;
  int micro_batch_;
};

}  // namespace zero::inline ZERO_NAMESPACE
