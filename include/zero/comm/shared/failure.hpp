/// @file
/// Why a family of in-process groups cannot go on, told to every rank in the same words.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The first thing that went wrong. Recorded without allocating, put into words when it is thrown.
struct Failure {
  enum class Cause : std::uint8_t {
    none,
    mismatch,   ///< two ranks called different collectives
    thrown,     ///< a rank reported an exception
    left,       ///< a rank's handle is gone and others wait for it
    late,       ///< a rank did not arrive before the deadline
    abandoned,  ///< a rank dropped the ticket of an unfinished collective
  };

  Cause cause = Cause::none;
  int rank = -1;            ///< who is to blame, as numbered in the whole family
  int other = -1;           ///< mismatch: the rank that called something else
  std::uint64_t calls = 0;  ///< collectives that `rank` had started
  Collective call{};        ///< the collective in question, as `rank` called it if it did
  Collective other_call{};  ///< mismatch: the same as `other` called it
  double seconds = 0;       ///< late: the deadline
  int more = 0;             ///< late: how many further ranks are missing
  std::string reason{};     ///< thrown: the text of the exception
  std::string group{};      ///< in which it was found; empty for one without a name
};

/// Groups are split and closed by internal exchanges that have names of their own.
inline constexpr int split_bucket = -2;
inline constexpr int close_bucket = -3;

/// The name of an internal exchange; empty for a collective of the caller's.
[[nodiscard]] constexpr std::string_view internal_name(Collective const& op) noexcept {
  if (op.bucket == split_bucket) return "split";
  return op.bucket == close_bucket ? "close" : "";
}

/// A collective in words.
ZERO_APART [[nodiscard]] std::string describe_call(Collective const& op);

ZERO_APART [[nodiscard]] std::string operation_name(Collective const& op);

/// The end of a sentence about a group; empty for one without a name.
[[nodiscard]] ZERO_COLD inline std::string on_group(std::string_view name) {
  return name.empty() ? std::string() : Message({", on the ", name}).text();
}

/// The failure as one sentence that names the ranks, the operation, the bucket and the group.
ZERO_APART [[nodiscard]] ZERO_COLD std::string describe(Failure const& failure);

#if ZERO_BODIES

ZERO_BODY std::string describe_call(Collective const& op) {
  std::string_view const own = internal_name(op);
  return own.empty() ? describe(op) : std::string(own);
}

ZERO_BODY std::string operation_name(Collective const& op) {
  std::string_view const own = internal_name(op);
  return std::string(own.empty() ? name(op.op) : own);
}

ZERO_BODY std::string describe(Failure const& failure) {
  std::string const call = describe_call(failure.call);
  std::string const group = on_group(failure.group);
  switch (failure.cause) {
    case Failure::Cause::mismatch:
      return Message({"rank ",
                      failure.rank,
                      " called [",
                      call,
                      "] where rank ",
                      failure.other,
                      " called [",
                      describe_call(failure.other_call),
                      "]: they differ in ",
                      difference(failure.call, failure.other_call),
                      group,
                      " (usually because a rank alone makes a call that is for all, such as "
                      "full_parameters(), or evaluates alone)"})
          .text();
    case Failure::Cause::thrown: {
      Message const failed{"rank ", failure.rank, " failed: ", failure.reason};
      if (failure.calls == 0) return failed.text() + group;
      return Message({failed, " (its last call: [", call, "])", group}).text();
    }
    case Failure::Cause::left:
      return Message({"rank ",
                      failure.rank,
                      " left after ",
                      failure.calls,
                      " collectives, without [",
                      call,
                      "]",
                      group})
          .text();
    case Failure::Cause::late: {
      Message const others{" and ", failure.more, " more"};
      return Message({"rank ",
                      failure.rank,
                      failure.more > 0 ? std::string_view(others.text()) : std::string_view(),
                      " did not arrive within ",
                      failure.seconds,
                      " s at [",
                      call,
                      "]",
                      group})
          .text();
    }
    case Failure::Cause::abandoned:
      return Message(
                 {"rank ", failure.rank, " abandoned [", call, "] without waiting for it", group})
          .text();
    case Failure::Cause::none: break;
  }
  return Message({"rank ", failure.rank}).text();
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
