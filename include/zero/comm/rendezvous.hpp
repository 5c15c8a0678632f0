/// @file
/// Where the ranks of one process meet: who has called what, who works on it, what went wrong.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/call_checks.hpp"
#include "zero/comm/failure.hpp"
#include "zero/comm/shares.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/copy.hpp"

#include <algorithm>
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

/// Collectives a rank may have under way; `start` blocks when there would be more.
inline constexpr std::size_t ring_slots = 64;

/// Bytes of a share that one thread takes on at a time: large enough to stream, small enough that a
/// late rank finds work left, that nobody waits long for the last part, and that a failing rank
/// need not wait long for readers of its memory. More ranks mean more traffic for each byte of a
/// share.
[[nodiscard]] constexpr std::size_t part_bytes(int size) noexcept {
  return std::max(64 * KiB, MiB / static_cast<std::size_t>(size));
}

/// Results up to this size are finished by the last rank that arrives, which spares a wake-up.
inline constexpr std::size_t inline_bytes = 64 * KiB;

/// How long others wait for the words of an exception that is on its way out of a rank.
inline constexpr std::chrono::milliseconds unwinding_grace{100};

class Rendezvous;

/// What a group shares with all groups split from it: one lock and one fate.
struct Family {
  std::mutex mutex;
  Failure failure;
  std::vector<Rendezvous*> groups;
  int running = 0;  ///< parts being worked on, in any group
  std::chrono::duration<double> deadline{};

  [[nodiscard]] bool failed() const noexcept { return failure.cause != Failure::Cause::none; }
};

