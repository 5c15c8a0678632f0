/// @file
/// What a group shares with all groups split from it: one lock, one window, one fate.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/comm/mpi/agreement.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/ending.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/mailbox.hpp"
#include "zero/comm/mpi/member.hpp"
#include "zero/comm/mpi/pool.hpp"
#include "zero/comm/mpi/report.hpp"
#include "zero/comm/mpi/window.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What one rank has left, without `close`, of the groups that were made over one communicator.
class LeftBehind {
 public:
  /// Names what one call made, alike on all ranks: its number, of those over this communicator,
  /// and, of a group with all ranks, how many collectives a rank had started when it left.
  using Key = std::array<std::uint64_t, 2>;
  static constexpr Key none{never, never};

  void add(Key const& key, std::shared_ptr<GroupMember> group) {
    std::lock_guard const lock(mutex_);
    groups_.emplace(key, std::move(group));
  }
  /// The first from there on that nothing uses any more on this rank.
  [[nodiscard]] Key first(Key const& from) {
    std::lock_guard const lock(mutex_);
    auto const found = std::find_if(groups_.lower_bound(from), groups_.end(), [](auto const& one) {
      return one.second.use_count() == 1 && one.second->is_unused();
    });
    return found == groups_.end() ? none : found->first;
  }
  [[nodiscard]] std::shared_ptr<GroupMember> take(Key const& key) {
    std::lock_guard const lock(mutex_);
    return std::move(groups_.extract(key).mapped());
  }

  std::uint64_t made = 0;  ///< groups over this communicator

 private:
  std::mutex mutex_;  ///< handles may be destroyed on another thread
  std::map<Key, std::shared_ptr<GroupMember>> groups_;
};

/// Where a group goes when its rank leaves it.
struct Origin {
  std::weak_ptr<LeftBehind> left{};  ///< gone with the communicator that the group was made over
  std::uint64_t number = 0;          ///< of the call that made the group
  std::uint64_t id = 0;              ///< of no other group of the family; the same on all ranks
};

/// State common to a family of groups. Everything is guarded by `mutex`, MPI's own calls too.
class Family final : public EndingPeers {
 public:
  /// Collective over the trainer's communicator, which stays the trainer's.
  Family(MPI_Comm comm, Options const& wanted)
      : options(wanted),
        blocking(comm, wanted.deadline_s),
        counted_(count_family(wanted.progress_thread == ProgressThread::sole)),
        comm_(blocking.duplicate(comm)) {
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    agree_on_options(blocking, comm_, rank_, size_, options);
    auto const& parent = kept_with<LeftBehind>(comm);
    // A rank may have missed a construction that failed.
    auto const made = blocking.gather(comm_, size_, parent->made);
    origin = {parent, parent->made = *std::max_element(made.begin(), made.end()) + 1};
    close_left(*parent, "construction", comm, comm_, size_);
    window = options.shared_memory
                 ? make_window(comm_, size_, node_of_this_rank(), options.shared_bytes)
                 : std::make_shared<Window>();
    // The window's ranks are in the order of the family's: a node is named after its first.
    nodes_ = blocking.gather(comm_, size_, window->first(blocking, rank_));
    if (window->shared()) {
      pool = std::make_shared<Pool>(window, window->pool(node_rank(rank_)), options.shared_bytes);
    }
    mailbox_ = std::make_unique<Mailbox>(comm_, size_);
    ending_ = std::make_unique<Ending>(rank_, size_, options.deadline_s, *this);
    if (options.progress_thread != ProgressThread::off) {
      thread_ = std::thread([this] { run_thread(); });
    }
  }
  Family(Family const&) = delete;
  Family& operator=(Family const&) = delete;
  ~Family() { stop_thread(); }

  /// The window of a group's ranks on this node. Collective over the group; blocks.
  /// @param size        of the group, over all nodes
  /// @param pool_bytes  room for the trainer's memory
  [[nodiscard]] std::shared_ptr<Window> make_window(MPI_Comm group,
                                                    int size,
                                                    MPI_Comm node,
                                                    std::size_t pool_bytes) {
    std::size_t const chunk = chunk_bytes(options.exchange_bytes, options.message_bytes, size);
    return std::make_shared<Window>(blocking, group, size, node, pool_bytes, chunk);
  }

