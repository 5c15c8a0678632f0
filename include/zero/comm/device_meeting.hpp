/// @file
/// Where ranks with queues of their own meet: who has called what, and what is enqueued once all
/// have.
#pragma once

#include "zero/base/error.hpp"
#include "zero/comm/call_checks.hpp"
#include "zero/comm/failure.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline v0_1::detail {

template <class Engine>
class DeviceMeeting;

/// What a group over devices shares with all groups split from it: one lock and one fate.
template <class Engine>
struct DeviceFamily {
  std::mutex mutex;
  Failure failure;
  std::vector<DeviceMeeting<Engine>*> groups;
  std::chrono::duration<double> deadline{};

  [[nodiscard]] bool failed() const noexcept { return failure.cause != Failure::Cause::none; }
};

/// The meeting point of one group of ranks. All state is guarded by the family's mutex.
///
/// A collective is a slot of a ring. Ranks post their buffers into it, and note in their queue when
/// those are ready; the last one to post enqueues the work of all. So a collective depends only on
/// what ranks have started, never on what they wait for, and waiting in different orders cannot
/// deadlock: neither threads, nor queues, since every event is recorded before anything waits for
/// it. A thread waits for its peers' threads only, never for a device.
///
/// `Engine` does the work; see DeviceEngine.
template <class Engine>
class DeviceMeeting {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  using Family = DeviceFamily<Engine>;

  /// Collectives a rank may have under way; `post` blocks when there would be more.
  static constexpr std::size_t ring_slots = 64;

  /// How long others wait for the words of an exception that is on its way out of a rank.
  static constexpr std::chrono::milliseconds unwinding_grace{100};

  /// @param world_ranks  of each rank, its number in the whole family, for messages
  DeviceMeeting(std::shared_ptr<Family> family, std::vector<int> world_ranks, Engine engine)
      : family_(std::move(family)),
        world_ranks_(std::move(world_ranks)),
        engine_(std::move(engine)),
        posted_(world_ranks_.size(), 0),
        last_(world_ranks_.size()),
        choices_(world_ranks_.size()),
        nursery_(world_ranks_.size()),
        send_(ring_slots * world_ranks_.size(), nullptr),
        recv_(ring_slots * world_ranks_.size(), nullptr),
        slots_(ring_slots) {
    Lock const lock(family_->mutex);
    family_->groups.push_back(this);
  }

  ~DeviceMeeting() {
    Lock const lock(family_->mutex);
    std::erase(family_->groups, this);
  }

