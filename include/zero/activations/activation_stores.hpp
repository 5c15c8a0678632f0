/// @file
/// What a rank keeps of each checkpoint: in the communicator's space, or in the slower memory.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/activations/activation_ledger.hpp"
#include "zero/activations/activation_plan.hpp"
#include "zero/base/config.hpp"
#include "zero/concepts/transfer.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/held/arena.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Stands for the transfer of a placement that needs none.
struct NoTransfer {};

/// Kept in the communicator's space, where gathers read it.
class ActivationsHere {
 public:
  template <class = void>
  ActivationsHere(ActivationLayout const& layout,
                  ActivationSizes const& sizes,
                  NoTransfer* /*none*/,
                  Arena& arena)
      : layout_(&layout), kept_(arena.take(Role::activations, sizes.kept)) {}

  /// Copies what is this rank's of checkpoint `c`.
  void put(AnySpace const& space, LayerKey key, std::size_t c, void const* own, std::size_t bytes) {
    space.copy(kept(key) + layout_->placed(c).kept_offset, own, bytes);
  }
  /// What is kept of a layer, for a gather, until `spent`.
  [[nodiscard]] std::byte const* share(LayerKey key) noexcept { return kept(key); }
  void spent(LayerKey /*key*/) noexcept {}
  void expect(LayerKey /*key*/) noexcept {}
  void forget() noexcept {}

  /// What is kept of a layer.
  [[nodiscard]] std::byte* kept(LayerKey key) noexcept {
    return kept_.data() + key.batch * layout_->block_bytes() +
           layout_->layers()[key.layer].kept_offset;
  }
  [[nodiscard]] std::uint64_t slower_held() const noexcept { return 0; }

 private:
  ActivationLayout const* layout_;
  std::span<std::byte> kept_;
};

/// Kept in the slower memory. A share leaves through one of two staging slots and comes back to one
/// of as many as there are gathers, and one more layer is asked for than is gathered.
template <Transfer T>
class ActivationsInSlowerMemory {
 public:
  ActivationsInSlowerMemory(ActivationLayout const& layout,
                            ActivationSizes const& sizes,
                            T* transfer,
                            Arena& arena)
      : layout_(&layout),
        transfer_(transfer),
        bytes_(static_cast<std::size_t>(sizes.kept)),
        staging_(arena.take(
            Role::activation_staging,
            sizes.send_slot * sizes.send_slots + sizes.arrival_slot * sizes.arrival_slots)),
        sends_(static_cast<std::size_t>(sizes.send_slots)),
        arrivals_(static_cast<std::size_t>(sizes.arrival_slots)),
        slow_(transfer->allocate(bytes_)) {
    std::byte* at = staging_.data();
    for (Send& send : sends_) {
      send.memory = at;
      at += sizes.send_slot;
    }
    for (Arrival& arrival : arrivals_) {
      arrival.memory = at;
      at += sizes.arrival_slot;
    }
  }
  ActivationsInSlowerMemory(ActivationsInSlowerMemory const&) = delete;
  ActivationsInSlowerMemory& operator=(ActivationsInSlowerMemory const&) = delete;
  ~ActivationsInSlowerMemory() {
    transfer_->settle();
    transfer_->deallocate(slow_, bytes_);
  }

  /// Copies what is this rank's of checkpoint `c`, and starts sending it out.
  void put(AnySpace const& space, LayerKey key, std::size_t c, void const* own, std::size_t bytes) {
    Send& send = sends_[turn_];
    turn_ = (turn_ + 1) % sends_.size();
    transfer_->wait(send.ticket);
    space.copy(send.memory, own, bytes);
    PlacedCheckpoint const& placed = layout_->placed(c);
    send.ticket = transfer_->send_out(place(key) + static_cast<std::size_t>(placed.kept_offset),
                                      send.memory,
                                      static_cast<std::size_t>(placed.kept_bytes));
  }

  /// What is kept of a layer, for a gather, until `spent`. Waits for it; asks for it before, where
  /// nobody has.
  [[nodiscard]] std::byte const* share(LayerKey key) {
    Arrival* arrival = find(key);
    if (arrival == nullptr) {
      arrival = vacant(true);
      start(*arrival, key);
    }
    transfer_->wait(arrival->ticket);
    arrival->state = Arrival::State::gathered;
    return arrival->memory;
  }
  /// The gather of a layer is done.
  void spent(LayerKey key) noexcept {
    if (Arrival* const arrival = find(key)) arrival->state = Arrival::State::vacant;
  }
  /// Asks for a layer that will be gathered soon.
  void expect(LayerKey key) {
    if (find(key) != nullptr) return;
    if (Arrival* const arrival = vacant(false)) start(*arrival, key);
  }
  /// Forgets what was asked for in vain.
  void forget() {
    for (Arrival& arrival : arrivals_) {
      transfer_->wait(arrival.ticket);
      arrival.state = Arrival::State::vacant;
    }
  }
  [[nodiscard]] std::uint64_t slower_held() const noexcept { return bytes_; }

 private:
  struct Send {
    std::byte* memory = nullptr;
    typename T::Ticket ticket{};
  };
  struct Arrival {
    enum class State : std::uint8_t { vacant, asked_for, gathered };
    std::byte* memory = nullptr;
    State state = State::vacant;
    LayerKey key{};
    typename T::Ticket ticket{};
  };

  [[nodiscard]] typename T::Slow place(LayerKey key) const {
    return slow_ + static_cast<std::size_t>(key.batch * layout_->block_bytes() +
                                            layout_->layers()[key.layer].kept_offset);
  }
  [[nodiscard]] Arrival* find(LayerKey key) noexcept {
    for (Arrival& arrival : arrivals_) {
      if (arrival.state != Arrival::State::vacant && arrival.key == key) return &arrival;
    }
    return nullptr;
  }
  /// A slot for a layer to arrive at; with `evict_guesses` also that of one that was only expected.
  /// There is always such a slot: fewer gathers are under way than there are slots.
  [[nodiscard]] Arrival* vacant(bool evict_guesses) noexcept {
    Arrival* guess = nullptr;
    for (Arrival& arrival : arrivals_) {
      if (arrival.state == Arrival::State::vacant) return &arrival;
      if (arrival.state == Arrival::State::asked_for) guess = &arrival;
    }
    return evict_guesses ? guess : nullptr;
  }
  void start(Arrival& arrival, LayerKey key) {
    arrival.ticket =
        transfer_->bring_in(arrival.memory,
                            place(key),
                            static_cast<std::size_t>(layout_->layers()[key.layer].kept_bytes));
    arrival.key = key;
    arrival.state = Arrival::State::asked_for;
  }

  ActivationLayout const* layout_;
  T* transfer_;
  std::size_t bytes_;
  std::span<std::byte> staging_;
  std::vector<Send> sends_;
  std::vector<Arrival> arrivals_;
  std::size_t turn_ = 0;
  typename T::Slow slow_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
