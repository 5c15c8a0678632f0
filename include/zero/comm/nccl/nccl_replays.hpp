/// @file
/// The collectives in a rank's graphs: how often each has begun and ended.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/nccl/nccl_api.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A captured collective has no event that could be asked: it runs whenever its graph is launched,
/// and nobody tells the communicator. So the graph itself counts, in memory of the host, before the
/// collective and after it.
///
/// Collectives of one capture that read the same in messages share their counters. There are
/// counters for `most`: then those of the oldest captures are used again, whose graphs are likely
/// gone. The counters are not atomic, so that a graph which is kept beside thousands of newer
/// collectives must not run at the same time as they do.
template <nccl::Api A>
class NcclReplays {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t most = 4096;

  struct Replay {
    Collective op{};
    std::uint64_t capture = 0;
    std::int64_t begun = 0;     ///< when last looked at
    std::int64_t ended = 0;     ///< when last looked at
    Clock::time_point since{};  ///< of the look that first saw these numbers
  };

  /// @throws nothing; memory that is refused is returned
  [[nodiscard]] nccl::Status create() {
    void* memory = nullptr;
    nccl::Status const got = A::host_alloc(&memory, sizeof(Counters));
    if (!got.ok()) return got;
    counters_ = new (memory) Counters{};
    counters_->zero_and_one[1] = 1;
    return {};
  }
  void destroy() noexcept {
    if (counters_ != nullptr) static_cast<void>(A::host_free(counters_));
    counters_ = nullptr;
  }

  /// Memory beside the counters for what kernels are told by the host; null before `create`.
  [[nodiscard]] std::int64_t* ended() const noexcept {
    return counters_ != nullptr ? &counters_->group_ended : nullptr;
  }

  /// The number of a collective that is being captured; `most` if there are no counters for it, so
  /// that it has no deadline.
  [[nodiscard]] std::size_t number_of(Collective const& op, std::uint64_t capture) {
    auto const same = [&](Replay const& replay) {
      return replay.capture == capture && alike(replay.op, op);
    };
    auto const found = std::find_if(replays_.begin(), replays_.end(), same);
    if (found != replays_.end()) return static_cast<std::size_t>(found - replays_.begin());
    if (replays_.size() < most) {
      replays_.push_back({.op = op, .capture = capture});
      return replays_.size() - 1;
    }
    update();
    for (std::size_t tried = 0; tried < most; ++tried) {
      std::size_t const number = oldest_++ % most;
      Replay& replay = replays_[number];
      if (replay.capture == capture || replay.begun != replay.ended) continue;
      replay.op = op;
      replay.capture = capture;
      return number;
    }
    return most;
  }
  /// Enqueues the count of one that begins.
  [[nodiscard]] nccl::Status count_begin(std::size_t number, typename A::Stream stream) {
    return number < most ? count(&counters_->begun[number], stream) : nccl::Status{};
  }
  /// Enqueues the count of one that has ended.
  [[nodiscard]] nccl::Status count_end(std::size_t number, typename A::Stream stream) {
    return number < most ? count(&counters_->ended[number], stream) : nccl::Status{};
  }

  /// Looks at all counters; true if some have moved since the last time.
  bool update() noexcept {
    bool moved = false;
    for (std::size_t number = 0; number < replays_.size(); ++number) {
      Replay& replay = replays_[number];
      // In this order, what begins in between cannot seem to have ended.
      std::int64_t const ended = A::peek(&counters_->ended[number]);
      std::int64_t const begun = A::peek(&counters_->begun[number]);
      if (begun == replay.begun && ended == replay.ended) continue;
      replay.begun = begun;
      replay.ended = ended;
      replay.since = Clock::now();
      moved = true;
    }
    return moved;
  }
  /// Of those that had begun and not ended when last looked at, the one for longest; null if none.
  [[nodiscard]] Replay const* oldest() const noexcept {
    Replay const* oldest = nullptr;
    for (Replay const& replay : replays_) {
      if (replay.begun == replay.ended) continue;
      if (oldest == nullptr || replay.since < oldest->since) oldest = &replay;
    }
    return oldest;
  }

 private:
  struct Counters {
    std::int64_t group_ended = 0;
    std::array<std::int64_t, 2> zero_and_one{};
    std::array<std::int64_t, most> begun{};
    std::array<std::int64_t, most> ended{};
  };

  [[nodiscard]] static bool alike(Collective const& a, Collective const& b) noexcept {
    return a.op == b.op && a.dtype == b.dtype && a.accumulate == b.accumulate &&
           a.count == b.count && a.root == b.root && a.bucket == b.bucket;
  }

  /// An ordered sum of the counter and one: the kernel that is there anyway.
  [[nodiscard]] nccl::Status count(std::int64_t* counter, typename A::Stream stream) {
    return A::sum_ranks({.dtype = DType::i64,
                         .accumulate = DType::i64,
                         .out = counter,
                         .staged = counters_->zero_and_one.data(),
                         .own = counter,
                         .rank = 0,
                         .ranks = 2,
                         .count = 1,
                         .stride = 1},
                        stream);
  }

  Counters* counters_ = nullptr;
  std::vector<Replay> replays_;
  std::size_t oldest_ = 0;  ///< whose counters are the next to be used again
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
