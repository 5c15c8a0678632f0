/// @file
/// Calls of NCCL and CUDA, each settled before the next: polled, timed, and put into words when it
/// fails.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/family.hpp"
#include "zero/comm/shared/backoff.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// An NCCL group that is ended whatever happens; one that stays open swallows all later calls.
template <nccl::Api A>
class NcclCallGroup {
 public:
  NcclCallGroup() : started_(A::group_start()), open_(started_.ok()) {}
  NcclCallGroup(NcclCallGroup const&) = delete;
  NcclCallGroup& operator=(NcclCallGroup const&) = delete;
  ~NcclCallGroup() {
    if (open_) static_cast<void>(A::group_end());
  }

  /// False if NCCL refused to start: calls would then be on their own.
  [[nodiscard]] bool open() const noexcept { return open_; }

  /// Remembers the first call that failed.
  void add(nccl::Status status) noexcept {
    if (first_.ok() && status.failed()) first_ = status;
  }
  /// The first failure of start, calls and end; else what the end said, which may be in_progress.
  [[nodiscard]] nccl::Status end() {
    if (!open_) return started_;
    open_ = false;
    nccl::Status const ended = A::group_end();
    return first_.failed() ? first_ : ended;
  }

 private:
  nccl::Status started_;
  bool open_;
  nccl::Status first_;
};

/// How one rank calls NCCL: nothing is called before the last call has settled, and what fails
/// ends the family, except for a mistake of the caller's.
template <nccl::Api A>
class NcclCaller {
 public:
  using Comm = typename A::Comm;
  using Lock = typename NcclFamily<A>::Lock;
  using Clock = std::chrono::steady_clock;

  /// @param group  its name, for messages
  NcclCaller(std::shared_ptr<NcclFamily<A>> family,
             double deadline_s,
             std::string group = {}) noexcept
      : family_(std::move(family)), deadline_s_(deadline_s), group_(std::move(group)) {}
  /// That of a group that is split off.
  [[nodiscard]] NcclCaller named(std::string_view group) const {
    return NcclCaller(family_, deadline_s_, std::string(group));
  }
  [[nodiscard]] std::string const& group() const noexcept { return group_; }

  [[nodiscard]] NcclFamily<A>& family() const noexcept { return *family_; }
  [[nodiscard]] Clock::duration deadline() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s_));
  }

  /// Polls the communicator until the call is over.
  /// @throws Error (invalid_argument) if NCCL refuses the call and nothing has happened, which a
  ///   non-blocking communicator remembers: then it is of no use any more
  /// @throws Error (communication) if anything else fails or the deadline passes
  void settle(Comm comm, nccl::Status status, NcclActivity const& activity) const {
    bool const at_once = !status.pending();
    auto const start = Clock::now();
    Backoff backoff;
    while (status.pending()) {
      auto state = nccl::Result::success;
      status = A::async_error(comm, &state);
      if (!status.ok()) break;
      status.result = state;
      if (!status.pending()) break;
      if (Clock::now() - start > deadline()) end(late(activity), activity);
      backoff.pause();
    }
    if (status.ok()) return;
    if (at_once && status.result == nccl::Result::invalid_argument && in_order(comm)) {
      refuse(status, activity);
    }
    end(sentence(comm, status, activity), activity);
  }

  /// For what has no communicator to poll: CUDA, memory, registration.
  void require(nccl::Status status, NcclActivity const& activity) const {
    if (!status.ok()) end(sentence(Comm{}, status, activity), activity);
  }

  /// Calls CUDA without the lock: what enqueues into a stream that is full blocks until there is
  /// room, and only the watching thread may be able to make some.
  /// @throws Error (communication) if the call fails, or the family has ended meanwhile
  template <class Call>
  void unlocked(Lock& lock, NcclActivity const& activity, Call const& call) const {
    lock.unlock();
    nccl::Status const status = call();
    lock.lock();
    if (family_->failed()) family_->drain();
    family_->throw_if_failed(activity);
    require(status, activity);
  }

  /// Several calls as one; refused calls inside are fatal, because peers wait for the others.
  template <class Body>
  void grouped(Comm comm, NcclActivity const& activity, Body const& body) const {
    NcclCallGroup<A> group;
    if (group.open()) body(group);
    nccl::Status const status = group.end();
    if (status.failed()) end(sentence(comm, status, activity), activity);
    settle(comm, status, activity);
  }

  /// What NCCL said, as one caller.
  [[nodiscard]] std::string sentence(Comm comm,
                                     nccl::Status status,
                                     NcclActivity const& activity) const {
    std::string_view const last = A::last_error(comm);
    std::string text = Message({"NCCL on rank ",
                                family_->rank(),
                                " at [",
                                activity.text(),
                                "]: ",
                                name(status.result)})
                           .text();
    if (*status.text != '\0') text += Message({" (", status.text, ")"}).text();
    if (!last.empty()) text += Message({": ", last}).text();
    return text + on_group(group_);
  }

  [[nodiscard]] std::string late(NcclActivity const& activity) const {
    return Message({"rank ",
                    family_->rank(),
                    " waited ",
                    deadline_s_,
                    " s at [",
                    activity.text(),
                    "] without progress: a rank is late, gone or calls something else",
                    on_group(group_)})
        .text();
  }

  [[noreturn]] void end(std::string text, NcclActivity const& activity) const {
    family_->end(std::move(text));
    family_->raise(activity);
  }

 private:
  [[nodiscard]] static bool in_order(Comm comm) {
    auto state = nccl::Result::success;
    nccl::Status const status = A::async_error(comm, &state);
    return status.ok() && state == nccl::Result::success;
  }

  [[noreturn]] void refuse(nccl::Status status, NcclActivity const& activity) const {
    fail(ErrorKind::invalid_argument,
         sentence(Comm{}, status, activity),
         {.rank = family_->rank(),
          .operation = std::string(activity.operation),
          .bucket = activity.bucket(),
          .group = group_});
  }

  std::shared_ptr<NcclFamily<A>> family_;
  double deadline_s_;
  std::string group_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
