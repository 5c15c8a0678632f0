/// @file
/// Ranks that do something each for itself, and all succeed or all fail.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/checkpoint/watched_files.hpp"
#include "zero/optimizer/setup/rank_words.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if !defined(__cpp_exceptions)
#error "zero/checkpoint.hpp needs exceptions: one rank's failure becomes an error on all of them"
#endif

namespace zero::inline ZERO_NAMESPACE::detail {

/// One rank's text.
/// @param rank  whose; the same on all ranks
/// @par Collective  yes; blocks
/// @par Cost        an all-reduce of 8 bytes, and one of the text
[[nodiscard]] inline std::string broadcast_text(int rank,
                                                RankWords const& control,
                                                std::string text) {
  if (control.rank() != rank) text.clear();
  auto size = static_cast<std::int64_t>(text.size());
  control.sum({&size, 1});
  text.resize(static_cast<std::size_t>(size));
  std::vector<std::int64_t> letters((text.size() + sizeof(size) - 1) / sizeof(size));
  if (letters.empty()) return text;
  if (control.rank() == rank) std::memcpy(letters.data(), text.data(), text.size());
  control.sum(letters);
  std::memcpy(text.data(), letters.data(), text.size());
  return text;
}

/// Why a rank failed, or that it did not.
struct RankFailure {
  bool failed = false;
  ErrorKind kind = ErrorKind::resource;
  std::string text{};
};

/// Of the exception that is being handled.
[[nodiscard]] inline RankFailure failure_now() {
  try {
    throw;
  } catch (Error const& error) {
    return {true, error.kind(), error.message()};
  } catch (std::exception const& error) {
    return {true, ErrorKind::resource, error.what()};
  }
}

/// What became of work that a rank does alone: `work()` must not communicate.
template <class Work>
[[nodiscard]] RankFailure attempt_alone(Work&& work) {
  try {
    work();
    return {};
  } catch (std::exception const&) {
    return failure_now();
  }
}

/// One error on all ranks if one failed: that of the first, by rank.
/// @par Collective  yes; blocks
/// @par Cost        an all-reduce of 8 bytes; where a rank failed a gather of as many, and its text
/// @throws Error of that rank's kind, with its number and text
inline void agree(RankWords const& control, RankFailure const& own, std::string_view operation) {
  std::int64_t failed = own.failed ? 1 : 0;
  control.sum({&failed, 1});
  if (failed == 0) return;
  std::int64_t const kind = own.failed ? 1 + static_cast<std::int64_t>(own.kind) : 0;
  std::vector<std::int64_t> const kinds = control.gather({&kind, 1});
  int rank = 0;
  while (kinds[static_cast<std::size_t>(rank)] == 0) ++rank;
  std::string const text = broadcast_text(rank, control, own.text);
  fail(static_cast<ErrorKind>(kinds[static_cast<std::size_t>(rank)] - 1),
       {"on rank ", rank, ": ", text},
       {.rank = control.rank(), .operation = std::string(operation)});
}

/// Work that each rank does alone, after which all go on or none does. Collective; blocks.
template <class Work>
void together(RankWords const& control, std::string_view operation, Work&& work) {
  agree(control, attempt_alone(work), operation);
}

/// To be called between parts of a work. May throw what ends it.
using Alive = std::function<void()>;

/// Calls `first(alive)` here and `second(alive_there)` in another thread, and returns when both
/// have ended. What either throws is thrown here; the other one then ends at its next call of its
/// argument.
/// @param alive  called by the first between parts of its work, and while it waits for the second
inline void side_by_side(std::function<void(Alive const&)> const& first,
                         std::function<void(Alive const&)> const& second,
                         Alive const& alive) {
  struct Stopped {};
  // Raised before the destructor of the future waits for who looks at it.
  struct Flag {
    std::atomic<bool>& raised;
    ~Flag() { raised = true; }
  };
  std::atomic<bool> stopped{false};
  std::future<void> other = std::async(std::launch::async, [&] {
    FloatMode::reset();
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
  Flag const stop{stopped};
  first([&] {
    if (stopped) other.get();
    alive();
  });
  while (other.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) alive();
  other.get();
}

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
  /// @param watched    files that the work reads or writes in a thread of its own; null for none
  LongWork(RankWords const& control,
           std::string_view operation,
           WatchedFiles const* watched = nullptr,
           double deadline_s = default_deadline_s)
      : control_(&control), operation_(operation), watched_(watched), deadline_s_(deadline_s) {}

  /// Calls `work()`, once for each object, and returns when all ranks have done theirs.
  /// @par Collective  yes; blocks
  /// @throws Error of the first rank that failed, on every rank
  void run(std::function<void()> const& work) {
    try {
      work();
    } catch (Abandoned const&) {
    } catch (std::exception const&) {
      if (over_) throw;
      failure_ = failure_now();
    }
    if (!over_) end();
  }
  /// To be called in the work, between pieces of it. Ends the work if that of another rank failed;
  /// once this rank's has ended it does nothing.
  void alive() {
    auto const now = std::chrono::steady_clock::now();
    if (over_ || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    std::string stalled = watched_ == nullptr ? std::string() : watched_->stalled(deadline_s_);
    if (!stalled.empty()) {
      failure_ = {true, ErrorKind::resource, std::move(stalled)};
      end();
    }
    exchange(true);
    if (failed_) throw Abandoned{};
  }
  /// Does a part of the work that waits for files in a thread of its own. It must not communicate,
  /// and calls its argument between pieces.
  /// @param meanwhile  what this thread does first; it calls `alive` if that takes long
  void run_in_thread(
      std::function<void(Alive const&)> const& work,
      std::function<void()> const& meanwhile = [] {}) {
    side_by_side([&](Alive const&) { meanwhile(); }, work, [&] { alive(); });
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

  /// @returns whether some rank still works
  bool exchange(bool works) {
    std::array<std::int64_t, 2> words{works ? 1 : 0, failure_.failed ? 1 : 0};
    control_->sum(words);
    failed_ = words[1] != 0;
    return words[0] != 0;
  }

  RankWords const* control_;
  std::string_view operation_;
  WatchedFiles const* watched_;
  double deadline_s_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  RankFailure failure_{};
  bool failed_ = false;
  bool over_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
