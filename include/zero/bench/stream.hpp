/// @file
/// What benchmarks compare with: a STREAM triad, timed in turn with the code under test.
///
/// Absolute bandwidth means nothing on a shared machine, whose speed changes within seconds. A
/// ratio to a known kernel does, if both were timed in the same process and in the same seconds.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/copy.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

/// Microbenchmarks of a user's own communicators and rules; see bench/README.md.
namespace zero::inline ZERO_NAMESPACE::bench {

/// Seconds on a clock that only goes forward.
[[nodiscard]] inline double seconds_now() {
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

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

/// One thread's part of STREAM's triad a = b + s * c over fp32, 12 bytes per element. Its stores
/// bypass the cache where the processor can, so that these are the bytes that move: with ordinary
/// stores each line of `a` is read before it is written, on some machines and not on others.
class TriadPart {
 public:
  /// Allocates and touches three arrays. @param elements  of each, rounded down to cache lines
  explicit TriadPart(std::size_t elements) : elements_(elements / width * width) {
    float value = 0.f;
    for (auto* const array : {&a_, &b_, &c_}) {
      array->reset(static_cast<float*>(::operator new(elements_ * sizeof(float), line)));
      std::fill_n(array->get(), elements_, value++);
    }
  }

  /// Runs it once.
  void run() {
    for (std::size_t i = 0; i < elements_; i += width) {
      // The constant trip count lets plain -O2 vectorise.
      float sums[width];
      for (std::size_t j = 0; j < width; ++j) sums[j] = b_[i + j] + 3.0f * c_[i + j];
      kernel::detail::stream_lines<0>(a_.get() + i, sums, 1);
    }
    kernel::publish_streaming_stores();
  }

  /// What one run moves.
  [[nodiscard]] double bytes() const { return 12. * static_cast<double>(elements_); }

 private:
  static constexpr std::size_t width = 16;
  static constexpr std::align_val_t line{64};

  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, line); }
  };

  std::size_t elements_;
  std::unique_ptr<float[], Free> a_;
  std::unique_ptr<float[], Free> b_;
  std::unique_ptr<float[], Free> c_;
};

/// The triad on two threads.
class Triad {
 public:
  /// @param elements  per array; three arrays have to be well beyond the cache
  explicit Triad(std::size_t elements = std::size_t{32} << 20) : team_(2), parts_(2) {
    // Made by the threads that work on them, so that these touch their pages first.
    team_.run([&](int rank) { part(rank) = std::make_unique<TriadPart>(elements / 2); });
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
  std::unique_ptr<TriadPart>& part(int rank) { return parts_[static_cast<std::size_t>(rank)]; }

  double best_ = 0;
  Team team_;
  std::vector<std::unique_ptr<TriadPart>> parts_;
};

}  // namespace zero::inline ZERO_NAMESPACE::bench