  /// Begins an operation: closes what all ranks of `over` have left, in one order. Collective;
  /// blocks.
  /// @param world  has all ranks of the family: see Blocking
  ZERO_COLD void close_left(
      LeftBehind& left, char const* operation, MPI_Comm world, MPI_Comm over, int size) {
    for (LeftBehind::Key from{}; from != LeftBehind::none;) {
      auto const mine = left.first(from);
      std::unique_lock lock(mutex);
      blocking.begin(operation, world);
      auto const all = blocking.gather(over, size, mine);
      lock.unlock();
      // Whoever has that one has none before, from where they looked.
      from = *std::max_element(all.begin(), all.end());
      if (from == LeftBehind::none || *std::min_element(all.begin(), all.end()) != from) continue;
      auto const group = left.take(from);
      group->close();
      group->close_family();
    }
  }

  /// A communicator with all ranks, for a group. Collective; blocks.
  [[nodiscard]] MPI_Comm duplicate() { return blocking.duplicate(comm_); }

  /// With all ranks.
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int node_of(int world_rank) const noexcept {
    return nodes_[static_cast<std::size_t>(world_rank)];
  }
  /// A rank's place among those of its node.
  [[nodiscard]] int node_rank(int world_rank) const noexcept {
    int place = 0;
    for (int peer = 0; peer < world_rank; ++peer) place += node_of(peer) == node_of(world_rank);
    return place;
  }

  void join(GroupMember* member) {
    std::erase(members_, member);
    members_.push_back(member);
  }
  /// With the last the family calls MPI no more, unless it is closed.
  void leave(GroupMember* member) {
    std::erase(members_, member);
    stop_ = members_.empty();
    if (stop_) counted_.reset();
  }
  /// Groups that this rank has neither closed nor destroyed.
  [[nodiscard]] std::size_t members() const noexcept { return members_.size(); }

  /// One look at everything under way in any group; true if something moved. From the time on when
  /// anything is wrong data moves no more.
  bool advance() {
    hear();
    bool moved = false;
    for (std::size_t i = 0; i < members_.size() && is_sound(); ++i) {
      moved |= members_[i]->advance();
    }
    return moved;
  }

  /// False once this rank knows that anything has gone wrong on any rank.
  [[nodiscard]] bool is_sound() const noexcept {
    return ending_->running() && blocking.complaint().empty();
  }
  /// True once it is known what to say of it; the same on all ranks.
  [[nodiscard]] bool has_ended() {
    if (!ending_->ended()) return false;
    // The trainer will use its buffers for something else.
    give_up_buffers();
    return true;
  }
  [[nodiscard]] std::string const& sentence() const noexcept { return ending_->sentence(); }

  /// Ends the whole family.
  ZERO_COLD void end(Finding const& finding) { ending_->begin(finding); }
  /// For a reason that is a sentence already; true if nothing had failed before.
  ZERO_COLD bool end_by_words(std::string text, Question at) {
    bool const first = is_sound();
    if (says_ != Says::words) {
      says_ = Says::words;
      text_ = blocking.complaint().empty() ? std::move(text) : blocking.complaint();
    }
    end({.cause = EndCause::words, .at = at});
    return first;
  }
  /// An error of MPI's own, found where nothing may be thrown.
  ZERO_COLD void end_by_mpi(int code, std::string_view during, Question at) {
    if (says_ == Says::nothing) {
      says_ = Says::error;
      text_ = "rank " + std::to_string(rank_) + ": MPI reports '" + error_text(code) + "' in " +
              std::string(during);
    }
    end({.cause = EndCause::mpi_error, .at = at});
  }
  /// Stays until all know of an end that this rank has begun, but not for long: 0.1 s once it is
  /// known what to say, since who is silent takes no message.
  ZERO_COLD void stay() {
    std::chrono::duration<double> const least(window_s(true, 0));
    auto const begun = Clock::now();
    for (Backoff backoff;; backoff.pause()) {
      hear();
      bool const ended = has_ended();
      if (ended && !mailbox_->holds()) return;
      if (Clock::now() - begun > (ended ? 1 : 3) * least) return;
    }
  }
  /// Peers on this node must not use any more what they read of this rank's.
  void give_up_buffers() noexcept { window->control(0)->give_up(); }
  /// How long a rank sees nothing move before it says so: the deadline, and then not all at once.
  [[nodiscard]] std::chrono::duration<double> patience() const noexcept {
    double const stagger_s = window_s(false, options.deadline_s) * rank_ / size_;
    return std::chrono::duration<double>(options.deadline_s + stagger_s);
  }

  /// Tells remote ranks that this rank starts nothing more in a group. Local ones see it.
  ZERO_COLD void depart(Finding const& finding) {
    if (!is_sound()) return;
    ++departures_sent_;
    ending_->depart(finding);
  }
  /// What others have said of that.
  [[nodiscard]] std::vector<Finding> const& departures() const noexcept {
    return ending_->departures();
  }

