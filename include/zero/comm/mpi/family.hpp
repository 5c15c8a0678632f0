/// @file
/// What a group shares with all groups split from it: one lock, one window, one fate.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/agreement.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/census.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/member.hpp"
#include "zero/comm/mpi/patience.hpp"
#include "zero/comm/mpi/pool.hpp"
#include "zero/comm/mpi/window.hpp"
#include "zero/comm/shared/failure.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Tags on the library's own communicators.
inline constexpr int round_tag = 1;
inline constexpr int data_tag = 2;
inline constexpr int failure_tag = 3;
inline constexpr int notice_tag = 4;

/// State common to a family of groups. Everything is guarded by `mutex`, MPI's own calls too.
class Family {
 public:
  /// Collective over the trainer's communicator, which stays the trainer's.
  Family(MPI_Comm comm, Options const& wanted, bool native)
      : options(wanted),
        blocking(comm, wanted.deadline_s),
        entry_(blocking, wanted.progress_thread == ProgressThread::sole),
        comm_(blocking.duplicate(comm)) {
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    agree_on_options(blocking, comm_, rank_, size_, options, native);
    window = options.shared_memory
                 ? make_window(comm_, size_, node_of_this_rank(), options.shared_bytes)
                 : std::make_shared<Window>();
    // The window's ranks are in the order of the family's: a node is named after its first.
    nodes_ = blocking.gather(comm_, size_, window->first(blocking, rank_));
    if (window->shared()) {
      pool = std::make_shared<Pool>(window, window->pool(node_rank(rank_)), options.shared_bytes);
    }
    receive_failure();
    if (options.progress_thread != ProgressThread::off) {
      thread_ = std::thread([this] { run_thread(); });
    }
  }
  Family(Family const&) = delete;
  Family& operator=(Family const&) = delete;
  ~Family() {
    stop_thread();
    if (request_ == MPI_REQUEST_NULL || !is_running()) return;
    if (blocking.lost()) {
      static_cast<void>(incoming_.release());
      return;
    }
    // Cancelling a receive that nothing has matched is local.
    MPI_Cancel(&request_);
    int done = 0;
    MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    if (done == 0) static_cast<void>(incoming_.release());
  }

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

  /// A communicator with all ranks, for a group. Collective; blocks.
  [[nodiscard]] MPI_Comm duplicate() { return blocking.duplicate(comm_); }

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

  void join(Member* member) { members_.push_back(member); }
  void leave(Member* member) { std::erase(members_, member); }
  /// Groups that this rank has neither closed nor destroyed.
  [[nodiscard]] std::size_t members() const noexcept { return members_.size(); }

  /// One look at everything under way in any group; true if something moved.
  bool advance() {
    bool moved = false;
    for (std::size_t i = 0; i < members_.size() && !failed(); ++i) moved |= members_[i]->advance();
    return moved;
  }

  /// What the ranks of this node know of the family's failure.
  [[nodiscard]] Board& board() noexcept { return window->control(0)->board; }
  /// True once anything has gone wrong on any rank that this one has heard of.
  [[nodiscard]] bool failed() {
    if (failed_) return true;
    if (!blocking.complaint().empty()) {
      board().record(blocking.complaint());
      adopt(blocking.complaint());
      if (blocking.may_call()) tell_other_nodes(failure_);
      return true;
    }
    if (board().failed()) return adopt(board().text());
    int done = 0;
    MPI_Status status;
    if (request_ == MPI_REQUEST_NULL || MPI_Test(&request_, &done, &status) != MPI_SUCCESS ||
        done == 0) {
      return false;
    }
    int length = 0;
    MPI_Get_count(&status, MPI_BYTE, &length);
    std::string text(incoming_->data(), static_cast<std::size_t>(length));
    board().record(text);
    return adopt(std::move(text));
  }
  [[nodiscard]] std::string const& failure() const noexcept { return failure_; }

