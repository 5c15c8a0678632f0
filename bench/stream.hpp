/// @file
/// What our own benchmarks compare with, and how: a STREAM triad, timed in turn with the code under
/// test.
///
/// Absolute bandwidth means nothing on a shared machine, whose speed changes within seconds. A
/// ratio to a known kernel does, if both were timed in the same process and in the same seconds.
#pragma once

#include "../examples/plan/triad.hpp"
#include "zero/bench/measure.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace bench {
using namespace zero::bench;

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

/// The middle one of the values; 0 if there are none.
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The median over the rounds of one duration over another: what other tenants take from one, they
/// take from its neighbour as well.
[[nodiscard]] inline double median_ratio(std::vector<double> const& over,
                                         std::vector<double> const& under) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  return median(ratios);
}

/// The same of the fastest rounds: what remains when no one else was at work.
[[nodiscard]] inline double best_ratio(std::vector<double> const& over,
                                       std::vector<double> const& under) {
  return *std::min_element(over.begin(), over.end()) /
         *std::min_element(under.begin(), under.end());
}

/// The triad on two threads.
class Triad {
 public:
  /// @param elements  per array; three arrays have to be well beyond the cache
  explicit Triad(std::size_t elements = std::size_t{32} << 20) : team_(2), parts_(2) {
    // Made by the threads that work on them, so that these touch their pages first.
    team_.run([&](int rank) { part(rank) = std::make_unique<plan::TriadPart>(elements / 2); });
  }

  /// Runs it once. @return bytes per second
  double round() {
    double const start = seconds_now();
    team_.run([this](int rank) { part(rank)->run(); });
    double const rate = 2. * part(0)->bytes() / (seconds_now() - start);
    best_ = (std::max)(best_, rate);
    return rate;
  }

  /// The fastest round so far. @return bytes per second
  [[nodiscard]] double best() const { return best_; }

 private:
  std::unique_ptr<plan::TriadPart>& part(int rank) {
    return parts_[static_cast<std::size_t>(rank)];
  }

  double best_ = 0;
  Team team_;
  std::vector<std::unique_ptr<plan::TriadPart>> parts_;
};

}  // namespace bench
