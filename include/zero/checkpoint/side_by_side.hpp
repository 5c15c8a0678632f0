/// @file
/// Two halves of a rank's work, each in a thread of its own.
#pragma once

#include "zero/base/config.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>

namespace zero::inline ZERO_NAMESPACE::detail {

/// From this many bytes on a second thread is worth while: one that reads and checks is slower than
/// a disk's cache.
inline constexpr std::uint64_t bytes_for_two_threads = std::uint64_t{4} << 20;

/// Raises a flag at the end of a scope: before the destructor of a future that stands above it,
/// which waits for who looks at the flag.
struct Raise {
  explicit Raise(std::atomic<bool>& flag) : flag_(&flag) {}
  Raise(Raise const&) = delete;
  Raise& operator=(Raise const&) = delete;
  ~Raise() { *flag_ = true; }

 private:
  std::atomic<bool>* flag_;
};

/// Calls `first(alive)` here and `second(alive_there)` in another thread, and returns when both
/// have ended. What either throws is thrown here; the other one then ends at its next call of its
/// argument.
/// @param alive  called by the first between parts of its work, and while it waits for the second
template <class First, class Second, class Alive>
void side_by_side(First&& first, Second&& second, Alive&& alive) {
  struct Stopped {};
  std::atomic<bool> stopped{false};
  std::future<void> other = std::async(std::launch::async, [&] {
    try {
      second([&] {
        if (stopped) throw Stopped{};
      });
    } catch (Stopped const&) {
    } catch (...) {
      stopped = true;
      throw;
    }
  });
  Raise const stop(stopped);
  first([&] {
    if (stopped) other.get();
    alive();
  });
  while (other.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) alive();
  other.get();
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