  /// This rank waits in a group until the end of this object's scope.
  struct GroupWait {
    Family& family;
    GroupMember* member;
    ~GroupWait() { std::erase(family.waiting_, member); }
  };
  [[nodiscard]] GroupWait wait_in(GroupMember* member) {
    waiting_.push_back(member);
    return {*this, member};
  }

  /// Stops the thread and gives up what only all ranks together can. Collective; blocks.
  void close() {
    stop_thread();
    // Of ranks that have left groups split off; nothing may come when MPI has this communicator
    // back.
    std::vector<std::size_t> const sent = blocking.gather(comm_, size_, departures_sent_);
    std::size_t expected = 0;
    for (int rank = 0; rank < size_; ++rank) {
      if (is_remote(rank)) expected += sent[static_cast<std::size_t>(rank)];
    }
    blocking.wait("the last notices", comm_, [&] {
      hear();
      return departures().size() >= expected && !mailbox_->holds();
    });
    mailbox_->cancel();
    blocking.meet("MPI_Win_free", comm_);
    window->close();
    Blocking::release(comm_);
  }

  Options const options;
  Blocking blocking;
  Origin origin;  ///< of the first group
  std::mutex mutex;
  std::shared_ptr<Window> window;
  std::shared_ptr<Pool> pool;  ///< null without a window
  std::string withdrawn;       ///< a failure to be told unless a better reason comes first

 private:
  [[nodiscard]] MPI_Comm node_of_this_rank() {
    MPI_Comm const machine = blocking.divide(comm_, {}, rank_);
    if (!options.node) return machine;
    MPI_Comm const node = blocking.divide(machine, *options.node, rank_);
    Blocking::release(machine);
    return node;
  }

  void hear() {
    if (!blocking.complaint().empty() && says_ != Says::words) {
      end_by_words(blocking.complaint(), {});
    }
    int const code = mailbox_->poll([&](Notice const& notice) { ending_->hear(notice); });
    if (code != MPI_SUCCESS && ending_->running()) end_by_mpi(code, "a notice", {});
    if (!ending_->running()) ending_->look(Clock::now(), !waiting_.empty());
  }

  // What the ending asks for.
  void send(int rank, Notice const& notice) override {
    // MPI warns of messages that nobody takes before its end: local ranks are told no departure.
    if (notice.kind == NoticeKind::gone && !is_remote(rank)) return;
    if (is_running()) mailbox_->send(rank, notice);
  }
  [[nodiscard]] bool is_remote(int rank) const noexcept { return node_of(rank) != node_of(rank_); }
  [[nodiscard]] bool is_matched(int rank) override { return !mailbox_->holds(rank); }
  [[nodiscard]] ZERO_COLD RankReport report(Question const& question) override {
    RankReport result;
    // What this rank waits for elsewhere explains why it does not come only if it has waited long.
    GroupMember* waits = nullptr;
    for (GroupMember* const member : waiting_) {
      bool const asked = member->id() == question.group;
      if (asked || member->still_s() > options.deadline_s / 2) waits = member;
      if (asked) break;
    }
    if (waits != nullptr) waits->tell_waiting(result);
    for (GroupMember* const member : members_) {
      if (member->id() == question.group) {
        member->tell_calls(result.asked);
      } else if (member == waits && result.waits) {
        member->tell_calls(result.other);
      }
    }
    if (says_ != Says::nothing) result.say(says_, text_);
    return result;
  }

  void run_thread() {
    zero::detail::FloatMode::reset();
    Backoff backoff;
    for (;;) {
      std::unique_lock lock(mutex);
      if (stop_) return;
      bool const busy = std::any_of(
          members_.begin(), members_.end(), [](GroupMember const* one) { return one->busy(); });
      if (busy && advance()) backoff.reset();
      if (!busy) hear();
      lock.unlock();
      backoff.pause();
    }
  }
  void stop_thread() noexcept {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::shared_ptr<void> counted_;  ///< among the families of the process
  MPI_Comm comm_;
  int rank_ = -1;
  int size_ = 0;
  std::vector<int> nodes_;
  std::vector<GroupMember*> members_;
  std::vector<GroupMember*> waiting_;  ///< groups in which this rank's threads wait
  Says says_ = Says::nothing;          ///< why this rank ends the family, in its own words or MPI's
  std::string text_;
  std::size_t departures_sent_ = 0;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<Ending> ending_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
