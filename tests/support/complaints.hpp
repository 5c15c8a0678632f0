/// @file
/// What several ranks find wrong, told once.
#pragma once

#include <mutex>
#include <string>

/// Collects what ranks complain about, from any thread. A test checks at its end that `text()` is
/// empty, and prints it if not.
class Complaints {
 public:
  void add(int rank, std::string const& what) {
    if (what.empty()) return;
    std::lock_guard const lock(mutex_);
    text_ += "rank " + std::to_string(rank) + ": " + what + "\n";
  }
  void require(bool holds, int rank, std::string const& what) {
    if (!holds) add(rank, what);
  }
  [[nodiscard]] std::string text() const {
    std::lock_guard const lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};
