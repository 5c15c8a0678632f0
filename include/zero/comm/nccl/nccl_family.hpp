/// @file
/// What the communicators of one rank share: one lock, one fate, and how they are aborted.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/nccl_api.hpp"
#include "zero/comm/nccl/nccl_watch.hpp"
#include "zero/comm/shared/backoff.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
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
template <nccl::Api A>
class NcclFamily {
 public:
  using Comm = typename A::Comm;
  using Lock = std::unique_lock<std::mutex>;

  /// Called with the reason, and true if something is stuck.
  using OnEnd = std::function<void(std::string const&, bool)>;

  NcclFamily(int world_rank, double grace_s, OnEnd on_end) noexcept
      : rank_(world_rank), grace_s_(grace_s), on_end_(std::move(on_end)) {}
  NcclFamily(NcclFamily const&) = delete;
  NcclFamily& operator=(NcclFamily const&) = delete;

  std::mutex calls;

  [[nodiscard]] bool failed() const noexcept { return failed_; }
  /// True while an abort that took too long has not returned, or work behind it goes on: memory and
  /// streams it may still use must not be freed.
  [[nodiscard]] bool stuck() noexcept {
    std::erase_if(late_, [](Late const& late) {
      return !late.unknown && late.state->running == 0 && dry(streams_of(late.members), 0);
    });
    return !late_.empty();
  }
  /// A stream of the trainer's may be gone from now on. What is stuck in it by then stays so.
  void forget(typename A::Stream stream) noexcept {
    for (Late& late : late_) {
      auto const streams = streams_of(late.members);
      if (std::find(streams.begin(), streams.end(), stream) != streams.end()) late.unknown = true;
    }
  }
  /// Sets a word, in memory that kernels read, once the family has failed.
  void warn(std::int64_t* word) {
    words_.push_back(word);
    if (failed_) A::poke(word, 1);
  }
  void warn_no_more(std::int64_t* word) noexcept { std::erase(words_, word); }
  /// From now on graphs may hold collectives of the family.
  void capture() noexcept { captured_ = true; }
  [[nodiscard]] bool captured() const noexcept { return captured_; }

  void join(Comm comm, bool owned, int device) {
    members_.push_back({.comm = comm, .owned = owned, .device = device});
  }
  void leave(Comm comm) noexcept {
    std::erase_if(members_, [&](Member const& member) { return member.comm == comm; });
  }
  /// Names the streams a member's work is on: they have to run dry before memory is given back.
  void use(Comm comm, typename A::Stream first, typename A::Stream second) noexcept {
    for (Member& member : members_) {
      if (member.comm != comm) continue;
      member.streams = {first, second};
      member.runs = true;
    }
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
    if (!abort(members_)) {
      sentence_ += Message({"; NCCL did not return from the abort within ",
                            std::to_string(grace_s_),
                            " s and is left to itself"})
                       .text();
      if (captured_) sentence_ += ": it waits until all graphs of its collectives are destroyed";
    } else if (!late_.empty()) {
      sentence_ +=
          Message({"; its streams did not run dry within ", std::to_string(grace_s_), " s"}).text();
    }
    tell();
    return true;
  }

  bool end(Failure const& failure) { return end(describe(failure)); }

  /// Waits for what was enqueued while the family ended: the abort came too early to stop it, and
  /// who is told of the end frees what it uses.
  void drain() { keep_unless_dry(std::make_shared<Aborts>(), members_); }

  [[noreturn]] void raise(NcclActivity const& activity) const {
    fail(
        ErrorKind::communication,
        sentence_,
        {.rank = rank_, .operation = std::string(activity.operation), .bucket = activity.bucket()});
  }

  /// Aborts some members without failing the others, for a handle that is destroyed.
  void abort_only(std::vector<Comm> const& comms) {
    std::vector<Member> const chosen = take(comms);
    if (!failed_) abort(chosen);
  }

  /// Destroys what is owned of some members, which are finalized. A peer that does not close its
  /// own may keep NCCL from returning: false after the grace time.
  [[nodiscard]] bool destroy(std::vector<Comm> const& comms) {
    return each(take(comms), [](Member const& member) { return A::destroy(member.comm); });
  }

  /// False if some stream still has work after the grace time. What cannot be asked, because CUDA
  /// itself has failed, does not run any more either.
  template <class Streams>
  [[nodiscard]] bool dry(Streams const& streams) const noexcept {
    return dry(streams, grace_s_);
  }

