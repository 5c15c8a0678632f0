/// @file
/// What a trainer chooses about its NCCL communicators.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::nccl {

/// Who waits in `wait`.
enum class Waiting : std::uint8_t {
  stream,  ///< the compute stream; the host goes on at once
  host,    ///< the compute stream and the host, which polls: results can be read on return
};

/// What NCCL is told about the memory of `allocator()`.
enum class Registration : std::uint8_t {
  none,     ///< nothing
  buffers,  ///< each allocation is registered on this rank (ncclCommRegister)
  windows,  ///< each allocation is a symmetric window (ncclCommWindowRegister): collective
};

/// What messages call the registration.
[[nodiscard]] constexpr std::string_view name(Registration registration) noexcept {
  switch (registration) {
    case Registration::none: return "none";
    case Registration::buffers: return "buffers";
    case Registration::windows: return "windows";
  }
  return "unknown";
}

/// Settings of a group; all ranks pass the same ones, which the constructor checks.
struct Options {
  /// Seconds without progress after which the group is given up. What graphs replay has no
  /// deadline, but takes time of what is started behind it.
  double deadline_s = 600;
  /// Seconds that an abort and the work behind it may take before they are left to themselves, and
  /// work on memory that is given back.
  double grace_s = 10;
  /// Seconds between two looks of the watching thread. 0: no thread, for Waiting::host without
  /// graphs only: a host that waits for a stream inside CUDA looks at nothing, and nothing has a
  /// deadline.
  double watch_s = 1;
  Waiting waiting = Waiting::stream;               ///< who waits in `wait`
  Registration registration = Registration::none;  ///< of memory from `allocator()`
  int max_ctas = 0;  ///< limit of CTAs per communicator; 0: NCCL's own
  /// Device memory that ordered sums travel through. What does not fit goes in pieces of half of
  /// it, so that one is exchanged while another is added.
  std::size_t staging_bytes = 32 * MiB;
  /// Called once if the group and those split from it end by an error, after they were aborted: at
  /// most `deadline_s`, `watch_s` and `grace_s` after the last progress. For a trainer
  /// who sits in a call of CUDA, and has no next call that could throw. Empty: nobody is told.
  ///
  ///     options.on_end = [&](std::string const& reason, bool stuck) {
  ///       log.write(reason);
  ///       if (!stuck) return;  // the trainer's next call throws the same
  ///       save(what_the_host_has);
  ///       _exit(1);  // without destructors and exit handlers, which may wait for the GPU
  ///     };
  ///
  /// `reason` is the sentence that later calls throw. `stuck` says that an abort has not returned
  /// or that streams have not run dry: the trainer may never come back.
  /// @par Threads  called by whoever noticed: mostly the watching thread of the group or sub-group,
  ///   else the trainer's, inside a call. No lock is held. It may ask the communicator for its
  ///   report, but not destroy or close it, which would wait for this call. What it throws is
  ///   ignored.
  std::function<void(std::string const& reason, bool stuck)> on_end{};
};

/// Sums in rank order, in the accumulate dtype, rounded once: blocks are exchanged as they are and
/// added by one kernel. Bit-identical to the in-process communicator, but for which NaN a sum is.
/// Sums of integers are NCCL's own, which have no order to keep.
///
/// A rank sends N-1 blocks, as it would in a ring. A node's network does not: of M nodes with g
/// ranks, each sends g (1 - 1/M) buffers to the others, and one buffer in a ring. For 2 nodes of 8
/// that is 4 times as much, for many 8 times. Between nodes take `Native`, or partition inside of
/// them.
struct Ordered {
  static constexpr std::string_view name = "ordered";  ///< for reports
  static constexpr bool ordered = true;                ///< added by the library's own kernel
};

/// NCCL's own ncclSum. The wire's dtype is also what partial sums are rounded to at every hop, in
/// an order that depends on topology and size; fp32 summed in fp64 is refused.
struct Native {
  static constexpr std::string_view name = "native";  ///< for reports
  static constexpr bool ordered = false;              ///< added by NCCL
};

/// Either way of adding over ranks.
template <class R>
concept Reduction = requires {
  { R::name } -> std::convertible_to<std::string_view>;
  { R::ordered } -> std::convertible_to<bool>;
};

/// What is in use, as opposed to what was asked for.
struct Report {
  int library_version = 0;                         ///< of the NCCL that runs, such as 22809
  int header_version = 0;                          ///< of the nccl.h it was compiled with
  int device = 0;                                  ///< ordinal of the CUDA device
  std::string_view reduction;                      ///< Ordered's or Native's name
  bool owned = false;                              ///< built by the library, not the trainer's own
  Registration registration = Registration::none;  ///< of memory from `allocator()`
  std::uint64_t registered_bytes = 0;              ///< under registration now
  std::uint64_t unaligned = 0;    ///< collectives on buffers that are not 16-byte aligned: slow
  std::size_t staging_bytes = 0;  ///< device memory held for ordered sums
};

/// @throws Error (invalid_argument) for settings that no group can have
inline void check(Options const& options, int size) {
  char const* problem = nullptr;
  if (!zero::detail::is_deadline(options.deadline_s)) problem = "deadline_s is not in (0, 1e9)";
  if (!zero::detail::is_deadline(options.grace_s)) problem = "grace_s is not in (0, 1e9)";
  if (options.watch_s != 0 && !zero::detail::is_deadline(options.watch_s))
    problem = "watch_s is not in [0, 1e9)";
  if (options.watch_s == 0 && options.waiting == Waiting::stream) {
    problem = "watch_s is 0, so that nobody would look while streams wait: needs Waiting::host";
  }
  if (options.max_ctas < 0) problem = "max_ctas is negative";
  if (options.staging_bytes / 1024 < static_cast<std::size_t>(size)) {
    problem = "staging_bytes is less than 1 KiB per rank";
  }
  if (problem != nullptr) fail(ErrorKind::invalid_argument, {"NCCL options: ", problem});
}

}  // namespace zero::inline ZERO_NAMESPACE::nccl