  DeviceMeeting(DeviceMeeting const&) = delete;
  DeviceMeeting& operator=(DeviceMeeting const&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_ranks_.size()); }
  [[nodiscard]] int world_rank(int rank) const noexcept { return world_ranks_[index(rank)]; }
  [[nodiscard]] std::shared_ptr<Family> const& family() const noexcept { return family_; }
  [[nodiscard]] Engine const& engine() const noexcept { return engine_; }

  /// Posts this rank's part of its next collective and returns the collective's number.
  std::uint64_t post(int rank, Collective const& op) {
    Lock lock(family_->mutex);
    throw_if_failed(lock, rank, op);
    std::uint64_t const sequence = posted_[index(rank)];
    if (sequence >= ring_slots) finish(lock, rank, sequence - ring_slots, op);
    Slot& slot = slot_of(sequence);
    if (slot.sequence != sequence) {
      slot = Slot{.sequence = sequence, .op = op, .first = rank};
    } else if (!is_same_call(slot.op, op)) {
      record({.cause = Failure::Cause::mismatch,
              .rank = world_rank(rank),
              .other = world_rank(slot.first),
              .calls = sequence,
              .call = op,
              .other_call = slot.op});
      throw_if_failed(lock, rank, op);
    }
    std::size_t const row = number(slot) * world_ranks_.size();
    send_[row + index(rank)] = op.send;
    recv_[row + index(rank)] = op.recv;
    last_[index(rank)] = op;
    ++posted_[index(rank)];
    ++slot.posted;
    if (sequence >= left_at_ && !left_unwinding_) record_left();
    throw_if_failed(lock, rank, op);
    // A call of the runtime that fails ends the family: queues do not hold what ranks think.
    char const* problem = engine_.ready(number(slot), rank);
    if (problem == nullptr && slot.posted == size() && !slot.withdrawn) {
      problem = engine_.run(number(slot), slot.op, &send_[row], &recv_[row]);
      slot.done = problem == nullptr;
      if (slot.done) changed_.notify_all();
    }
    if (problem != nullptr) record_thrown(rank, problem);
    throw_if_failed(lock, rank, op);
    return sequence;
  }

  /// Blocks until all ranks have posted a collective that this rank has, then lets this rank's
  /// queue wait for it.
  void wait(int rank, std::uint64_t sequence) {
    Lock lock(family_->mutex);
    Slot& slot = slot_of(sequence);
    Collective const op = slot.op;
    // What is enqueued has its result, whatever went wrong since: ranks that draw the same
    // conclusion from it, such as an error, must not depend on who is first.
    if (slot.sequence == sequence && !slot.done) {
      throw_if_failed(lock, rank, op);
      finish(lock, rank, sequence, op);
    }
    // A slot that was taken again ends no earlier than before.
    if (char const* const problem = engine_.join(number(slot), rank)) {
      record_thrown(rank, problem);
      throw_if_failed(lock, rank, op);
    }
  }

  /// Withdraws this rank's buffers from a collective that it will not wait for: nothing that is in
  /// its queue after this meets a reader or writer of them. Fails the family unless the collective
  /// is enqueued already.
  void abandon(int rank, std::uint64_t sequence, bool unwinding) noexcept {
    Lock const lock(family_->mutex);
    Slot& slot = slot_of(sequence);
    if (slot.sequence != sequence || slot.done) {
      engine_.settle(rank);
      return;
    }
    if (!slot.withdrawn) {
      slot.withdrawn = true;
      slot.withdrawn_by = rank;
      slot.withdrawn_at = Clock::now();
    }
    if (!unwinding) record_abandoned(slot);
    changed_.notify_all();
  }

  /// This rank will start nothing more. Fails the family as soon as a peer waits for it.
  void leave(int rank, bool unwinding) noexcept {
    Lock const lock(family_->mutex);
    std::uint64_t const calls = posted_[index(rank)];
    if (calls >= left_at_) return;
    left_at_ = calls;
    left_rank_ = rank;
    left_unwinding_ = unwinding;
    left_time_ = Clock::now();
    bool const missed =
        std::any_of(posted_.begin(), posted_.end(), [&](auto posted) { return posted > calls; });
    if (!missed) return;
    if (!unwinding) record_left();
    changed_.notify_all();
  }

  /// Ends the whole family because of an exception on this rank; true if nothing had failed before.
  bool report(int rank, std::string_view reason) {
    Lock const lock(family_->mutex);
    return record_thrown(rank, reason);
  }

  /// What a rank says when the group is divided.
  struct Choice {
    int color = 0;
    int key = 0;
  };

  /// Tells all ranks what each of them has chosen. Blocks until all are here; a rank may choose
  /// anew once all have been here twice.
  [[nodiscard]] std::vector<Choice> exchange(int rank, Choice mine) {
    {
      Lock const lock(family_->mutex);
      choices_[index(rank)] = mine;
    }
    Collective const nothing{
        .op = Op::all_gather, .dtype = DType::i32, .count = 0, .bucket = split_bucket};
    wait(rank, post(rank, nothing));
    Lock const lock(family_->mutex);
    return choices_;
  }

  /// Leaves a new group where a member of it will look for it.
  void place(int rank, std::shared_ptr<DeviceMeeting> group) {
    Lock const lock(family_->mutex);
    nursery_[index(rank)] = std::move(group);
  }
  [[nodiscard]] std::shared_ptr<DeviceMeeting> take(int rank) {
    Lock const lock(family_->mutex);
    return std::exchange(nursery_[index(rank)], nullptr);
  }

 private:
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  struct Slot {
    std::uint64_t sequence = never;
    Collective op{};
    int first = -1;     ///< the rank that posted first
    int posted = 0;     ///< ranks that have posted
    bool done = false;  ///< enqueued, for all ranks
    bool withdrawn = false;
    int withdrawn_by = -1;
    Clock::time_point withdrawn_at{};
  };

  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] Slot& slot_of(std::uint64_t sequence) noexcept {
    return slots_[static_cast<std::size_t>(sequence % ring_slots)];
  }
  [[nodiscard]] std::size_t number(Slot const& slot) const noexcept {
    return static_cast<std::size_t>(&slot - slots_.data());
  }

  /// Sleeps until a collective is enqueued.
  void finish(Lock& lock, int rank, std::uint64_t sequence, Collective const& op) {
    Slot& slot = slot_of(sequence);
    auto const deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(family_->deadline);
    while (slot.sequence == sequence && !slot.done) {
      throw_if_failed(lock, rank, op);
      Clock::time_point limit = deadline;
      bool const gone = left_unwinding_ && sequence >= left_at_;
      if (slot.withdrawn) limit = std::min(limit, slot.withdrawn_at + unwinding_grace);
      if (gone) limit = std::min(limit, left_time_ + unwinding_grace);
      if (changed_.wait_until(lock, limit) == std::cv_status::no_timeout) continue;
      if (Clock::now() < limit || slot.sequence != sequence || slot.done) continue;
      if (slot.withdrawn) {
        record_abandoned(slot);
      } else if (gone) {
        record_left();
      } else {
        record_late(slot);
      }
    }
  }

  /// Some rank has posted the collective that the rank which left did not.
  void record_left() {
    record({.cause = Failure::Cause::left,
            .rank = world_rank(left_rank_),
            .calls = left_at_,
            .call = slot_of(left_at_).op});
  }

  void record_abandoned(Slot const& slot) {
    record({.cause = Failure::Cause::abandoned,
            .rank = world_rank(slot.withdrawn_by),
            .calls = posted_[index(slot.withdrawn_by)],
            .call = slot.op});
  }

  void record_late(Slot const& slot) {
    Failure failure{.cause = Failure::Cause::late, .call = slot.op};
    failure.seconds = family_->deadline.count();
    for (int rank = size() - 1; rank >= 0; --rank) {
      if (posted_[index(rank)] > slot.sequence) continue;
      failure.more += failure.rank >= 0 ? 1 : 0;
      failure.rank = world_rank(rank);
      failure.calls = posted_[index(rank)];
    }
    record(std::move(failure));
  }

  bool record_thrown(int rank, std::string_view reason) {
    Failure failure{.cause = Failure::Cause::thrown, .rank = world_rank(rank)};
    failure.reason = reason;
    failure.calls = posted_[index(rank)];
    failure.call = last_[index(rank)];
    return record(std::move(failure));
  }

  /// Keeps the first failure and wakes every rank of the family; true if this was the first.
  bool record(Failure failure) {
    if (family_->failed()) return false;
    family_->failure = std::move(failure);
    for (DeviceMeeting* const group : family_->groups) group->changed_.notify_all();
    return true;
  }

  /// Throws the family's failure. The caller is about to unwind and to free its buffers: what its
  /// queue does from here on comes after all work on them.
  void throw_if_failed(Lock& lock, int rank, Collective const& op) {
    if (!family_->failed()) return;
    engine_.settle(rank);
    std::string message = describe(family_->failure);
    lock.unlock();
    fail(ErrorKind::communication,
         std::move(message),
         {.rank = world_rank(rank), .operation = operation_name(op), .bucket = op.bucket});
  }

  std::shared_ptr<Family> family_;
  std::vector<int> world_ranks_;
  Engine engine_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> posted_;  ///< collectives started, by rank
  std::vector<Collective> last_;       ///< the newest of them, by rank
  std::uint64_t left_at_ = never;      ///< collectives started by the rank that left first
  int left_rank_ = -1;
  bool left_unwinding_ = false;
  Clock::time_point left_time_{};
  std::vector<Choice> choices_;  ///< by rank
  std::vector<std::shared_ptr<DeviceMeeting>> nursery_;
  std::vector<void const*> send_;  ///< [slot][rank]
  std::vector<void*> recv_;        ///< [slot][rank]
  std::vector<Slot> slots_;
};

}  // namespace zero::inline v0_1::detail