  /// Ends the whole family and tells every rank; true if nothing had failed before.
  bool record(std::string text) {
    if (failed()) return false;
    text.resize((std::min)(text.size(), Board::text_bytes));
    board().record(text);
    tell_other_nodes(text);
    return adopt(std::move(text));
  }
  bool record(zero::detail::Failure const& failure) {
    return record(zero::detail::describe(failure));
  }
  /// An error of MPI's own, found where nothing may be thrown.
  ZERO_COLD void record_error(int code, std::string_view during) {
    record("rank " + std::to_string(rank_) + ": MPI reports '" + error_text(code) + "' in " +
           std::string(during));
  }

  /// Stops the thread and gives up what only all ranks together can. Collective; blocks.
  void close() {
    stop_thread();
    if (request_ != MPI_REQUEST_NULL) {
      MPI_Cancel(&request_);
      MPI_Wait(&request_, MPI_STATUS_IGNORE);
    }
    window->close(blocking);
    blocking.release(comm_);
    entry_.remove();
  }

  Options const options;
  Blocking blocking;
  std::mutex mutex;
  std::shared_ptr<Window> window;
  std::shared_ptr<Pool> pool;  ///< null without a window
  std::string withdrawn;       ///< a failure to be told unless a better reason comes first

 private:
  [[nodiscard]] MPI_Comm node_of_this_rank() {
    MPI_Comm machine = blocking.machine(comm_, rank_);
    if (!options.node) return machine;
    MPI_Comm const node = blocking.divide(machine, *options.node, rank_);
    blocking.release(machine);
    return node;
  }

  bool adopt(std::string text) {
    failed_ = true;
    failure_ = std::move(text);
    return true;
  }

  void receive_failure() {
    incoming_ = std::make_unique<std::array<char, Board::text_bytes>>();
    check(MPI_Irecv(incoming_->data(),
                    static_cast<int>(Board::text_bytes),
                    MPI_BYTE,
                    MPI_ANY_SOURCE,
                    failure_tag,
                    comm_,
                    &request_),
          "MPI_Irecv");
  }

  /// Best effort within the grace; who does not hear of it runs into the deadline.
  ZERO_COLD void tell_other_nodes(std::string const& text) {
    if (!is_running()) return;
    // MPI may read the text after this object is gone.
    auto* const words = new std::string(text);
    std::vector<MPI_Request> requests;
    for (int peer = 0; peer < size_; ++peer) {
      if (node_of(peer) == node_of(rank_)) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(words->data(),
                    static_cast<int>(words->size()),
                    MPI_BYTE,
                    peer,
                    failure_tag,
                    comm_,
                    &request) == MPI_SUCCESS) {
        requests.push_back(request);
      }
    }
    auto const end = Clock::now() + grace;
    int done = 0;
    while (done == 0 && Clock::now() < end) {
      if (MPI_Testall(
              static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE) !=
          MPI_SUCCESS) {
        return;
      }
      if (done == 0) std::this_thread::yield();
    }
    if (done != 0) delete words;
  }

  void run_thread() {
    Backoff backoff;
    while (!stop_.load(std::memory_order_acquire)) {
      bool moved = false;
      {
        std::lock_guard const lock(mutex);
        bool busy = false;
        for (Member const* const member : members_) busy |= member->busy();
        if (busy) moved = advance();
      }
      if (moved) {
        backoff.reset();
      }
      backoff.pause();
    }
  }
  void stop_thread() noexcept {
    stop_.store(true, std::memory_order_release);
    if (thread_.joinable()) thread_.join();
  }

  Entry entry_;
  MPI_Comm comm_;
  int rank_ = -1;
  int size_ = 0;
  std::vector<int> nodes_;
  std::vector<Member*> members_;
  bool failed_ = false;
  std::string failure_;
  std::unique_ptr<std::array<char, Board::text_bytes>> incoming_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
