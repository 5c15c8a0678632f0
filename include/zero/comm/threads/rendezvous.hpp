/// @file
/// Where the ranks of one process meet, and who works on what they have brought.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/comm/shared/shares.hpp"
#include "zero/comm/threads/meeting.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/layout/placement.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Bytes of a share that one thread takes on at a time: large enough to stream, small enough that a
/// late rank finds work left, that nobody waits long for the last part, and that a failing rank
/// need not wait long for readers of its memory. More ranks mean more traffic for each byte of a
/// share. Whole blocks, so that each part's squares are sums of their own.
[[nodiscard]] constexpr std::size_t part_bytes(int size) noexcept {
  constexpr std::size_t whole_blocks = block * sizeof(double);
  return (std::max)(64 * KiB, MiB / static_cast<std::size_t>(size) / whole_blocks * whole_blocks);
}

/// Results up to this size are finished by the last rank that arrives, which spares a wake-up.
inline constexpr std::size_t inline_bytes = 64 * KiB;

class Rendezvous;

/// The family of a group of threads.
struct ThreadFamily : MeetingFamily<Rendezvous> {
  int running = 0;  ///< parts being worked on, in any group
};

/// A collective and how far the work on it has come.
struct ThreadSlot : MeetingSlot {
  int running = 0;  ///< parts being worked on
  bool streaming = false;
  std::size_t unclaimed = 0;  ///< elements that no thread has taken on, over all shares
  std::size_t left = 0;       ///< elements not yet worked on, over all shares
};

/// The meeting point of one group of threads. The family's mutex is never held while elements are
/// copied or summed.
///
/// Ranks post their buffers into a slot; from the moment the last one has, its shares can be worked
/// on by any thread that waits for it, first for its own share, then for those of ranks that are
/// busy elsewhere.
class Rendezvous : public Meeting<Rendezvous, ThreadSlot, ThreadFamily> {
 public:
  /// @param world_ranks  of each rank, its number in the whole family, for messages
  /// @param name  of the group, for messages
  ZERO_APART Rendezvous(std::shared_ptr<ThreadFamily> family,
                        std::vector<int> world_ranks,
                        std::string_view name = {});

  /// Posts this rank's part of its next collective and returns the collective's number.
  ZERO_APART std::uint64_t post(int rank, Collective const& op);

  /// Blocks until a collective that this rank has posted is done.
  ZERO_APART void wait(int rank, std::uint64_t sequence);

  /// Withdraws this rank's buffers from a collective that it will not wait for. When this returns,
  /// no thread reads or writes them. Fails the family unless the collective is done.
  ZERO_APART void abandon(int rank, std::uint64_t sequence, bool unwinding) noexcept;

 private:
  friend Meeting;

  /// No thread works on any rank's memory any more.
  ZERO_APART void settle(Lock& lock, int /*rank*/);

  /// All ranks have posted: shares may be worked on from now on.
  ZERO_APART void begin(Lock& lock, ThreadSlot& slot, int rank);

  [[nodiscard]] bool workable(ThreadSlot const& slot) const noexcept {
    return slot.unclaimed > 0 && !slot.withdrawn && !family_->failed();
  }

  /// Works on a slot until nothing of it is left to take, on this rank's own share first.
  ZERO_APART void work(Lock& lock, ThreadSlot& slot, int rank);

  /// Takes on one part of a share of a workable slot; false if none is left.
  ZERO_APART bool work_on_part(Lock& lock, ThreadSlot& slot, int share);

  /// Takes on one part of any other collective under way, oldest first, instead of sleeping; false
  /// if there is none. A single part, so that what this rank waits for is not kept waiting.
  ZERO_APART bool work_elsewhere(Lock& lock, int rank);

  /// Blocks until a collective is done, working on it as soon as all ranks have posted it.
  ZERO_APART void finish(Lock& lock, int rank, std::uint64_t sequence, Collective const& op);

  std::vector<std::size_t> claimed_;  ///< [slot][share] elements that a thread has taken on
};

#if ZERO_BODIES

ZERO_BODY Rendezvous::Rendezvous(std::shared_ptr<ThreadFamily> family,
                                 std::vector<int> world_ranks,
                                 std::string_view name)
    : Meeting(std::move(family), std::move(world_ranks), name),
      claimed_(ring_slots * index(size()), 0) {}

ZERO_BODY std::uint64_t Rendezvous::post(int rank, Collective const& op) {
  Lock lock = take();
  throw_if_failed(lock, rank, op);
  std::uint64_t const sequence = posted_by(rank);
  if (sequence >= ring_slots) finish(lock, rank, sequence - ring_slots, op);
  ThreadSlot& slot = enter(lock, rank, op);
  claimed_[cell(slot, rank)] = 0;
  arrive(lock, rank, slot, op);
  if (slot.posted == size()) begin(lock, slot, rank);
  return sequence;
}

