/// @file
/// Threads as ranks: the communicator of one process.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/comm/shared/ticket.hpp"
#include "zero/comm/threads/rendezvous.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/space/host.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// One rank of a group of threads; every thread holds a handle of its own.
///
/// Collectives read peers' buffers directly, in one pass: no staging copy of any size is made, and
/// sums are added in rank order, so results are bit-identical for every schedule. A collective
/// moves once all ranks have started it, on whichever threads wait for it; `wait` returns when all
/// of it is done. Where ranks do not outnumber the processors, a rank that waits looks for its
/// peers for 20 µs before it sleeps; elsewhere it sleeps at once. `start` and `wait` allocate
/// nothing.
///
/// Ranks that disagree about a collective, that throw, leave, or arrive too late end the whole
/// family of groups: every later call of every rank throws the same sentence as Error
/// (communication), except waiting for what is done already: its result stands. Buffers of
/// unfinished collectives are safe to free once the ticket is destroyed, so declare tickets after
/// their buffers.
/// @par Threads  a handle belongs to one thread at a time; the group itself is shared
class InProcess {
 public:
  using Space = space::Host;  ///< buffers are ordinary memory, which all ranks can read
  static constexpr bool adds_squares = true;  ///< on whichever thread adds the elements

  /// Settings of a whole family: of a group and of those split from it.
  struct Options {
    double deadline_s = 600;  ///< seconds after which a rank that does not arrive is given up on
  };

  /// More ranks than this are taken for a mistake.
  static constexpr int max_ranks = 1024;

  /// A collective under way. Destroying it unfinished withdraws this rank's buffers and ends the
  /// group.
  using Ticket = detail::Ticket<detail::Rendezvous>;

  /// Handles of a new group, to be moved to one thread each. Not collective.
  /// @throws Error (invalid_argument) if `ranks` is not in [1, max_ranks] or the deadline not > 0
  ZERO_APART [[nodiscard]] ZERO_COLD static std::vector<InProcess> group(int ranks,
                                                                         Options options);

  /// @overload
  ZERO_APART [[nodiscard]] static std::vector<InProcess> group(int ranks) {
    return group(ranks, Options{});
  }

  /// Takes over the rank's place in the group; `other` may only be destroyed or assigned to.
  InProcess(InProcess&& other) noexcept = default;
  /// Leaves the present group as in destruction, then takes over the place of `other`.
  InProcess& operator=(InProcess&& other) noexcept = default;
  /// Leaves the group: peers that wait for this rank, now or later, get an error that names it.
  ~InProcess() = default;

  /// This rank's number in the group, from 0.
  [[nodiscard]] int rank() const noexcept { return handle_.rank(); }
  /// How many ranks the group has.
  [[nodiscard]] int size() const noexcept { return handle_.size(); }

  /// Starts a collective. Returns at once unless 64 are under way, then helps to finish the oldest.
  ///
  /// @par Collective  yes: all ranks, the same calls in the same order
  /// @par Cost        allocates nothing; the last rank to arrive carries out small collectives
  /// @throws Error (invalid_argument) for a call no peer could match, such as a null buffer
  /// @throws Error (communication) if the ranks disagree or one of them has failed
  ZERO_APART __attribute__((noinline)) Ticket start(Collective const& op);

  /// Blocks until the collective is done on every rank, working on it meanwhile. In any order.
  /// @throws Error (communication) if a rank disagrees, throws, leaves or misses the deadline
  ZERO_APART __attribute__((noinline)) void wait(Ticket& ticket);

  /// Divides the group: ranks of one color form a new group, ordered by key, then by rank.
  ///
  /// The new group shares the fate of this one: an error in either ends both.
  /// @param color  of the group that this rank will be in
  /// @param key    its place among the ranks of that color
  /// @param name   of the group, for messages: "model axis"
  /// @par Collective  yes; blocks; allocates
  /// @throws Error (communication) as `wait` does
  ZERO_APART [[nodiscard]] InProcess split(int color, int key, std::string_view name = {});

  /// What the group was called when it was split off; empty for the first.
  [[nodiscard]] std::string_view group_name() const noexcept { return handle_->name(); }

  /// Ends the whole family of groups because this rank cannot go on: every peer's present or next
  /// call throws Error (communication) with this reason in it. For a thread that catches an
  /// exception it cannot repair; `run_ranks` does it for its ranks.
  /// @return true if the family was in order until now, so that this is the original failure
  ZERO_APART ZERO_COLD bool report_failure(std::string_view reason);

 private:
  explicit InProcess(detail::Handle<detail::Rendezvous> handle) noexcept
      : handle_(std::move(handle)) {}

  detail::Handle<detail::Rendezvous> handle_;
};

static_assert(NamingCommunicator<InProcess>);

#if ZERO_BODIES

ZERO_BODY std::vector<InProcess> InProcess::group(int ranks, Options options) {
  if (ranks < 1 || ranks > max_ranks) {
    fail(ErrorKind::invalid_argument,
         {"an in-process group has 1 to ", max_ranks, " ranks, not ", ranks});
  }
  if (!detail::is_deadline(options.deadline_s)) {
    fail(ErrorKind::invalid_argument, "the deadline of an in-process group is not in (0, 1e9) s");
  }
  auto family = std::make_shared<detail::ThreadFamily>();
  family->deadline = std::chrono::duration<double>(options.deadline_s);
  family->looks = static_cast<unsigned>(ranks) <= std::thread::hardware_concurrency();
  std::vector<int> numbers;
  for (int rank = 0; rank < ranks; ++rank) numbers.push_back(rank);
  auto const shared = std::make_shared<detail::Rendezvous>(std::move(family), std::move(numbers));
  std::vector<InProcess> handles;
  handles.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) handles.push_back(InProcess({shared, rank}));
  return handles;
}

ZERO_BODY InProcess::Ticket InProcess::start(Collective const& op) {
  detail::check_arguments(op, rank(), size(), group_name());
  return Ticket(handle_.group(), handle_->post(rank(), op), rank());
}

ZERO_BODY void InProcess::wait(Ticket& ticket) { ticket.wait(); }

ZERO_BODY InProcess InProcess::split(int color, int key, std::string_view name) {
  return InProcess(
      handle_->split(rank(), {color, key}, [&](std::vector<int> const&, std::vector<int> numbers) {
        return std::make_shared<detail::Rendezvous>(handle_->family(), std::move(numbers), name);
      }));
}

ZERO_BODY bool InProcess::report_failure(std::string_view reason) {
  return handle_->report(rank(), reason);
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
