/// @file
/// Bytes on their way from a rank's arrays to its file.
#pragma once

#include "zero/base/config.hpp"
#include "zero/checkpoint/checksum.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A ring of memory between one thread that puts bytes in and one that takes them out. It bounds
/// the memory of a save that is waited for. A snapshot is one that has all bytes from the start.
class Pipe {
 public:
  /// Bytes that are taken out at once, but for the last ones.
  static constexpr std::size_t piece = std::size_t{1} << 18;

  /// What is taken out.
  struct Piece {
    std::span<std::byte const> bytes{};
    std::uint64_t sum = 0;  ///< their checksum
  };

  /// @param memory  a multiple of `piece`
  /// @param there   bytes that are in it, if no more will come. Otherwise it is empty, and the
  /// thread
  ///   that puts bytes in makes the checksums, as it waits for the other one anyway
  Pipe(std::span<std::byte> memory, std::optional<std::uint64_t> there)
      : memory_(memory),
        sums_(there ? 0 : memory.size() / piece),
        put_(there.value_or(0)),
        ended_(there.has_value()) {}

  /// Where the next bytes go; empty if there was no room within `patience`.
  [[nodiscard]] std::span<std::byte> room(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    auto const free = [this] { return stopped_ || put_ - taken_ < memory_.size(); };
    if (!changed_.wait_for(lock, patience, free) || stopped_) return {};
    auto const at = static_cast<std::size_t>(put_ % memory_.size());
    auto const held = static_cast<std::size_t>(put_ - taken_);
    return memory_.subspan(at, (std::min)(memory_.size() - at, memory_.size() - held));
  }
  /// So many bytes were put there; not more than a piece.
  void put(std::size_t bytes) {
    bool const complete = put_ % piece + bytes >= piece;
    if (complete) sum(piece);
    {
      std::lock_guard const lock(mutex_);
      put_ += bytes;
    }
    if (complete) changed_.notify_all();
  }
  /// No more will come.
  void end() {
    if (put_ % piece != 0) sum(put_ % piece);
    {
      std::lock_guard const lock(mutex_);
      ended_ = true;
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
  [[nodiscard]] Piece next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopped_ || ended_ || put_ - taken_ >= piece; });
    // A rank that has nothing to save may have no memory, either.
    if (stopped_ || put_ == taken_) return {};
    auto const bytes = (std::min)(piece, static_cast<std::size_t>(put_ - taken_));
    auto const at = static_cast<std::size_t>(taken_ % memory_.size());
    lock.unlock();
    std::span<std::byte const> const taken = memory_.subspan(at, bytes);
    return {taken, sums_.empty() ? checksum(taken.data(), bytes) : sums_[at / piece]};
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
  /// Makes the checksum of the piece that is being put in, all of whose bytes are there.
  void sum(std::uint64_t bytes) noexcept {
    auto const slot = static_cast<std::size_t>(put_ / piece % sums_.size());
    sums_[slot] = checksum(memory_.data() + slot * piece, static_cast<std::size_t>(bytes));
  }

  std::span<std::byte> memory_;
  std::vector<std::uint64_t> sums_;  ///< of the pieces in memory; none if the taker makes them
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t put_;
  std::uint64_t taken_ = 0;
  bool ended_;
  bool stopped_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
