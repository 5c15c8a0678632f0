/// @file
/// What the communicators of one rank share: one lock, one fate, and how they are aborted.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/shared/backoff.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What was being done when something went wrong.
struct NcclActivity {
  std::string_view operation;  ///< such as "reduce_scatter" or "init"
  Collective call{};           ///< the collective, if it is one
  bool collective = false;
  /// Of the group's collectives, counted from the agreement at its construction, which is 0; of no
  /// collective, the next one's, or 0. The same on all ranks that have come as far.
  std::uint64_t number = 0;

  [[nodiscard]] static NcclActivity of(Collective const& op, std::uint64_t number) noexcept {
    return {.operation = name(op.op), .call = op, .collective = true, .number = number};
  }
  [[nodiscard]] int bucket() const noexcept { return collective ? call.bucket : -1; }
  [[nodiscard]] std::string text() const {
    if (!collective && number == 0) return std::string(operation);
    if (!collective) return Message({operation, ", before call ", number}).text();
    return Message({describe(call), ", call ", number}).text();
  }
};

/// The NCCL communicators of one rank that stand and fall together: those of a group and of all
/// groups split from it.
///
/// `calls` is held during every call of NCCL, so that no thread is inside one when another aborts.
///
/// An abort may wait for another one, and may not return at all. So each has a detached thread,
/// which touches NCCL and its own member alone, and all of them one grace time, in which the
/// streams have to run dry as well. What takes longer may be in use for ever: from then on nothing
/// of the family is freed, and nobody asks again.
template <nccl::Api A>
class NcclFamily {
 public:
  using Comm = typename A::Comm;
  using Stream = typename A::Stream;
  using Streams = std::vector<Stream>;
  using Lock = std::unique_lock<std::mutex>;

  /// Called with the reason, and true if something is stuck.
  using OnEnd = std::function<void(std::string const&, bool)>;

  NcclFamily(int world_rank, double grace_s, OnEnd on_end) noexcept
      : rank_(world_rank), grace_s_(grace_s), on_end_(std::move(on_end)) {}
  NcclFamily(NcclFamily const&) = delete;
  NcclFamily& operator=(NcclFamily const&) = delete;

  std::mutex calls;

  [[nodiscard]] bool failed() const noexcept { return failed_; }
  /// True once memory and streams may be in use for ever: they must not be freed.
  [[nodiscard]] bool leaks() const noexcept { return leaks_; }

  /// Sets a word, in memory that kernels read, once the family has failed.
  void warn(std::int64_t* word) {
    words_.push_back(word);
    if (failed_) A::poke(word, 1);
  }
  void warn_no_more(std::int64_t* word) noexcept { std::erase(words_, word); }
  /// From now on graphs may hold collectives of the family.
  void capture() noexcept { captured_ = true; }
  [[nodiscard]] bool captured() const noexcept { return captured_; }

  /// @param place  where NCCL has written the communicator, if it has made it
  void join(Comm comm, bool owned, int device, std::shared_ptr<void> place) {
    auto member = std::make_shared<FamilyMember>();
    member->comm = comm;
    member->owned = owned;
    member->device = device;
    member->output = std::move(place);
    members_.push_back(std::move(member));
  }
  /// Names the streams a member's work is on: they have to run dry before memory is given back.
  void use(Comm comm, Stream first, Stream second) noexcept {
    for (auto const& member : members_) {
      if (member->comm == comm) member->streams = {first, second};
    }
  }
  /// Where NCCL's own threads write to until a call has settled, or an abort of `comm` is over.
  template <class T>
  [[nodiscard]] std::shared_ptr<T> output(Comm comm) {
    auto place = std::make_shared<T>();
    for (auto const& member : members_) {
      if (member->comm == comm) member->output = place;
    }
    return place;
  }

  /// @throws Error (communication) with the sentence of the first failure, if there was one
  void throw_if_failed(NcclActivity const& activity) const {
    if (failed_) raise(activity);
  }

  /// Records why the family cannot go on and aborts all of it; later failures change nothing.
  /// Returns true if this was the first. The caller holds `calls`, which is free while the trainer
  /// is told.
  bool end(std::string sentence) {
    if (failed_) return false;
    failed_ = true;
    sentence_ = std::move(sentence);
    // Before streams drain and run on with what never came.
    for (std::int64_t* const word : words_) A::poke(word, 1);
    auto const until = grace_from_now();
    bool const returned = abort(members_, until);
    if (!returned) {
      sentence_ += Message({"; NCCL did not return from the abort within ",
                            grace_s_,
                            " s and is left to itself"})
                       .text();
      if (captured_) sentence_ += ": it waits until all graphs of its collectives are destroyed";
    } else if (!dry(streams(), until)) {
      leaks_ = true;
      sentence_ += Message({"; its streams did not run dry within ", grace_s_, " s"}).text();
    }
    tell();
    return true;
  }

  bool end(Failure const& failure) { return end(describe(failure)); }

  /// Waits for what was enqueued while the family ended: the abort came too early to stop it, and
  /// who is told of the end frees what it uses.
  void drain() {
    if (!leaks_ && !dry(streams(), grace_from_now())) leaks_ = true;
  }

