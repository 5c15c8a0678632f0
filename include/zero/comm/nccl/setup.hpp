/// @file
/// How a communicator comes to be: the trainer's own, or a new one; and that all ranks agree.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/caller.hpp"
#include "zero/comm/nccl/exchange.hpp"
#include "zero/comm/nccl/options.hpp"
#include "zero/comm/shared/backoff.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::nccl {

/// A new group: every rank passes the same id, which one of them has made.
template <class A>
struct NewGroup {
  typename A::UniqueId id{};     ///< from `unique_id()`; a secret, never logged
  int rank = 0;                  ///< of this process
  int size = 1;                  ///< of the group
  typename A::Stream compute{};  ///< the trainer's stream
};

/// The trainer's own communicator, which stays its own: it is never destroyed. Build it with
/// `blocking = 0`, or calls may block inside NCCL, where no deadline applies. NCCL may still be at
/// it, which is waited for.
template <class A>
struct Existing {
  typename A::Comm comm{};       ///< for reductions, and for gathers unless there is another
  typename A::Stream compute{};  ///< the trainer's stream
  /// Where collectives run; null: a stream of our own. Not cudaStreamPerThread: NCCL may launch
  /// from a thread of its own, for which that is another stream.
  typename A::Stream communication{};
};

}  // namespace zero::inline ZERO_NAMESPACE::nccl

namespace zero::inline ZERO_NAMESPACE::detail {

/// "2.28.9" for 22809.
[[nodiscard]] inline std::string nccl_version_text(std::uint64_t code) {
  return Message({code / 10000, ".", code / 100 % 100, ".", code % 100}).text();
}

/// The NCCL that runs.
/// @throws Error (resource) if it is older than its header: newer functions may be missing
template <nccl::Api A>
[[nodiscard]] int nccl_library_version() {
  int version = 0;
  nccl::Status const status = A::version(&version);
  if (!status.ok()) fail(ErrorKind::resource, {"ncclGetVersion: ", name(status.result)});
  if (version < A::header_version) {
    fail(ErrorKind::resource,
         {"NCCL ",
          nccl_version_text(static_cast<std::uint64_t>(version)),
          " runs, but this program was compiled for ",
          nccl_version_text(static_cast<std::uint64_t>(A::header_version))});
  }
  return version;
}

inline void check_nccl_place(int rank, int size) {
  if (size >= 1 && rank >= 0 && rank < size) return;
  fail(ErrorKind::invalid_argument, {"NCCL: rank ", rank, " of ", size, " is none"});
}

/// @throws Error (resource) if NCCL or CUDA does not say what it is asked
inline void nccl_query(nccl::Status status) {
  if (status.ok()) return;
  fail(ErrorKind::resource,
       {"NCCL: ", name(status.result), " ", status.text},
       {.operation = "init"});
}

/// Waits for a communicator of the trainer's that NCCL is still building: until then it answers no
/// question. One that is not ready in time stays as it is.
/// @throws Error (communication) if the deadline passes, or NCCL could not build it
template <nccl::Api A>
void nccl_await(typename A::Comm comm, double deadline_s) {
  auto const start = std::chrono::steady_clock::now();
  Backoff backoff;
  while (true) {
    auto state = nccl::Result::success;
    nccl::Status status = A::async_error(comm, &state);
    if (status.ok()) status.result = state;
    if (status.ok()) return;
    if (status.failed()) {
      fail(ErrorKind::communication,
           {"the ncclComm_t is of no use: ",
            name(status.result),
            ": ",
            std::string(A::last_error(comm))},
           {.operation = "init"});
    }
    std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > deadline_s) {
      fail(ErrorKind::communication,
           {"the ncclComm_t is not ready after ", deadline_s, " s"},
           {.operation = "init"});
    }
    backoff.pause();
  }
}

/// @throws Error (resource) if this NCCL does not make the windows that are asked for
inline void check_nccl_library(nccl::Options const& options, int library) {
  // Before, a window was of the host's memory and made no difference.
  if (options.registration == nccl::Registration::windows && library < 22800) {
    fail(ErrorKind::resource, "NCCL options: windows need NCCL 2.28");
  }
}

/// What all ranks must have alike, in numbers, because it decides what they call and when. Two of
/// them have gone since 0.2 and stay 0, so that ranks with other versions find the others.
inline constexpr std::array<std::string_view, 7> nccl_fields{"NCCL version",
                                                             "header version",
                                                             "reduction (1: ordered)",
                                                             "separate_gathers (reserved)",
                                                             "registration",
                                                             "copy_engine_gathers (reserved)",
                                                             "staging_bytes"};
using NcclFields = std::array<std::int64_t, nccl_fields.size()>;

}  // namespace zero::inline ZERO_NAMESPACE::detail
