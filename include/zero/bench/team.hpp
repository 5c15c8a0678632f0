/// @file
/// Threads that run one function together, and the clock they are timed by.
#pragma once

#include "zero/base/config.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

/// Microbenchmarks of a user's own communicators and rules; see examples/bench/README.md.
namespace zero::inline ZERO_NAMESPACE::bench {

/// Seconds on a clock that only goes forward.
[[nodiscard]] inline double seconds_now() {
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// Threads that live as long as the benchmark and run one function at a time together.
class Team {
 public:
  /// Starts `size` threads.
  explicit Team(int size) {
    for (int rank = 0; rank < size; ++rank) {
      threads_.emplace_back([this, rank] { serve(rank); });
    }
  }
  ~Team() {
    {
      std::lock_guard const lock(mutex_);
      work_ = nullptr;
      ++generation_;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Team(Team const&) = delete;
  Team& operator=(Team const&) = delete;

  /// How many threads there are.
  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()); }

  /// Calls work(rank) on every thread and waits for all of them.
  void run(std::function<void(int)> const& work) {
    std::unique_lock lock(mutex_);
    work_ = &work;
    busy_ = size();
    ++generation_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  void serve(int rank) {
    std::unique_lock lock(mutex_);
    for (int seen = 0;;) {
      changed_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      auto const* const work = work_;
      if (work == nullptr) return;
      lock.unlock();
      (*work)(rank);
      lock.lock();
      if (--busy_ == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(int)> const* work_ = nullptr;
  int generation_ = 0;
  int busy_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace zero::inline ZERO_NAMESPACE::bench
