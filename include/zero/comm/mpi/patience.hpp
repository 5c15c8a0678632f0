/// @file
/// How long a wait may see nothing move. Pure logic.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"

#include <algorithm>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// How long a failing rank stays to get its reason out, and others wait for the words of an
/// exception that is on its way, or for answers.
inline constexpr std::chrono::milliseconds grace{100};

/// One wait's patience with other ranks.
class Patience {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// What to do about it that nothing has moved.
  enum class Step : std::uint8_t {
    wait,
    ask,    ///< others may know more by now
    blame,  ///< the deadline is over
  };

  Patience(double deadline_s, Time now) noexcept : deadline_(deadline_s), moved_(now) {}

  /// Something has moved.
  void reset(Time now) noexcept {
    moved_ = now;
    asked_ = 0;
  }
  [[nodiscard]] Step look(Time now) noexcept {
    std::chrono::duration<double> const still = now - moved_;
    bool const again = still > deadline_ * ask_after * (asked_ + 1);
    if (again && (asked_ == 0 || still <= deadline_)) {
      ++asked_;
      asked_at_ = now;
      return Step::ask;
    }
    if (asked_ == 0) return Step::wait;
    if (still <= deadline_ || now - asked_at_ <= grace) return Step::wait;
    return Step::blame;
  }
  /// For how many times the grace it is over, rounded down: who knows less speaks later.
  [[nodiscard]] int graces(Time now) const noexcept {
    return static_cast<int>((std::min)((now - moved_ - deadline_) / grace, 1000.));
  }

 private:
  /// Part of the deadline, again and again: early enough for data that then moves, and for a
  /// deadline after that.
  static constexpr double ask_after = 0.125;

  std::chrono::duration<double> deadline_;
  Time moved_;
  Time asked_at_{};
  int asked_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
