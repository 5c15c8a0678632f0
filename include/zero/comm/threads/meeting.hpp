/// @file
/// What threads that meet for collectives know of one another, and how all learn what went wrong.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/comm/shared/split_members.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Collectives a rank may have under way; `start` blocks when there would be more.
inline constexpr std::size_t ring_slots = 64;

/// How long others wait for the words of an exception that is on its way out of a rank.
inline constexpr std::chrono::milliseconds unwinding_grace{100};

/// How long a rank that has a processor of its own looks for its peers before it sleeps: about what
/// going to sleep and being woken take.
inline constexpr std::chrono::microseconds looking{20};

/// Asks until the answer is true or `looking` is over. Yields in between: where other threads took
/// the processors, the peer looked for may have to run here.
template <class Ask>
bool look(Ask const& ask) {
  // What is near is seen within so many looks, which cost less than one yield.
  constexpr int looks_per_yield = 16;
  for (auto const end = std::chrono::steady_clock::now() + looking;;) {
    for (int i = 0; i < looks_per_yield; ++i) {
      if (ask()) return true;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
}

/// What a group shares with all groups split from it: one lock and one fate.
template <class Group>
struct MeetingFamily {
  std::mutex mutex;
  Failure failure;
  std::vector<Group*> groups;
  std::chrono::duration<double> deadline{};
  bool looks = false;         ///< ranks do not outnumber the processors
  std::vector<char> waiting;  ///< ranks of the family that wait for others, in any group

  [[nodiscard]] bool failed() const noexcept { return failure.cause != Failure::Cause::none; }
};

/// One collective, as far as ranks have come together for it.
struct MeetingSlot {
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  std::uint64_t sequence = never;
  Collective op{};
  int first = -1;     ///< the rank that posted first
  int posted = 0;     ///< ranks that have posted
  bool done = false;  ///< nobody waits for it any more
  bool withdrawn = false;
  int withdrawn_by = -1;
  std::chrono::steady_clock::time_point withdrawn_at{};
};

/// Who has called what in one group, who left, who is late. All state is guarded by the family's
/// mutex.
///
/// A collective is a slot of a ring, into which ranks post their part. It depends only on what
/// ranks have started, never on what they wait for, so waiting in different orders cannot deadlock.
/// @tparam Group   derives from this and has `post`, `wait` and `settle(lock, rank)`: called before
///   a failure is thrown on a rank, which then unwinds and frees its buffers
/// @tparam Slot    derives from MeetingSlot
/// @tparam Family  derives from MeetingFamily<Group>
template <class Group, class Slot, class Family = MeetingFamily<Group>>
class Meeting {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  Meeting(Meeting const&) = delete;
  Meeting& operator=(Meeting const&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_ranks_.size()); }
  [[nodiscard]] int world_rank(int rank) const noexcept { return world_ranks_[index(rank)]; }
  [[nodiscard]] std::shared_ptr<Family> const& family() const noexcept { return family_; }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }

  /// Divides the group; returns this rank's place in its part.
  /// @param make  `make(members, numbers)` makes a part, on the first of its members; null if the
  ///   family has ended
  template <class Make>
  [[nodiscard]] Handle<Group> split(int rank, SplitChoice const& mine, Make const& make) {
    auto const meet = [&] {
      Collective const nothing{.op = Op::all_gather, .dtype = DType::i32, .bucket = split_bucket};
      auto& group = static_cast<Group&>(*this);
      group.wait(rank, group.post(rank, nothing));
    };
    {
      Lock const lock(family_->mutex);
      choices_[index(rank)] = mine;
    }
    // A rank chooses anew only once all have met twice.
    meet();
    std::vector<int> const members = split_members(choices_, mine.color);
    if (members.front() == rank) {
      std::vector<int> numbers;
      for (int const member : members) numbers.push_back(world_rank(member));
      std::shared_ptr<Group> const part = make(members, std::move(numbers));
      Lock const lock(family_->mutex);
      for (int const member : members) nursery_[index(member)] = part;
    }
    // Only after everybody has come here again are all new groups in their places.
    meet();
    auto const found = std::find(members.begin(), members.end(), rank);
    Lock const lock(family_->mutex);
    return {std::exchange(nursery_[index(rank)], nullptr),
            static_cast<int>(found - members.begin())};
  }

 protected:
  /// @param world_ranks  of each rank, its number in the whole family, for messages
  /// @param name         of the group, for messages; may be empty
  ZERO_COLD Meeting(std::shared_ptr<Family> family,
                    std::vector<int> world_ranks,
                    std::string_view name)
      : family_(std::move(family)),
        world_ranks_(std::move(world_ranks)),
        name_(name),
        posted_(world_ranks_.size(), 0),
        last_(world_ranks_.size()),
        choices_(world_ranks_.size()),
        nursery_(world_ranks_.size()),
        slots_(ring_slots),
        send_(ring_slots * world_ranks_.size(), nullptr),
        recv_(ring_slots * world_ranks_.size(), nullptr),
        squares_(ring_slots * world_ranks_.size()) {
    Lock const lock(family_->mutex);
    family_->groups.push_back(static_cast<Group*>(this));
    auto const last = *std::max_element(world_ranks_.begin(), world_ranks_.end());
    if (family_->waiting.size() <= index(last)) family_->waiting.resize(index(last) + 1);
  }
  ~Meeting() {
    Lock const lock(family_->mutex);
    std::erase(family_->groups, static_cast<Group*>(this));
  }

  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] Slot& slot_of(std::uint64_t sequence) noexcept {
    return slots_[static_cast<std::size_t>(sequence % ring_slots)];
  }
  [[nodiscard]] std::size_t number(Slot const& slot) const noexcept {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  /// A rank's place in what is [slot][rank].
  [[nodiscard]] std::size_t cell(Slot const& slot, int rank) const noexcept {
    return number(slot) * index(size()) + index(rank);
  }
  /// What each rank gives, by rank.
  [[nodiscard]] void const* const* sent(Slot const& slot) const noexcept {
    return &send_[cell(slot, 0)];
  }
  /// Where each rank's result goes.
  [[nodiscard]] void* const* received(Slot const& slot) const noexcept {
    return &recv_[cell(slot, 0)];
  }
  /// What squares each rank asks for.
  [[nodiscard]] SumSquares const* squares(Slot const& slot) const noexcept {
    return &squares_[cell(slot, 0)];
  }
  /// Collectives that a rank has started.
  [[nodiscard]] std::uint64_t posted_by(int rank) const noexcept { return posted_[index(rank)]; }

  /// The slot of a rank's next collective, free or begun by peers who call the same.
  Slot& enter(Lock& lock, int rank, Collective const& op) {
    std::uint64_t const sequence = posted_[index(rank)];
    Slot& slot = slot_of(sequence);
    if (slot.sequence != sequence) {
      slot = Slot{};
      slot.sequence = sequence;
      slot.op = op;
      slot.first = rank;
    } else if (!is_same_call(slot.op, op)) {
      record_mismatch(slot, rank, op);
      throw_if_failed(lock, rank, op);
    }
    return slot;
  }
  /// Counts a rank in, with its buffers.
  void arrive(Lock& lock, int rank, Slot& slot, Collective const& op) {
    send_[cell(slot, rank)] = op.send;
    recv_[cell(slot, rank)] = op.recv;
    squares_[cell(slot, rank)] = {op.squares, op.squares_count};
    last_[index(rank)] = op;
    ++posted_[index(rank)];
    ++slot.posted;
    if (slot.sequence >= left_at_ && !left_unwinding_) record_left();
    throw_if_failed(lock, rank, op);
  }

  /// Takes the family's lock. It is held for less than a sleep takes.
  void take(Lock& lock) const {
    if (!family_->looks || !look([&] { return lock.try_lock(); })) lock.lock();
  }
  [[nodiscard]] Lock take() const {
    Lock lock(family_->mutex, std::defer_lock);
    take(lock);
    return lock;
  }
  /// Something has changed that a rank of this group may wait for.
  void notify() noexcept {
    news_.fetch_add(1, std::memory_order_relaxed);
    changed_.notify_all();
  }
  /// Looks whether something changes; true once it has.
  bool look_for_news(Lock& lock) {
    if (!family_->looks) return false;
    std::uint32_t const seen = news_.load(std::memory_order_relaxed);
    lock.unlock();
    auto const has_news = [&] { return news_.load(std::memory_order_relaxed) != seen; };
    look(has_news);
    take(lock);
    return has_news();
  }

  [[nodiscard]] Clock::time_point deadline() const {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(family_->deadline);
  }
  /// Sleeps until something changes; blames the rank that keeps a slot waiting when its time is up,
  /// and a little later even one that is waiting in another group itself: who waits for the culprit
  /// should speak first.
  void sleep(Lock& lock, int rank, Slot& slot, std::uint64_t sequence, Clock::time_point deadline) {
    WaitingFlag const waiting(family_->waiting[index(world_rank(rank))]);
    if (look_for_news(lock)) return;
    bool const anyhow = Clock::now() >= deadline;
    Clock::time_point limit = anyhow ? deadline + unwinding_grace : deadline;
    bool const gone = left_unwinding_ && sequence >= left_at_;
    if (slot.withdrawn) limit = (std::min)(limit, slot.withdrawn_at + unwinding_grace);
    if (gone) limit = (std::min)(limit, left_time_ + unwinding_grace);
    if (changed_.wait_until(lock, limit) == std::cv_status::no_timeout) return;
    if (Clock::now() < limit || slot.sequence != sequence || slot.done) return;
    if (slot.withdrawn) {
      record_abandoned(slot);
    } else if (gone) {
      record_left();
    } else if (slot.posted != size()) {
      record_late(slot, anyhow);
    }
  }

  /// A rank will not wait for a slot that is not done.
  void withdraw(Slot& slot, int rank, bool unwinding) {
    if (!slot.withdrawn) {
      slot.withdrawn = true;
      slot.withdrawn_by = rank;
      slot.withdrawn_at = Clock::now();
    }
    if (!unwinding) record_abandoned(slot);
    notify();
  }

  ZERO_COLD bool record_thrown(int rank, std::string_view reason) {
    Failure failure{.cause = Failure::Cause::thrown, .rank = world_rank(rank)};
    failure.reason = reason;
    failure.calls = posted_[index(rank)];
    failure.call = last_[index(rank)];
    return record(failure);
  }
  void notify_family() noexcept {
    for (Group* const group : family_->groups) group->notify();
  }

  void throw_if_failed(Lock& lock, int rank, Collective const& op) {
    if (family_->failed()) throw_failure(lock, rank, op);
  }
  [[noreturn]] ZERO_COLD void throw_failure(Lock& lock, int rank, Collective const& op) {
    static_cast<Group*>(this)->settle(lock, rank);
    std::string message = describe(family_->failure);
    lock.unlock();
    fail(ErrorKind::communication,
         std::move(message),
         {.rank = world_rank(rank),
          .operation = operation_name(op),
          .bucket = op.bucket,
          .group = name_});
  }

 public:
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
    notify();
  }

  /// Ends the whole family because of an exception on this rank; true if nothing had failed before.
  bool report(int rank, std::string_view reason) {
    Lock const lock(family_->mutex);
    return record_thrown(rank, reason);
  }

 protected:
  std::shared_ptr<Family> family_;
  std::condition_variable changed_;

 private:
  /// A rank waits for others until the end of this object's scope. The family's lock is held.
  class WaitingFlag {
   public:
    explicit WaitingFlag(char& flag) noexcept : flag_(&flag) { flag = 1; }
    WaitingFlag(WaitingFlag const&) = delete;
    WaitingFlag& operator=(WaitingFlag const&) = delete;
    ~WaitingFlag() { *flag_ = 0; }

   private:
    char* flag_;
  };

  ZERO_COLD void record_mismatch(Slot const& slot, int rank, Collective const& op) {
    record({.cause = Failure::Cause::mismatch,
            .rank = world_rank(rank),
            .other = world_rank(slot.first),
            .calls = slot.sequence,
            .call = op,
            .other_call = slot.op});
  }
  /// Some rank has posted the collective that the rank which left did not.
  ZERO_COLD void record_left() {
    record({.cause = Failure::Cause::left,
            .rank = world_rank(left_rank_),
            .calls = left_at_,
            .call = slot_of(left_at_).op});
  }
  ZERO_COLD void record_abandoned(Slot const& slot) {
    record({.cause = Failure::Cause::abandoned,
            .rank = world_rank(slot.withdrawn_by),
            .calls = posted_[index(slot.withdrawn_by)],
            .call = slot.op});
  }
  ZERO_COLD void record_late(Slot const& slot, bool anyhow) {
    Failure failure{.cause = Failure::Cause::late, .call = slot.op};
    failure.seconds = family_->deadline.count();
    for (int rank = size() - 1; rank >= 0; --rank) {
      if (posted_[index(rank)] > slot.sequence) continue;
      if (!anyhow && family_->waiting[index(world_rank(rank))] != 0) continue;
      failure.more += failure.rank >= 0 ? 1 : 0;
      failure.rank = world_rank(rank);
      failure.calls = posted_[index(rank)];
    }
    if (failure.rank >= 0) record(failure);
  }
  /// Keeps the first failure and wakes every rank of the family; true if this was the first.
  ZERO_COLD bool record(Failure const& failure) {
    if (family_->failed()) return false;
    family_->failure = failure;
    family_->failure.group = name_;
    notify_family();
    return true;
  }

  std::vector<int> world_ranks_;
  std::string name_;
  std::vector<std::uint64_t> posted_;           ///< collectives started, by rank
  std::vector<Collective> last_;                ///< the newest of them, by rank
  std::uint64_t left_at_ = MeetingSlot::never;  ///< collectives started by who left first
  int left_rank_ = -1;
  bool left_unwinding_ = false;
  Clock::time_point left_time_{};
  std::vector<SplitChoice> choices_;             ///< by rank
  std::vector<std::shared_ptr<Group>> nursery_;  ///< where members of a new group look for it
  std::vector<Slot> slots_;
  std::vector<void const*> send_;       ///< [slot][rank]
  std::vector<void*> recv_;             ///< [slot][rank]
  std::vector<SumSquares> squares_;     ///< [slot][rank]
  std::atomic<std::uint32_t> news_{0};  ///< counts what `notify` was called for
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
