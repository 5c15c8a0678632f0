/// @file
/// What a rank keeps of each checkpoint: in the communicator's space, or in the slower memory.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/activations/activation_ledger.hpp"
#include "zero/activations/activation_plan.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/transfer.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/step/gather.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A transfer of any type, with slower memory of its own. Addresses there are distances from the
/// first byte, and tickets are numbers: one of them is of the last transfer that was given it.
class SlowerMemory {
 public:
  std::uint64_t const bytes;

  explicit SlowerMemory(std::uint64_t size) noexcept : bytes(size) {}
  SlowerMemory(SlowerMemory const&) = delete;
  virtual ~SlowerMemory() = default;
  virtual void send_out(std::size_t ticket, std::uint64_t to, std::span<std::byte const> from) = 0;
  virtual void bring_in(std::size_t ticket, std::span<std::byte> to, std::uint64_t from) = 0;
  virtual void wait(std::size_t ticket) = 0;
};

template <Transfer T>
class SlowerMemoryOf final : public SlowerMemory {
 public:
  SlowerMemoryOf(T& transfer, std::uint64_t size, std::uint64_t tickets)
      : SlowerMemory(size),
        transfer_(&transfer),
        tickets_(static_cast<std::size_t>(tickets)),
        first_(transfer.allocate(static_cast<std::size_t>(size))) {}
  ~SlowerMemoryOf() override {
    transfer_->settle();
    transfer_->deallocate(first_, static_cast<std::size_t>(bytes));
  }

  void send_out(std::size_t ticket, std::uint64_t to, std::span<std::byte const> from) override {
    auto const place = first_ + static_cast<std::size_t>(to);
    tickets_[ticket] = transfer_->send_out(place, from.data(), from.size());
  }
  void bring_in(std::size_t ticket, std::span<std::byte> to, std::uint64_t from) override {
    auto const place = first_ + static_cast<std::size_t>(from);
    tickets_[ticket] = transfer_->bring_in(to.data(), place, to.size());
  }
  void wait(std::size_t ticket) override { transfer_->wait(tickets_[ticket]); }

 private:
  T* transfer_;
  std::vector<typename T::Ticket> tickets_;
  typename T::Slow first_;
};

/// Keeps shares, or whole checkpoints. To the slower memory a share leaves through one of two
/// staging slots, and comes back to one of as many as there are gathers: one more layer is asked
/// for than is gathered.
class ActivationStore {
 public:
  /// @param slower  null: everything is kept in the communicator's space
  ZERO_OPTIONAL_APART ActivationStore(Ranks const& ranks,
                                      ActivationLayout const& layout,
                                      ActivationSizes const& sizes,
                                      std::unique_ptr<SlowerMemory> slower,
                                      Arena& arena)
      : space_(arena.space()),
        layout_(&layout),
        sizes_(sizes),
        rank_(ranks.rank()),
        slower_(std::move(slower)),
        memory_(slower_ == nullptr ? arena.take(Role::activations, sizes.stored)
                                   : arena.take(Role::activation_staging,
                                                sizes.send_slot * sizes.send_slots +
                                                    sizes.arrival_slot * sizes.arrival_slots)),
        arrivals_(ranks, sizes.arrival_slots, 0) {}

  /// Copies what is this rank's of checkpoint `c`, and starts sending it out.
  ZERO_OPTIONAL_APART void put(LayerKey key, std::size_t c, void const* tensor) {
    PlacedCheckpoint const& placed = layout_->placed(c);
    std::size_t const element = size_of(layout_->checkpoints()[c].dtype);
    auto const [first, last] = layout_->own(c, rank_);
    auto const* const own = static_cast<std::byte const*>(tensor) + first * element;
    std::size_t const bytes = static_cast<std::size_t>(last - first) * element;
    if (slower_ == nullptr) {
      space_.copy(memory_.data() + place(key) + placed.stored_offset, own, bytes);
      return;
    }
    std::size_t const turn = turn_;
    turn_ = (turn_ + 1) % sizes_.send_slots;
    auto const leaving = memory_.subspan(turn * sizes_.send_slot, placed.stored_bytes);
    slower_->wait(turn);
    space_.copy(leaving.data(), own, bytes);
    slower_->send_out(turn, place(key) + placed.stored_offset, leaving);
  }

  /// What is kept of a layer, until `spent`. Waits for it; asks for it before, where nobody has.
  ZERO_OPTIONAL_APART [[nodiscard]] std::byte const* share(LayerKey key) {
    if (slower_ == nullptr) return memory_.data() + place(key);
    // There is always such a slot: fewer gathers are under way than there are slots.
    Arrivals::Slot* const arrival = arrive(key, true);
    slower_->wait(ticket(*arrival));
    arrival->readers = 1;
    return memory(*arrival, key).data();
  }
  /// The gather of a layer is done.
  ZERO_OPTIONAL_APART void spent(LayerKey key) noexcept {
    if (Arrivals::Slot* const arrival = arrivals_.find(key)) *arrival = {};
  }
  /// Asks for a layer that will be gathered soon.
  ZERO_OPTIONAL_APART void expect(LayerKey key) { arrive(key, false); }
  /// Forgets what was asked for in vain.
  ZERO_OPTIONAL_APART void forget() {
    for (Arrivals::Slot& arrival : arrivals_.slots()) {
      slower_->wait(ticket(arrival));
      arrival = {};
    }
  }
  [[nodiscard]] std::uint64_t slower_held() const noexcept {
    return slower_ == nullptr ? 0 : slower_->bytes;
  }

 private:
  using Arrivals = SlotPool<LayerKey>;

  /// Where what is kept of a layer begins.
  [[nodiscard]] std::uint64_t place(LayerKey key) const noexcept {
    return key.batch * layout_->block_bytes() + layout_->layers()[key.layer].stored_offset;
  }
  [[nodiscard]] std::size_t ticket(Arrivals::Slot const& arrival) const noexcept {
    return static_cast<std::size_t>(sizes_.send_slots) + arrivals_.number(arrival);
  }
  [[nodiscard]] std::span<std::byte> memory(Arrivals::Slot const& arrival, LayerKey key) const {
    return memory_.subspan(
        sizes_.send_slot * sizes_.send_slots + sizes_.arrival_slot * arrivals_.number(arrival),
        layout_->layers()[key.layer].stored_bytes);
  }
  /// The slot of a layer, which is asked for from now on.
  ZERO_OPTIONAL_APART Arrivals::Slot* arrive(LayerKey key, bool evict) {
    return arrivals_.bring(key, evict, [this](Arrivals::Slot& arrival, LayerKey what) {
      slower_->bring_in(ticket(arrival), memory(arrival, what), place(what));
    });
  }

  AnySpace space_;
  ActivationLayout const* layout_;
  ActivationSizes sizes_;
  int rank_;
  std::unique_ptr<SlowerMemory> slower_;
  std::span<std::byte> memory_;  ///< all that is kept, or the slots
  Arrivals arrivals_;
  std::size_t turn_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
