/// @file
/// Work that ranks do each for itself, for as long as it takes.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/together.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// `together` for work that may take longer than a communicator waits, such as writing to a disk:
/// ranks that are done exchange words with those that work on, so that none meets a deadline.
class LongWork {
 public:
  /// @param control    outlives this
  /// @param operation  what errors say was being done
  LongWork(ControlWords const& control, std::string_view operation)
      : control_(&control), operation_(operation) {}

  /// Calls `work()`, once for each object, and returns when all ranks have done theirs.
  /// @par Collective  yes; blocks
  /// @throws Error of the first rank that failed, on every rank
  template <class Work>
  void run(Work&& work) {
    try {
      work();
    } catch (Abandoned const&) {
    } catch (Error const& error) {
      if (over_) throw;
      failure_ = {true, error.kind(), error.message()};
    } catch (std::exception const& error) {
      if (over_) throw;
      failure_ = {true, ErrorKind::resource, error.what()};
    }
    if (!over_) end();
  }
  /// To be called in the work, between pieces of it. Ends the work if that of another rank failed;
  /// once this rank's has ended it does nothing.
  void alive() {
    auto const now = std::chrono::steady_clock::now();
    if (over_ || now - last_ < between_words) return;
    last_ = now;
    exchange(true);
    if (failed_) throw Abandoned{};
  }
  /// Does a part of the work that cannot be interrupted, such as a sync, in a thread of its own. It
  /// must not communicate.
  template <class Work>
  void aside(Work&& work) {
    std::future<void> done = std::async(std::launch::async, std::forward<Work>(work));
    while (done.wait_for(between_words) != std::future_status::ready) alive();
    done.get();
  }
  /// This rank's work is done; waits for the others'. To be called in the work where it goes on
  /// with collectives of its own.
  void end() {
    while (exchange(false)) continue;
    over_ = true;
    if (failed_) agree(*control_, failure_, operation_);
  }

 private:
  struct Abandoned {};
  static constexpr auto between_words = std::chrono::milliseconds(100);

  /// @returns whether some rank still works
  bool exchange(bool works) {
    std::array<std::int64_t, 2> words{works ? 1 : 0, failure_.failed ? 1 : 0};
    control_->sum(words);
    failed_ = words[1] != 0;
    return words[0] != 0;
  }

  ControlWords const* control_;
  std::string_view operation_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  RankFailure failure_{};
  bool failed_ = false;
  bool over_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
