/// @file
/// How long to wait, and a thread that looks after work nobody waits for.
#pragma once

#include "zero/base/config.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// One grace time for waits that come one right after the other, such as those of all blocks of an
/// arena, each of which may last to its end.
class NcclPatience {
 public:
  /// Calls `wait(seconds)` with what is left of the grace time, which begins anew once something
  /// has come, or nobody has waited for as long. Returns what `wait` does: true if it has come.
  template <class Wait>
  [[nodiscard]] bool spend(double grace_s, Wait const& wait) {
    Clock::time_point const now = Clock::now();
    if (came_ || seconds(now - ended_) > grace_s) begun_ = now;
    came_ = wait((std::max)(0., grace_s - seconds(now - begun_)));
    ended_ = Clock::now();
    return came_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] static double seconds(Clock::duration time) noexcept {
    return std::chrono::duration<double>(time).count();
  }

  bool came_ = true;
  Clock::time_point begun_{};
  Clock::time_point ended_{};
};

/// Calls a function every so often on a thread of its own until it returns false or `stop`.
class NcclWatch {
 public:
  NcclWatch() = default;
  NcclWatch(NcclWatch const&) = delete;
  NcclWatch& operator=(NcclWatch const&) = delete;
  ~NcclWatch() { stop(); }

  void start(double period_s, std::function<void()> enter, std::function<bool()> look) {
    thread_ = std::thread([this, period_s, enter = std::move(enter), look = std::move(look)] {
      enter();
      std::chrono::duration<double> const period(period_s);
      std::unique_lock lock(mutex_);
      while (!changed_.wait_for(lock, period, [&] { return stopped_; })) {
        lock.unlock();
        bool const more = look();
        lock.lock();
        if (!more) return;
      }
    });
  }

  /// Returns once the thread has ended: at the latest after the look it is at.
  void stop() noexcept {
    {
      std::lock_guard const lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
