/// @file
/// Where ranks with queues of their own meet, and what is enqueued once all have.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/threads/meeting.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The meeting point of one group of ranks over devices.
///
/// Ranks post their buffers into a slot, and note in their queue when those are ready; the last one
/// to post enqueues the work of all. Queues cannot deadlock, since every event is recorded before
/// anything waits for it. A thread waits for its peers' threads only, never for a device.
///
/// `Engine` does the work; see DeviceEngine.
template <class Engine>
class DeviceMeeting : public Meeting<DeviceMeeting<Engine>, MeetingSlot> {
  using Base = Meeting<DeviceMeeting<Engine>, MeetingSlot>;
  using Lock = typename Base::Lock;

 public:
  using Family = MeetingFamily<DeviceMeeting>;

  /// @param world_ranks  of each rank, its number in the whole family, for messages
  /// @param name         of the group, for messages; may be empty
  DeviceMeeting(std::shared_ptr<Family> family,
                std::vector<int> world_ranks,
                Engine engine,
                std::string_view name = {})
      : Base(std::move(family), std::move(world_ranks), name), engine_(std::move(engine)) {}

  [[nodiscard]] Engine const& engine() const noexcept { return engine_; }

  /// Posts this rank's part of its next collective and returns the collective's number.
  std::uint64_t post(int rank, Collective const& op) {
    Lock lock = this->take();
    this->throw_if_failed(lock, rank, op);
    std::uint64_t const sequence = this->posted_by(rank);
    if (sequence >= ring_slots) finish(lock, rank, sequence - ring_slots, op);
    MeetingSlot& slot = this->enter(lock, rank, op);
    this->arrive(lock, rank, slot, op);
    // A call of the runtime that fails ends the family: queues do not hold what ranks think.
    char const* problem = engine_.ready(this->number(slot), rank);
    if (problem == nullptr && slot.posted == this->size() && !slot.withdrawn) {
      problem = engine_.run(
          this->number(slot), slot.op, this->sent(slot), this->received(slot), this->squares(slot));
      slot.done = problem == nullptr;
      if (slot.done) this->notify();
    }
    if (problem != nullptr) this->record_thrown(rank, problem);
    this->throw_if_failed(lock, rank, op);
    return sequence;
  }

  /// Blocks until all ranks have posted a collective that this rank has, then lets this rank's
  /// queue wait for it.
  void wait(int rank, std::uint64_t sequence) {
    Lock lock = this->take();
    MeetingSlot& slot = this->slot_of(sequence);
    Collective const op = slot.op;
    // What is enqueued has its result, whatever went wrong since: ranks that draw the same
    // conclusion from it, such as an error, must not depend on who is first.
    if (slot.sequence == sequence && !slot.done) {
      this->throw_if_failed(lock, rank, op);
      finish(lock, rank, sequence, op);
    }
    // A slot that was taken again ends no earlier than before.
    if (char const* const problem = engine_.join(this->number(slot), rank)) {
      this->record_thrown(rank, problem);
      this->throw_if_failed(lock, rank, op);
    }
  }

  /// Withdraws this rank's buffers from a collective that it will not wait for: nothing that is in
  /// its queue after this meets a reader or writer of them. Fails the family unless the collective
  /// is enqueued already.
  void abandon(int rank, std::uint64_t sequence, bool unwinding) noexcept {
    Lock const lock(this->family_->mutex);
    MeetingSlot& slot = this->slot_of(sequence);
    if (slot.sequence != sequence || slot.done) {
      engine_.settle(rank);
      return;
    }
    this->withdraw(slot, rank, unwinding);
  }

 private:
  friend Base;

  /// What this rank's queue does from here on comes after all work on its buffers.
  void settle(Lock& /*lock*/, int rank) noexcept { engine_.settle(rank); }

  /// Sleeps until a collective is enqueued.
  void finish(Lock& lock, int rank, std::uint64_t sequence, Collective const& op) {
    MeetingSlot& slot = this->slot_of(sequence);
    auto const limit = this->deadline();
    while (slot.sequence == sequence && !slot.done) {
      this->throw_if_failed(lock, rank, op);
      this->sleep(lock, rank, slot, sequence, limit);
    }
  }

  Engine engine_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
