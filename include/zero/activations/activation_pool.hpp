/// @file
/// Whole checkpoints of the layers in use: where a rank keeps only its share in a fixed pool,
/// filled ahead of time.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/activations/activation_ledger.hpp"
#include "zero/activations/activation_plan.hpp"
#include "zero/activations/activation_store.hpp"
#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/step/gather.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Gathers layers into `prefetch + 1` slots of the size of the largest layer.
///
/// While a layer is recomputed, the ones below it are gathered, and the next one below those comes
/// back from the slower memory. Which gathers are started depends only on the sequence of calls, so
/// ranks that run the same schedule start the same collectives.
class ActivationPool {
 public:
  ZERO_OPTIONAL_APART ActivationPool(Ranks& ranks,
                                     ActivationLayout const& layout,
                                     ActivationLedger& ledger,
                                     ActivationSizes const& sizes,
                                     int prefetch,
                                     ActivationStore& store,
                                     Arena& arena)
      : ranks_(&ranks),
        layout_(&layout),
        ledger_(&ledger),
        store_(&store),
        prefetch_(prefetch),
        slot_bytes_(static_cast<std::size_t>(sizes.pool_slot)),
        pool_(arena.take(Role::activation_pool, sizes.pool_slot * sizes.pool_slots)),
        slots_(ranks, sizes.pool_slots, layout.most_checkpoints()) {}

  /// Keeps a layer whole until `release`: gathered, or where it is kept. Collective if gathered.
  ZERO_OPTIONAL_APART [[nodiscard]] std::byte const* acquire(LayerKey key) {
    std::byte const* const whole =
        layout_->form().gathered ? memory(gather(key)) : store_->share(key);
    ledger_->fetch(key);
    return whole;
  }

  /// A layer is not needed any more. Local; never blocks.
  ZERO_OPTIONAL_APART void release(LayerKey key) noexcept {
    if (Slots::Slot* const slot = slots_.find(key)) *slot = {};
    ledger_->release(key);
  }

  /// Throws away what was gathered ahead. Blocks for gathers that are under way.
  ZERO_OPTIONAL_APART void forget() {
    for (Slots::Slot& slot : slots_.slots()) slot.readers = 0;
    slots_.settle();
    store_->forget();
  }

 private:
  using Slots = SlotPool<LayerKey>;

  [[nodiscard]] std::byte* memory(Slots::Slot const& slot) const noexcept {
    return pool_.data() + slots_.number(slot) * slot_bytes_;
  }

  ZERO_OPTIONAL_APART [[nodiscard]] Slots::Slot& gather(LayerKey key) {
    ranks_->progress();
    auto const fill = [this](Slots::Slot& slot, LayerKey what) { start(slot, what); };
    Slots::Slot* const slot = slots_.bring(key, true, fill);
    if (slot == nullptr) {
      ledger_->refuse(key.layer,
                      ledger_->micro_batch(key),
                      "is fetched while all slots of the gather pool are in use: release a layer "
                      "before fetching the next, or raise Prefetch.depth");
    }
    slot->readers = 1;
    auto const next = [this](LayerKey what) { return ledger_->next(what); };
    std::optional<LayerKey> const wanted = slots_.look_ahead(key, prefetch_, next, fill);
    slots_.complete(*slot);
    store_->spent(key);
    if (wanted) store_->expect(*wanted);
    return *slot;
  }

  ZERO_OPTIONAL_APART void start(Slots::Slot& slot, LayerKey key) {
    if (slot.holds) store_->spent(*slot.holds);
    std::byte const* const share = store_->share(key);
    PlacedLayer const& layer = layout_->layers()[key.layer];
    for (std::size_t c = layer.first; c < layer.first + layer.count; ++c) {
      PlacedCheckpoint const& placed = layout_->placed(c);
      if (placed.stored_elements == 0) continue;
      DType const dtype = layout_->checkpoints()[c].dtype;
      slots_.start(slot,
                   {.op = Op::all_gather,
                    .dtype = dtype,
                    .accumulate = dtype,
                    .count = static_cast<std::size_t>(placed.stored_elements),
                    .send = share + placed.stored_offset,
                    .recv = memory(slot) + placed.gathered_offset,
                    .bucket = bucket(key, c)});
    }
  }

  /// A number that ranks only share where they gather the same checkpoint of the same micro-batch.
  [[nodiscard]] int bucket(LayerKey key, std::size_t c) const noexcept {
    auto const batch = static_cast<std::uint64_t>(ledger_->micro_batch(key));
    return static_cast<int>((batch * layout_->checkpoints().size() + c) % (std::uint64_t{1} << 31));
  }

  Ranks* ranks_;
  ActivationLayout const* layout_;
  ActivationLedger* ledger_;
  ActivationStore* store_;
  int prefetch_;
  std::size_t slot_bytes_;
  std::span<std::byte> pool_;
  Slots slots_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