/// The meeting point of one group of ranks. All state is guarded by the family's mutex, which is
/// never held while elements are copied or summed.
///
/// A collective is a slot of a ring. Ranks post their buffers into it; from the moment the last one
/// has, its shares can be worked on by any thread that waits for it, first for its own share, then
/// for those of ranks that are busy elsewhere. So a collective depends only on what ranks have
/// started, never on what they wait for, and waiting in different orders cannot deadlock.
class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  /// @param world_ranks  of each rank, its number in the whole family, for messages
  Rendezvous(std::shared_ptr<Family> family, std::vector<int> world_ranks)
      : family_(std::move(family)),
        world_ranks_(std::move(world_ranks)),
        posted_(world_ranks_.size(), 0),
        last_(world_ranks_.size()),
        nursery_(world_ranks_.size()),
        send_(ring_slots * world_ranks_.size(), nullptr),
        recv_(ring_slots * world_ranks_.size(), nullptr),
        claimed_(ring_slots * world_ranks_.size(), 0),
        slots_(ring_slots) {
    Lock const lock(family_->mutex);
    family_->groups.push_back(this);
  }

  ~Rendezvous() {
    Lock const lock(family_->mutex);
    std::erase(family_->groups, this);
  }

  Rendezvous(Rendezvous const&) = delete;
  Rendezvous& operator=(Rendezvous const&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_ranks_.size()); }
  [[nodiscard]] int world_rank(int rank) const noexcept { return world_ranks_[index(rank)]; }
  [[nodiscard]] std::shared_ptr<Family> const& family() const noexcept { return family_; }

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
    send_[cell(slot, rank)] = op.send;
    recv_[cell(slot, rank)] = op.recv;
    claimed_[cell(slot, rank)] = 0;
    last_[index(rank)] = op;
    ++posted_[index(rank)];
    ++slot.posted;
    if (sequence >= left_at_ && !left_unwinding_) {
      record_left();
      throw_if_failed(lock, rank, op);
    }
    if (slot.posted == size()) begin(lock, slot, rank);
    return sequence;
  }

  /// Blocks until a collective that this rank has posted is done.
  void wait(int rank, std::uint64_t sequence) {
    Lock lock(family_->mutex);
    Slot& slot = slot_of(sequence);
    // What is done has its result, whatever went wrong since: ranks that draw the same conclusion
    // from it, such as an error, must not depend on who is first.
    if (slot.sequence != sequence || slot.done) return;
    Collective const op = slot.op;
    throw_if_failed(lock, rank, op);
    finish(lock, rank, sequence, op);
  }

  /// Withdraws this rank's buffers from a collective that it will not wait for. When this returns,
  /// no thread reads or writes them. Fails the family unless the collective is done.
  void abandon(int rank, std::uint64_t sequence, bool unwinding) noexcept {
    Lock lock(family_->mutex);
    Slot& slot = slot_of(sequence);
    if (slot.sequence != sequence || slot.done) return;
    if (!slot.withdrawn) {
      slot.withdrawn = true;
      slot.withdrawn_by = rank;
      slot.withdrawn_at = Clock::now();
    }
    if (!unwinding) record_abandoned(slot);
    changed_.notify_all();
    while (slot.sequence == sequence && slot.running != 0) changed_.wait(lock);
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
    for (int peer = 0; peer < size(); ++peer) {
      if (posted_[index(peer)] <= calls) continue;
      if (!unwinding) record_left();
      changed_.notify_all();
      return;
    }
  }

  /// Ends the whole family because of an exception on this rank; true if nothing had failed before.
  bool report(int rank, std::string_view reason) {
    Failure failure{.cause = Failure::Cause::thrown, .rank = world_rank(rank)};
    failure.reason = reason;
    Lock const lock(family_->mutex);
    failure.calls = posted_[index(rank)];
    failure.call = last_[index(rank)];
    return record(std::move(failure));
  }

  /// Leaves a new group where a member of it will look for it.
  void place(int rank, std::shared_ptr<Rendezvous> group) {
    Lock const lock(family_->mutex);
    nursery_[index(rank)] = std::move(group);
  }
  [[nodiscard]] std::shared_ptr<Rendezvous> take(int rank) {
    Lock const lock(family_->mutex);
    return std::exchange(nursery_[index(rank)], nullptr);
  }

 private:
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  struct Slot {
    std::uint64_t sequence = never;
    Collective op{};
    int first = -1;   ///< the rank that posted first
    int posted = 0;   ///< ranks that have posted
    int running = 0;  ///< parts being worked on
    bool done = false;
    bool streaming = false;
    bool withdrawn = false;
    int withdrawn_by = -1;
    std::size_t unclaimed = 0;  ///< elements that no thread has taken on, over all shares
    std::size_t left = 0;       ///< elements not yet worked on, over all shares
    Clock::time_point withdrawn_at{};
  };

  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] Slot& slot_of(std::uint64_t sequence) noexcept {
    return slots_[static_cast<std::size_t>(sequence % ring_slots)];
  }
  [[nodiscard]] std::size_t cell(Slot const& slot, int rank) const noexcept {
    return static_cast<std::size_t>(&slot - slots_.data()) * world_ranks_.size() + index(rank);
  }

  /// All ranks have posted: shares may be worked on from now on.
  void begin(Lock& lock, Slot& slot, int rank) {
    for (int share = 0; share < size(); ++share) slot.left += share_length(slot.op, share, size());
    std::size_t const result_bytes = slot.op.op == Op::reduce_scatter
                                         ? slot.op.block_bytes()
                                         : receive_count(slot.op, size()) * size_of(slot.op.dtype);
    // A rank reads or writes all of its larger buffer: one that does not fit the cache leaves no
    // room there for a smaller result either.
    std::size_t const whole_bytes =
        std::max(send_count(slot.op, size()), receive_count(slot.op, size())) *
        size_of(slot.op.dtype);
    slot.streaming = kernel::is_streaming(kernel::Store::automatic, whole_bytes);
    slot.unclaimed = slot.left;
    slot.done = slot.left == 0;
    if (!slot.done && result_bytes * index(size()) <= inline_bytes) work(lock, slot, rank);
    changed_.notify_all();
  }

  [[nodiscard]] bool workable(Slot const& slot) const noexcept {
    return slot.unclaimed > 0 && !slot.withdrawn && !family_->failed();
  }

  /// Works on a slot until nothing of it is left to take, on this rank's own share first.
  void work(Lock& lock, Slot& slot, int rank) {
    for (int turn = 0; turn < size() && workable(slot);) {
      if (!work_on_part(lock, slot, (rank + turn) % size())) ++turn;
    }
  }

  /// Takes on one part of a share of a workable slot; false if none is left.
  bool work_on_part(Lock& lock, Slot& slot, int share) {
    std::size_t const length = share_length(slot.op, share, size());
    std::size_t& claimed = claimed_[cell(slot, share)];
    if (claimed == length) return false;
    std::size_t const first = claimed;
    std::size_t const step = part_bytes(size()) / size_of(slot.op.dtype);
    std::size_t const count = std::min(step, length - first);
    claimed += count;
    slot.unclaimed -= count;
    ++slot.running;
    ++family_->running;
    lock.unlock();
    run_part(slot.op,
             {&send_[cell(slot, 0)], &recv_[cell(slot, 0)], size()},
             share,
             first,
             count,
             slot.streaming);
    lock.lock();
    --slot.running;
    --family_->running;
    slot.left -= count;
    slot.done = slot.left == 0;
    if (slot.done || slot.withdrawn) changed_.notify_all();
    if (family_->failed() && family_->running == 0) notify_family();
    return true;
  }

  /// Takes on one part of any other collective under way, oldest first, instead of sleeping; false
  /// if there is none. A single part, so that what this rank waits for is not kept waiting.
  bool work_elsewhere(Lock& lock, int rank) {
    std::uint64_t const end = posted_[index(rank)];
    std::uint64_t const begin = end > ring_slots ? end - ring_slots : 0;
    for (std::uint64_t sequence = begin; sequence < end; ++sequence) {
      Slot& slot = slot_of(sequence);
      if (slot.sequence != sequence || !workable(slot)) continue;
      for (int turn = 0; turn < size(); ++turn) {
        if (work_on_part(lock, slot, (rank + turn) % size())) return true;
      }
    }
    return false;
  }

  /// Blocks until a collective is done, working on it as soon as all ranks have posted it.
  void finish(Lock& lock, int rank, std::uint64_t sequence, Collective const& op) {
    Slot& slot = slot_of(sequence);
    Clock::time_point const start = Clock::now();
    auto const deadline = start + std::chrono::duration_cast<Clock::duration>(family_->deadline);
    while (slot.sequence == sequence && !slot.done) {
      throw_if_failed(lock, rank, op);
      bool const ready = slot.posted == size() && !slot.withdrawn;
      if (ready) {
        work(lock, slot, rank);
        // What is left now is being finished by peers that hold it already: no deadline applies.
        if (slot.sequence == sequence && !slot.done && !family_->failed() && !slot.withdrawn &&
            !work_elsewhere(lock, rank)) {
          changed_.wait(lock);
        }
        continue;
      }
      if (work_elsewhere(lock, rank)) continue;
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
      } else if (slot.posted != size()) {
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

  /// Keeps the first failure and wakes every rank of the family; true if this was the first.
  bool record(Failure failure) {
    if (family_->failed()) return false;
    family_->failure = std::move(failure);
    notify_family();
    return true;
  }

  void notify_family() noexcept {
    for (Rendezvous* const group : family_->groups) group->changed_.notify_all();
  }

  /// Throws the family's failure, once no thread works on any rank's memory any more: the caller is
  /// about to unwind and to free it.
  void throw_if_failed(Lock& lock, int rank, Collective const& op) {
    if (!family_->failed()) return;
    while (family_->running != 0) changed_.wait(lock);
    std::string message = describe(family_->failure);
    lock.unlock();
    fail(ErrorKind::communication,
         std::move(message),
         {.rank = world_rank(rank), .operation = operation_name(op), .bucket = op.bucket});
  }

  std::shared_ptr<Family> family_;
  std::vector<int> world_ranks_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> posted_;  ///< collectives started, by rank
  std::vector<Collective> last_;       ///< the newest of them, by rank
  std::uint64_t left_at_ = never;      ///< collectives started by the rank that left first
  int left_rank_ = -1;
  bool left_unwinding_ = false;
  Clock::time_point left_time_{};
  std::vector<std::shared_ptr<Rendezvous>> nursery_;
  std::vector<void const*> send_;     ///< [slot][rank]
  std::vector<void*> recv_;           ///< [slot][rank]
  std::vector<std::size_t> claimed_;  ///< [slot][share] elements that a thread has taken on
  std::vector<Slot> slots_;
};

}  // namespace zero::inline v0_1::detail
