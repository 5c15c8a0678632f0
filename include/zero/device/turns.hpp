/// @file
/// Threads that add to one capture, one at a time.
#pragma once

#include "zero/base/config.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::device {

/// Several threads may each enqueue into a stream of their own, but CUDA does not promise that they
/// may do so at once while these streams are captured together, when all of them add to one graph.
///
/// While somebody holds a `Capture`, `take` waits for a turn; at all other times it takes nothing.
class Turns {
 public:
  /// A turn, or none if it is empty.
  using Turn = std::unique_lock<std::recursive_mutex>;

  /// Says that streams are captured together, for as long as it lives.
  class Capture {
   public:
    /// @param turns  of those that are captured; not null
    explicit Capture(std::shared_ptr<Turns> turns) noexcept : turns_(std::move(turns)) {
      ++turns_->captures_;
    }
    ~Capture() { --turns_->captures_; }
    Capture(Capture const&) = delete;
    Capture& operator=(Capture const&) = delete;

   private:
    std::shared_ptr<Turns> turns_;
  };

  /// Does somebody hold a `Capture`?
  [[nodiscard]] bool captured() const noexcept {
    return captures_.load(std::memory_order_relaxed) != 0;
  }

  /// This thread's turn, for as long as the result lives. Again within a turn: at once.
  [[nodiscard]] Turn take() { return captured() ? Turn(mutex_) : Turn(); }

 private:
  std::atomic<int> captures_{0};
  std::recursive_mutex mutex_;
};

}  // namespace zero::inline ZERO_NAMESPACE::device
