/// @file
/// Whole checkpoints of the layers in use, where a rank keeps only its share: a fixed pool, filled
/// ahead of time.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/activations/activation_ledger.hpp"
#include "zero/activations/activation_plan.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/held/arena.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Gathers layers into `prefetch + 1` slots of the size of the largest layer.
///
/// While a layer is recomputed, the ones below it are gathered, and the next one below those comes
/// back from the slower memory. Which gathers are started depends only on the sequence of calls, so
/// ranks that run the same schedule start the same collectives.
template <Communicator C, class Store>
class ActivationPool {
 public:
  ActivationPool(C& comm,
                 ActivationLayout const& layout,
                 ActivationLedger const& ledger,
                 ActivationSizes const& sizes,
                 int prefetch,
                 Store& store,
                 Arena& arena)
      : comm_(&comm),
        layout_(&layout),
        ledger_(&ledger),
        store_(&store),
        prefetch_(prefetch),
        slot_bytes_(static_cast<std::size_t>(sizes.pool_slot)),
        pool_(arena.take(Role::activation_pool, sizes.pool_slot * sizes.pool_slots)),
        slots_(static_cast<std::size_t>(sizes.pool_slots)) {
    std::size_t most = 0;
    for (PlacedLayer const& layer : layout.layers()) most = layer.count > most ? layer.count : most;
    for (Slot& slot : slots_) slot.tickets.resize(most);
  }

  /// Gathers a layer and keeps it until `release`. Collective.
  [[nodiscard]] std::byte* acquire(LayerKey key) {
    progress(*comm_);
    Slot* slot = find(key);
    if (slot == nullptr) {
      slot = vacant(true);
      if (slot == nullptr) {
        ledger_->refuse(key.layer,
                        ledger_->micro_batch(key),
                        "is fetched while all slots of the gather pool are in use: release a layer "
                        "before fetching the next, or raise Prefetch.depth");
      }
      start(*slot, key);
    }
    slot->state = Slot::State::used;
    LayerKey next = key;
    bool more = look_ahead(next);
    complete(*slot);
    if (more && ledger_->next(next)) store_->expect(next);
    return memory(*slot);
  }

  /// Gives a layer's memory back. Local; never blocks.
  void release(LayerKey key) noexcept {
    if (Slot* const slot = find(key)) slot->state = Slot::State::vacant;
  }

  /// Throws away what was gathered ahead. Blocks for gathers that are under way.
  void forget() {
    for (Slot& slot : slots_) {
      complete(slot);
      slot.state = Slot::State::vacant;
    }
  }

 private:
  struct Slot {
    enum class State : std::uint8_t { vacant, ahead, used };
    State state = State::vacant;
    LayerKey key{};
    std::size_t under_way = 0;
    std::vector<typename C::Ticket> tickets;
  };

  [[nodiscard]] std::byte* memory(Slot const& slot) const noexcept {
    return pool_.data() + static_cast<std::size_t>(&slot - slots_.data()) * slot_bytes_;
  }
  [[nodiscard]] Slot* find(LayerKey key) noexcept {
    for (Slot& slot : slots_) {
      if (slot.state != Slot::State::vacant && slot.key == key) return &slot;
    }
    return nullptr;
  }
  /// A slot nobody uses; with `evict_guesses` also one that was filled ahead in vain.
  [[nodiscard]] Slot* vacant(bool evict_guesses) {
    for (Slot& slot : slots_) {
      if (slot.state == Slot::State::vacant) return &slot;
    }
    if (!evict_guesses) return nullptr;
    for (Slot& slot : slots_) {
      if (slot.state == Slot::State::used) continue;
      complete(slot);
      return &slot;
    }
    return nullptr;
  }

  /// Starts gathering the layers below `key`, which becomes the lowest of them. False if the pool
  /// has no room for all it should hold: then nothing farther is needed yet.
  bool look_ahead(LayerKey& key) {
    for (int ahead = 0; ahead < prefetch_; ++ahead) {
      LayerKey next = key;
      if (!ledger_->next(next)) return false;
      if (find(next) == nullptr) {
        Slot* const slot = vacant(false);
        if (slot == nullptr) return false;
        start(*slot, next);
      }
      key = next;
    }
    return true;
  }

  void start(Slot& slot, LayerKey key) {
    std::byte const* const share = store_->share(key);
    slot.key = key;
    slot.state = Slot::State::ahead;
    PlacedLayer const& layer = layout_->layers()[key.layer];
    for (std::size_t c = layer.first; c < layer.first + layer.count; ++c) {
      PlacedCheckpoint const& placed = layout_->placed(c);
      if (placed.kept_elements == 0) continue;
      DType const dtype = layout_->checkpoints()[c].dtype;
      slot.tickets[slot.under_way] =
          comm_->start({.op = Op::all_gather,
                        .dtype = dtype,
                        .accumulate = dtype,
                        .count = static_cast<std::size_t>(placed.kept_elements),
                        .send = share + placed.kept_offset,
                        .recv = memory(slot) + placed.gathered_offset,
                        .bucket = bucket(key, c)});
      ++slot.under_way;
    }
  }

  /// A number that ranks only share where they gather the same checkpoint of the same micro-batch.
  [[nodiscard]] int bucket(LayerKey key, std::size_t c) const noexcept {
    auto const batch = static_cast<std::uint64_t>(ledger_->micro_batch(key));
    return static_cast<int>((batch * layout_->checkpoints().size() + c) % (std::uint64_t{1} << 31));
  }

  void complete(Slot& slot) {
    if (slot.state == Slot::State::vacant) return;
    for (std::size_t i = 0; i < slot.under_way; ++i) comm_->wait(slot.tickets[i]);
    slot.under_way = 0;
    store_->spent(slot.key);
  }

  C* comm_;
  ActivationLayout const* layout_;
  ActivationLedger const* ledger_;
  Store* store_;
  int prefetch_;
  std::size_t slot_bytes_;
  std::span<std::byte> pool_;
  std::vector<Slot> slots_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
