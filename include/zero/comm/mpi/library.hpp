/// @file
/// Talking to the MPI library: its functions, its state, its errors, waiting for it.
#pragma once

#include "zero/base/error.hpp"
#include "zero/comm/mpi/options.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

namespace zero::inline v0_1::mpi::detail {

using Clock = std::chrono::steady_clock;

/// True while MPI may be called.
[[nodiscard]] inline bool is_running() noexcept {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

/// MPI's words for an error code.
[[nodiscard]] inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return {text, static_cast<std::size_t>(length)};
}

/// @throws Error (communication) with MPI's words unless a call succeeded
inline void check(int code, char const* call) {
  if (code == MPI_SUCCESS) return;
  fail(ErrorKind::communication, {call, " failed: ", error_text(code)});
}

[[nodiscard]] inline std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  std::string_view const whole(text, static_cast<std::size_t>(length));
  return std::string(whole.substr(0, whole.find_first_of(",\n")));
}

/// Gives the processor away between two looks at what others do: at once at first, then for longer,
/// at most 100 µs. To sleep takes 50 µs and more however short it is meant to be, so that it begins
/// when others have been waited for as long as that.
class Backoff {
 public:
  void reset() noexcept { since_ = {}; }
  void pause() {
    auto const now = Clock::now();
    if (since_ == Clock::time_point{}) {
      since_ = now;
      naps_ = 0;
    }
    if (now - since_ < yielding) {
      std::this_thread::yield();
      return;
    }
    int const shift = std::min(naps_++, 7);
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(1 << shift, 100)));
  }

 private:
  static constexpr std::chrono::microseconds yielding{150};
  Clock::time_point since_{};  ///< when there was first nothing to do
  int naps_ = 0;
};

/// @throws Error (invalid_argument) unless MPI is usable as the options want it
inline void require_usable(MPI_Comm comm, Options const& options) {
  if (!is_running()) {
    fail(ErrorKind::invalid_argument,
         "MPI is not running: call MPI_Init_thread before, and MPI_Finalize after, the lifetime of "
         "a communicator");
  }
  if (comm == MPI_COMM_NULL) fail(ErrorKind::invalid_argument, "the communicator is MPI_COMM_NULL");
  if (!(options.deadline_s > 0 && options.deadline_s < 1e9)) {
    fail(ErrorKind::invalid_argument, "the deadline of an MPI group is not in (0, 1e9) s");
  }
  if (options.message_bytes < 8 || options.message_bytes > largest_message) {
    fail(ErrorKind::invalid_argument, "message_bytes is not in [8, 2^30]");
  }
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&provided), "MPI_Query_thread");
  int const wanted = options.progress_thread == ProgressThread::multiple ? MPI_THREAD_MULTIPLE
                     : options.progress_thread == ProgressThread::sole   ? MPI_THREAD_SERIALIZED
                                                                         : MPI_THREAD_SINGLE;
  if (provided < wanted) {
    fail(ErrorKind::invalid_argument,
         {"a progress thread needs ",
          wanted == MPI_THREAD_MULTIPLE ? "MPI_THREAD_MULTIPLE" : "MPI_THREAD_SERIALIZED",
          ", which MPI_Init_thread did not provide"});
  }
}

}  // namespace zero::inline v0_1::mpi::detail
