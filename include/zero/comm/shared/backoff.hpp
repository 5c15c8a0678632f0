/// @file
/// Waiting without spinning.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"

#include <algorithm>
#include <thread>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Gives the processor away between two looks at what others do: at once at first, then for longer,
/// at most 100 µs. To sleep takes 50 µs and more however short it is meant to be, so that it begins
/// when others have been waited for as long as that.
class Backoff {
 public:
  void reset() noexcept { since_ = {}; }
  void pause() {
    auto const now = std::chrono::steady_clock::now();
    if (since_ == std::chrono::steady_clock::time_point{}) {
      since_ = now;
      naps_ = 0;
    }
    if (now - since_ < yielding) {
      std::this_thread::yield();
      return;
    }
    int const shift = (std::min)(naps_++, 7);
    std::this_thread::sleep_for(std::chrono::microseconds((std::min)(1 << shift, 100)));
  }

 private:
  static constexpr std::chrono::microseconds yielding{150};
  std::chrono::steady_clock::time_point since_{};  ///< when there was first nothing to do
  int naps_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
