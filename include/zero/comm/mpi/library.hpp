/// @file
/// Talking to the MPI library: its functions, its state, its errors, waiting for it.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/shared/backoff.hpp"

#if defined(_WIN32)
#error "zero: processes need Open MPI or MPICH, which Windows does not have"
#include ZERO_STOP
#endif

// Or mpi.h includes C++ bindings that the standard dropped, a second of the compiler's and a
// library.
#if !defined(OMPI_SKIP_MPICXX)
/// Open MPI: leave out the C++ bindings.
#define OMPI_SKIP_MPICXX 1
#endif
#if !defined(MPICH_SKIP_MPICXX)
/// MPICH: leave out the C++ bindings.
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <memory>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

using Clock = std::chrono::steady_clock;
using zero::detail::Backoff;

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

/// @throws Error with MPI's words unless a call succeeded: (communication), or (resource) for one
///   that makes a communicator, of which MPI has only so many
inline void check(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  int of = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &of);
  // A rank that has died is of another class.
  bool const none_left = of == MPI_ERR_OTHER && call.starts_with("MPI_Comm_");
  std::string_view const way =
      "MPI has no communicators left: call close(), on all ranks, for unused ones; ";
  fail(none_left ? ErrorKind::resource : ErrorKind::communication,
       {none_left ? way : "", call, " failed: ", error_text(code)});
}

/// Until what it returns ends, errors of a trainer's communicator are returned, whatever its
/// handler does.
[[nodiscard]] inline std::shared_ptr<void> returning_errors(MPI_Comm comm) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(comm, &handler);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return {nullptr, [=](void* /*unused*/) mutable noexcept {
            MPI_Comm_set_errhandler(comm, handler);
            MPI_Errhandler_free(&handler);
          }};
}

/// What the library keeps with a communicator. MPI has it as an attribute, and throws it away with
/// the communicator, or in MPI_Finalize.
template <class T>
[[nodiscard]] std::shared_ptr<T>& kept_with(MPI_Comm comm) {
  using Kept = std::shared_ptr<T>;
  auto const forget = [](MPI_Comm /*comm*/, int /*key*/, void* kept, void* /*unused*/) {
    delete static_cast<Kept*>(kept);
    return MPI_SUCCESS;
  };
  // A name, which MPI has no other place for; MPI runs once in a process.
  static int key = MPI_KEYVAL_INVALID;
  static int const code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, nullptr);
  check(code, "MPI_Comm_create_keyval");
  void* kept = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(comm, key, static_cast<void*>(&kept), &found), "MPI_Comm_get_attr");
  if (found == 0) kept = new Kept(std::make_shared<T>());
  if (found == 0) check(MPI_Comm_set_attr(comm, key, kept), "MPI_Comm_set_attr");
  return *static_cast<Kept*>(kept);
}

[[nodiscard]] inline std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  std::string_view const whole(text, static_cast<std::size_t>(length));
  return std::string(whole.substr(0, whole.find_first_of(",\n")));
}

/// @throws Error (invalid_argument) unless MPI is usable as the options want it
inline void require_usable(MPI_Comm comm, Options const& options) {
  if (!is_running()) {
    fail(ErrorKind::invalid_argument,
         "MPI is not running: call MPI_Init_thread before, and MPI_Finalize after, the lifetime of "
         "a communicator");
  }
  if (comm == MPI_COMM_NULL) fail(ErrorKind::invalid_argument, "the communicator is MPI_COMM_NULL");
  if (!zero::detail::is_deadline(options.deadline_s)) {
    fail(ErrorKind::invalid_argument, "the deadline of an MPI group is not in (0, 1e9) s");
  }
  if (options.message_bytes < head_bytes + 8 || options.message_bytes > largest_message) {
    fail(ErrorKind::invalid_argument, "message_bytes is not in [72, 2^30]");
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
  int is_main = 1;
  if (provided < MPI_THREAD_SERIALIZED) check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
  if (is_main == 0) {
    fail(ErrorKind::invalid_argument,
         {"MPI_Init_thread provided ",
          provided == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED",
          ", so that only the thread that called it may call MPI; this is another one: ask for "
          "MPI_THREAD_SERIALIZED"});
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
