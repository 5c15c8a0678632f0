/// @file
/// Bytes on their way from a rank's arrays to its file.
#pragma once

#include "zero/base/config.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A ring of memory between one thread that puts bytes in and one that takes them out. One that
/// holds everything is a snapshot; a small one bounds the memory of a save that is waited for.
class Pipe {
 public:
  /// What is taken out at once, but for the last bytes.
  static constexpr std::size_t piece = std::size_t{1} << 18;

  /// @param memory  a multiple of `piece`
  /// @param starts  whether bytes may be taken before all are there
  Pipe(std::span<std::byte> memory, bool starts) : memory_(memory), starts_(starts) {}

  /// Where the next bytes go; empty if there was no room within `patience`.
  [[nodiscard]] std::span<std::byte> room(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    auto const free = [this] { return stopped_ || put_ - taken_ < memory_.size(); };
    if (!changed_.wait_for(lock, patience, free) || stopped_) return {};
    auto const at = static_cast<std::size_t>(put_ % memory_.size());
    auto const held = static_cast<std::size_t>(put_ - taken_);
    return memory_.subspan(at, (std::min)(memory_.size() - at, memory_.size() - held));
  }
  /// So many bytes were put there.
  void put(std::size_t bytes) {
    {
      std::lock_guard const lock(mutex_);
      std::uint64_t const pieces = put_ / piece;
      put_ += bytes;
      if (!starts_ || put_ / piece == pieces) return;
    }
    changed_.notify_all();
  }
  /// No more will come.
  void end() {
    {
      std::lock_guard const lock(mutex_);
      ended_ = starts_ = true;
    }
    changed_.notify_all();
  }
  /// Nobody will put or take any more.
  void stop() noexcept {
    {
      std::lock_guard const lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool stopped() const {
    std::lock_guard const lock(mutex_);
    return stopped_;
  }

  /// The next piece, as soon as all of it is there; the last one is shorter, and none empty.
  [[nodiscard]] std::span<std::byte const> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [this] { return stopped_ || (starts_ && (ended_ || put_ - taken_ >= piece)); });
    if (stopped_) return {};
    auto const bytes = (std::min)(piece, static_cast<std::size_t>(put_ - taken_));
    return memory_.subspan(static_cast<std::size_t>(taken_ % memory_.size()), bytes);
  }
  /// It is not needed any more.
  void took(std::size_t bytes) {
    {
      std::lock_guard const lock(mutex_);
      taken_ += bytes;
    }
    changed_.notify_all();
  }

 private:
  std::span<std::byte> memory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t put_ = 0;
  std::uint64_t taken_ = 0;
  bool starts_;
  bool ended_ = false;
  bool stopped_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
