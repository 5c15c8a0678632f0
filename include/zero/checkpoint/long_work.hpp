/// @file
/// Work that ranks do each for itself, for as long as it takes.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/side_by_side.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/checkpoint/watched_files.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// `together` for work that may take longer than a communicator waits, such as writing to a disk:
/// ranks that are done exchange words with those that work on, so that none meets a deadline. An
/// operation on a file that takes longer than one of its own ends the work on all ranks; the rank
/// itself has to wait for it before it can tell.
class LongWork {
 public:
  /// Of operations on files, unless it is said otherwise.
  static constexpr double default_deadline_s = 600.;

  /// @param control    outlives this
  /// @param operation  what errors say was being done
  /// @param watch      of files that the work reads or writes aside; null for none
  LongWork(ControlWords const& control,
           std::string_view operation,
           FileWatch const* watch = nullptr,
           double deadline_s = default_deadline_s)
      : control_(&control), operation_(operation), watch_(watch), deadline_s_(deadline_s) {}

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
    std::string stalled = watch_ == nullptr ? std::string() : watch_->stalled(deadline_s_);
    if (!stalled.empty()) {
      failure_ = {true, ErrorKind::resource, std::move(stalled)};
      end();
    }
    exchange(true);
    if (failed_) throw Abandoned{};
  }
  /// Does a part of the work that waits for files in a thread of its own. It must not communicate.
  /// @param meanwhile  what this thread does first; it calls `alive` if that takes long
  template <class Work, class Meanwhile = void (*)()>
  void aside(
      Work&& work, Meanwhile&& meanwhile = [] {}) {
    std::future<void> done = std::async(std::launch::async, std::forward<Work>(work));
    Raise const stop(stopped_);
    meanwhile();
    while (done.wait_for(between_words) != std::future_status::ready) alive();
    done.get();
  }
  /// To be called in a part of the work that is done aside, between pieces of it. Ends it if the
  /// work has ended.
  void piece() const {
    if (stopped_) throw Abandoned{};
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
  FileWatch const* watch_;
  double deadline_s_;
  std::atomic<bool> stopped_{false};
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  RankFailure failure_{};
  bool failed_ = false;
  bool over_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
