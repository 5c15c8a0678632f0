/// @file
/// What benchmarks compare with: a STREAM triad, timed in turn with the code under test.
///
/// Absolute bandwidth means nothing on a shared machine, whose speed changes within seconds. A
/// ratio to a known kernel does, if both were timed in the same process and in the same seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace bench {

[[nodiscard]] inline double seconds_now() {
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// Threads that live as long as the benchmark and run one function at a time together.
class Team {
 public:
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

/// STREAM's triad a = b + s * c over fp32 on two threads, 12 bytes per element. Its stores bypass
/// the cache where the processor can, so that these are the bytes that move: with ordinary stores
/// each line of `a` is read before it is written, on some machines and not on others.
class Triad {
 public:
  /// @param elements  per array; three arrays have to be well beyond the cache
  explicit Triad(std::size_t elements = std::size_t{32} << 20) : elements_(elements), team_(2) {
    for (auto* const array : {&a_, &b_, &c_}) {
      // Not initialised here: the thread that works on a page has to touch it first.
      array->reset(static_cast<float*>(std::aligned_alloc(64, elements_ * sizeof(float))));
    }
    team_.run([this](int rank) {
      auto const [begin, end] = part(rank);
      std::fill(a_.get() + begin, a_.get() + end, 0.0f);
      std::fill(b_.get() + begin, b_.get() + end, 1.0f);
      std::fill(c_.get() + begin, c_.get() + end, 2.0f);
    });
  }

  /// Runs it once. @return bytes per second
  double round() {
    double const start = seconds_now();
    team_.run([this](int rank) {
      auto const [begin, end] = part(rank);
      for (std::size_t i = begin; i < end; i += width) {
        // The constant trip count lets plain -O2 vectorise.
        float sums[width];
        for (std::size_t j = 0; j < width; ++j) sums[j] = b_[i + j] + 3.0f * c_[i + j];
        store(a_.get() + i, sums);
      }
#if defined(__SSE2__)
      _mm_sfence();
#endif
    });
    double const rate = 12.0 * static_cast<double>(elements_) / (seconds_now() - start);
    best_ = std::max(best_, rate);
    return rate;
  }

  /// The fastest round so far. @return bytes per second
  [[nodiscard]] double best() const { return best_; }

 private:
  static constexpr std::size_t width = 16;

  /// One cache line.
  static void store(float* to, float const (&sums)[width]) {
#if defined(__SSE2__)
    for (std::size_t j = 0; j < width; j += 4) _mm_stream_ps(to + j, _mm_loadu_ps(sums + j));
#else
    std::copy_n(sums, width, to);
#endif
  }

  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  using Array = std::unique_ptr<float[], Free>;

  struct Part {
    std::size_t begin;
    std::size_t end;
  };
  [[nodiscard]] Part part(int rank) const {
    std::size_t const half = elements_ / 2 / width * width;
    return {half * static_cast<std::size_t>(rank), half * static_cast<std::size_t>(rank + 1)};
  }

  std::size_t elements_;
  Array a_;
  Array b_;
  Array c_;
  double best_ = 0;
  Team team_;
};

[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Rounds of the code under test, each next to a round of the triad.
///
/// `best` compares the fastest of one with the fastest of the other, `typical` is the median of the
/// ratios of neighbours: what other tenants take from one, they take from its neighbour as well.
class Interleaved {
 public:
  explicit Interleaved(Triad& triad) : triad_(triad) {}

  /// Times one round. @param bytes  what it moves, by the convention its goal is stated in
  /// @param seconds_of  runs it and returns its duration
  template <class Timed>
  double round(double bytes, Timed const& seconds_of) {
    double const before = triad_.round();
    double const seconds = seconds_of();
    double const after = triad_.round();
    double const triad = std::max(before, after);
    fastest_triad_ = std::max(fastest_triad_, triad);
    fastest_ = std::max(fastest_, bytes / seconds);
    ratios_.push_back(bytes / seconds / triad);
    return seconds;
  }

  [[nodiscard]] double best() const { return fastest_ / fastest_triad_; }
  [[nodiscard]] double typical() const { return median(ratios_); }
  [[nodiscard]] double triad() const { return fastest_triad_; }

 private:
  Triad& triad_;
  double fastest_ = 0;
  double fastest_triad_ = 0;
  std::vector<double> ratios_;
};

}  // namespace bench