  /// As above, but waits that follow each other share the grace time.
  template <class Streams>
  [[nodiscard]] bool dry(Streams const& streams, NcclPatience& patience) const noexcept {
    return patience.spend(grace_s_, [&](double left_s) { return dry(streams, left_s); });
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  struct Member {
    Comm comm;
    bool owned;
    int device;
    std::array<typename A::Stream, 2> streams{};
    bool runs = false;  ///< the streams are known
  };

  /// What helper threads keep alive if they never come back.
  struct Aborts {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<std::size_t> running{0};
    bool refused = false;  ///< the trainer's own goes on
  };

  /// Aborts that were left to themselves.
  struct Late {
    std::shared_ptr<Aborts> state;
    std::vector<Member> members;
    bool unknown = false;  ///< it cannot be asked any more
  };

  /// What the trainer does may take long, or need the lock.
  void tell() noexcept {
    if (!on_end_) return;
    bool const stuck = !late_.empty();
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
  bool abort(std::vector<Member> members) {
    return each(std::move(members), [](Member const& member) {
      return member.owned ? A::abort(member.comm) : A::revoke(member.comm);
    });
  }

  /// All at once, each on a thread of its own, because an abort may wait for another one and may
  /// not return at all; nor may a destruction. False if the grace time was not enough.
  template <class Call>
  bool each(std::vector<Member> members, Call call) {
    if (members.empty()) return true;
    auto const state = std::make_shared<Aborts>();
    state->running = members.size();
    for (Member const& member : members) {
      std::thread([state, member, call] {
        static_cast<void>(A::use_device(member.device));
        nccl::Status const status = call(member);
        std::lock_guard const lock(state->mutex);
        if (!member.owned && status.failed()) state->refused = true;
        --state->running;
        state->changed.notify_all();
      }).detach();
    }
    Lock lock(state->mutex);
    bool const done = state->changed.wait_for(
        lock, std::chrono::duration<double>(grace_s_), [&] { return state->running == 0; });
    bool const refused = state->refused;
    lock.unlock();
    if (refused) {
      sentence_ += "; this NCCL cannot stop the trainer's own communicator (2.28.7 can)";
    }
    if (done) {
      keep_unless_dry(state, std::move(members));
    } else {
      late_.push_back({state, std::move(members)});
    }
    return done;
  }
  void keep_unless_dry(std::shared_ptr<Aborts> state, std::vector<Member> members) {
    if (!dry(streams_of(members), grace_s_)) {
      late_.push_back({std::move(state), std::move(members)});
    }
  }

  /// Leaves some members out of what may still fail; returns those that are owned.
  [[nodiscard]] std::vector<Member> take(std::vector<Comm> const& comms) {
    std::vector<Member> owned;
    for (Member const& member : members_) {
      bool const asked = std::find(comms.begin(), comms.end(), member.comm) != comms.end();
      if (asked && member.owned) owned.push_back(member);
    }
    for (Comm const comm : comms) leave(comm);
    return owned;
  }

  /// Work behind what was aborted, such as a sum of blocks, still runs and still uses buffers.
  [[nodiscard]] static std::vector<typename A::Stream> streams_of(
      std::vector<Member> const& members) {
    std::vector<typename A::Stream> streams;
    for (Member const& member : members) {
      if (member.runs) streams.insert(streams.end(), member.streams.begin(), member.streams.end());
    }
    return streams;
  }
  template <class Streams>
  [[nodiscard]] static bool dry(Streams const& streams, double grace_s) {
    auto const start = std::chrono::steady_clock::now();
    Backoff backoff;
    for (auto const& stream : streams) {
      while (A::stream_query(stream).pending()) {
        std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - start;
        if (waited.count() > grace_s) return false;
        backoff.pause();
      }
    }
    return true;
  }

  int rank_;
  double grace_s_;
  OnEnd on_end_;
  bool failed_ = false;
  bool captured_ = false;
  std::vector<Late> late_;
  std::vector<std::int64_t*> words_;
  std::string sentence_;
  std::vector<Member> members_;
};

/// What NCCL's own threads write to until a call has settled, or has been aborted. An abort that
/// does not come back leaves it to them.
template <nccl::Api A, class T>
class NcclOutput {
 public:
  explicit NcclOutput(NcclFamily<A>& family) : family_(&family), value_(new T{}) {}
  NcclOutput(NcclOutput const&) = delete;
  NcclOutput& operator=(NcclOutput const&) = delete;
  ~NcclOutput() {
    if (family_->stuck()) static_cast<void>(value_.release());
  }

  [[nodiscard]] T* address() noexcept { return value_.get(); }
  [[nodiscard]] T value() const noexcept { return *value_; }
  /// The value of a call that has settled: nobody writes any more.
  [[nodiscard]] T take() noexcept {
    T const value = *value_;
    value_.reset();
    return value;
  }

 private:
  NcclFamily<A>* family_;
  std::unique_ptr<T> value_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