  [[noreturn]] void raise(NcclActivity const& activity) const {
    fail(
        ErrorKind::communication,
        sentence_,
        {.rank = rank_, .operation = std::string(activity.operation), .bucket = activity.bucket()});
  }

  /// Leaves a member out without failing the others, for a handle that is destroyed: aborts it if
  /// it is owned and goes on. Who has only left asks its streams once.
  void drop(Comm comm, Streams const& streams) {
    FamilyMembers const chosen = take(comm);
    bool const aborts = !failed_ && !chosen.empty();
    auto const until = aborts && !leaks_ ? grace_from_now() : Clock::time_point{};
    if (aborts) static_cast<void>(abort(chosen, until));
    if (!leaks_ && !dry(streams, until)) leaks_ = true;
  }

  /// Destroys a member that is owned and finalized. A peer that does not close its own may keep
  /// NCCL from returning: false after the grace time.
  [[nodiscard]] bool destroy(Comm comm) {
    return each(take(comm), grace_from_now(), [](FamilyMember const& member) {
      return A::destroy(member.comm);
    });
  }

  /// False if some stream still has work, after the grace time if this `waits`. What cannot be
  /// asked, because CUDA itself has failed, does not run any more either.
  [[nodiscard]] bool dry(Streams const& streams, bool waits) const noexcept {
    return dry(streams, waits ? grace_from_now() : Clock::time_point{});
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// A communicator, and what its thread keeps alive if that never comes back.
  struct FamilyMember {
    Comm comm{};
    bool owned = false;
    int device = 0;
    std::array<Stream, 2> streams{};  ///< null: not known yet
    std::shared_ptr<void> output{};   ///< what NCCL may write to
    nccl::Status status{};            ///< of its abort or destruction
    std::atomic<bool> returned{false};
  };
  using FamilyMembers = std::vector<std::shared_ptr<FamilyMember>>;

  [[nodiscard]] Clock::time_point grace_from_now() const noexcept {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace_s_));
  }

  /// What the trainer does may take long, or need the lock.
  void tell() noexcept {
    if (!on_end_) return;
    bool const stuck = leaks_;
    calls.unlock();
#if defined(__cpp_exceptions)
    try {
      on_end_(sentence_, stuck);
    } catch (...) {
      // The end has a reason already, which is on its way.
    }
#else
    on_end_(sentence_, stuck);
#endif
    calls.lock();
  }

  /// A communicator that belongs to the trainer is revoked, which stops its work and leaves its
  /// destruction to the trainer. False if the grace time was not enough.
  bool abort(FamilyMembers const& members, Clock::time_point until) {
    bool const done = each(members, until, [](FamilyMember const& member) {
      return member.owned ? A::abort(member.comm) : A::revoke(member.comm);
    });
    for (auto const& member : members) {
      if (member->owned || !member->returned || !member->status.failed()) continue;
      sentence_ += "; this NCCL cannot stop the trainer's own communicator (2.28.7 can)";
    }
    return done;
  }

  /// All at once. False if some have not returned in time.
  template <class Call>
  bool each(FamilyMembers const& members, Clock::time_point until, Call call) {
    for (auto const& member : members) {
      std::thread([member, call] {
        static_cast<void>(A::use_device(member->device));
        member->status = call(*member);
        member->returned = true;
      }).detach();
    }
    bool const done = std::all_of(members.begin(), members.end(), [&](auto const& member) {
      return before(until, [&] { return member->returned.load(); });
    });
    leaks_ = leaks_ || !done;
    return done;
  }

  /// Leaves a member out of what may still fail; returns it if it is owned.
  [[nodiscard]] FamilyMembers take(Comm comm) {
    FamilyMembers owned;
    for (auto const& member : members_) {
      if (member->comm == comm && member->owned) owned.push_back(member);
    }
    std::erase_if(members_, [&](auto const& member) { return member->comm == comm; });
    return owned;
  }

  /// Work behind what was aborted, such as a sum of blocks, still runs and still uses buffers.
  [[nodiscard]] Streams streams() const {
    Streams streams;
    for (auto const& member : members_) {
      for (Stream const stream : member->streams) {
        if (stream != Stream{}) streams.push_back(stream);
      }
    }
    return streams;
  }
  [[nodiscard]] static bool dry(Streams const& streams, Clock::time_point until) noexcept {
    return std::all_of(streams.begin(), streams.end(), [&](Stream const stream) {
      return before(until, [&] { return !A::stream_query(stream).pending(); });
    });
  }
  /// Asks at least once; false if it is not `over()` in time.
  template <class Over>
  [[nodiscard]] static bool before(Clock::time_point until, Over const& over) noexcept {
    Backoff backoff;
    while (!over()) {
      if (Clock::now() > until) return false;
      backoff.pause();
    }
    return true;
  }

  int rank_;
  double grace_s_;
  OnEnd on_end_;
  bool failed_ = false;
  bool captured_ = false;
  bool leaks_ = false;
  std::vector<std::int64_t*> words_;
  std::string sentence_;
  FamilyMembers members_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