ZERO_BODY void Rendezvous::wait(int rank, std::uint64_t sequence) {
  Lock lock = take();
  ThreadSlot& slot = slot_of(sequence);
  // What is done has its result, whatever went wrong since: ranks that draw the same conclusion
  // from it, such as an error, must not depend on who is first.
  if (slot.sequence != sequence || slot.done) return;
  Collective const op = slot.op;
  throw_if_failed(lock, rank, op);
  finish(lock, rank, sequence, op);
}

ZERO_BODY void Rendezvous::abandon(int rank, std::uint64_t sequence, bool unwinding) noexcept {
  Lock lock(family_->mutex);
  ThreadSlot& slot = slot_of(sequence);
  if (slot.sequence != sequence || slot.done) return;
  withdraw(slot, rank, unwinding);
  while (slot.sequence == sequence && slot.running != 0) changed_.wait(lock);
}

ZERO_BODY void Rendezvous::settle(Lock& lock, int /*rank*/) {
  while (family_->running != 0) changed_.wait(lock);
}

ZERO_BODY void Rendezvous::begin(Lock& lock, ThreadSlot& slot, int rank) {
  for (int share = 0; share < size(); ++share) slot.left += share_length(slot.op, share, size());
  std::size_t const result_bytes = slot.op.op == Op::reduce_scatter
                                       ? slot.op.block_bytes()
                                       : receive_count(slot.op, size()) * size_of(slot.op.dtype);
  slot.streaming = kernel::is_streaming(kernel::Store::automatic, larger_bytes(slot.op, size()));
  slot.unclaimed = slot.left;
  slot.done = slot.left == 0;
  if (!slot.done && result_bytes * index(size()) <= inline_bytes) work(lock, slot, rank);
  notify();
}

ZERO_BODY void Rendezvous::work(Lock& lock, ThreadSlot& slot, int rank) {
  for (int turn = 0; turn < size() && workable(slot);) {
    if (!work_on_part(lock, slot, (rank + turn) % size())) ++turn;
  }
}

ZERO_BODY bool Rendezvous::work_on_part(Lock& lock, ThreadSlot& slot, int share) {
  std::size_t const length = share_length(slot.op, share, size());
  std::size_t& claimed = claimed_[cell(slot, share)];
  if (claimed == length) return false;
  std::size_t const first = claimed;
  std::size_t const step = part_bytes(size()) / size_of(slot.op.dtype);
  std::size_t const count = (std::min)(step, length - first);
  claimed += count;
  slot.unclaimed -= count;
  ++slot.running;
  ++family_->running;
  lock.unlock();
  auto const& [sum, counted] = squares(slot)[share];
  ExactSum added;
  Collective op = slot.op;
  op.squares = sum == nullptr ? nullptr : &added;
  op.squares_count = counted;
  run_part(op, {sent(slot), received(slot), size()}, share, first, count, slot.streaming);
  take(lock);
  if (sum != nullptr) sum->add(added);
  --slot.running;
  --family_->running;
  slot.left -= count;
  slot.done = slot.left == 0;
  if (slot.done || slot.withdrawn) notify();
  if (family_->failed() && family_->running == 0) notify_family();
  return true;
}

ZERO_BODY bool Rendezvous::work_elsewhere(Lock& lock, int rank) {
  std::uint64_t const end = posted_by(rank);
  std::uint64_t const begin = end > ring_slots ? end - ring_slots : 0;
  for (std::uint64_t sequence = begin; sequence < end; ++sequence) {
    ThreadSlot& slot = slot_of(sequence);
    if (slot.sequence != sequence || !workable(slot)) continue;
    for (int turn = 0; turn < size(); ++turn) {
      if (work_on_part(lock, slot, (rank + turn) % size())) return true;
    }
  }
  return false;
}

ZERO_BODY void Rendezvous::finish(Lock& lock,
                                  int rank,
                                  std::uint64_t sequence,
                                  Collective const& op) {
  ThreadSlot& slot = slot_of(sequence);
  auto const limit = deadline();
  while (slot.sequence == sequence && !slot.done) {
    throw_if_failed(lock, rank, op);
    bool const ready = slot.posted == size() && !slot.withdrawn;
    if (!ready) {
      if (!work_elsewhere(lock, rank)) sleep(lock, rank, slot, sequence, limit);
      continue;
    }
    work(lock, slot, rank);
    // What is left now is being finished by peers that hold it already: no deadline applies.
    if (slot.sequence == sequence && !slot.done && !family_->failed() && !slot.withdrawn &&
        !work_elsewhere(lock, rank) && !look_for_news(lock)) {
      changed_.wait(lock);
    }
  }
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
