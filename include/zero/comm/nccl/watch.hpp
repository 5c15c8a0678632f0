/// @file
/// A thread that looks after work nobody waits for.
#pragma once

#include "zero/base/config.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

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
