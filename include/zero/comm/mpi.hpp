/// @file
/// Processes as ranks: a communicator over MPI and, within a node, shared memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/bodies.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/member.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/pool.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/comm/shared/split_members.hpp"
#include "zero/comm/shared/ticket.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/space/host.hpp"
#if ZERO_MPI_BODIES
#include "zero/comm/mpi/group.hpp"
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// One rank of a group of processes, over the trainer's own MPI communicator.
///
/// The trainer's communicator is duplicated; MPI is neither initialised nor finalised. Within a
/// node ranks share one window: buffers from `allocator()` are read by peers where they are, in one
/// pass, with the kernels of `InProcess`. Everything else travels through staging of constant size,
/// which alone is ever handed to MPI. `transport()` says what is in use.
///
/// Data move at once. Who sends a rank anything for a collective says first which call it is for,
/// and ranks of a node read each other's calls: no rank uses data of a rank that made another call.
/// Ranks that disagree, throw, leave, or are not heard of for the deadline end the whole family of
/// groups: every later call of every rank throws the same sentence as Error (communication), except
/// waiting for what is done already. A rank that has given all it gives, and needs nothing, returns
/// from `wait` before it can know of that: a broadcast's root. Its next call then throws.
///
/// Transfers advance inside `start`, `wait` and `progress`, or in a thread (Options). `start` and
/// `wait` allocate for the first data to or from a rank on another node, and for more collectives
/// under way than ever before; else only MPI does, for the requests of messages.
///
/// A rank that computes without calling `progress` holds up only those who need what it has not
/// sent, or more room than it has made. In a copy nobody else waits for it. In a sum all others
/// wait for it after the first chunks.
///
/// Construction, `split` and `close` make calls of MPI's that only block. All ranks meet before
/// each of them, by the deadline, at every level of threads. Ranks that wait in vain send each
/// other empty messages to find out who is missing, and name them; in construction over the
/// trainer's communicator, with the tag 32767. A rank that dies after all have met leaves the
/// others inside of MPI.
///
/// The destructor is local and leaves MPI's handles and the window behind. `close` frees them. So
/// does the next construction over the same MPI communicator, and for groups that were split off
/// the next `split` or `close` of what they were split from, once all ranks have destroyed theirs
/// and everything that lay in the window. What a failure has ended, or outlives the MPI
/// communicator, stays until MPI_Finalize.
/// @tparam Reduction  `mpi::Ordered`: sums are added in rank order
/// @par Threads  a handle belongs to one thread at a time
template <class Reduction = mpi::Ordered>
class Mpi {
  static_assert(!std::is_same_v<Reduction, mpi::Native>,
                "zero: mpi::Native is no part of the library since 0.3; take zero::Mpi<>, or a "
                "communicator of your own over MPI's collectives: "
                "examples/mpi/native_collectives.hpp");
  using Member = mpi::detail::GroupMember;

 public:
  using Space = space::Host;                  ///< buffers are ordinary memory
  static constexpr bool adds_squares = true;  ///< where it adds
  using Options = mpi::Options;               ///< settings of a whole family

  /// A collective under way. Destroying it unfinished withdraws this rank's buffers and ends the
  /// group.
  using Ticket = zero::detail::Ticket<Member>;

  /// A group of the ranks of `comm`, in its order.
  ///
  /// Groups that are used at once come from `split` of one `Mpi`, or have a progress thread each:
  /// who waits in one family advances nothing of another, so that two ranks that wait in two
  /// families would wait for each other. A family with `ProgressThread::sole` is alone in its
  /// process.
  /// @par Collective  yes, over `comm`; blocks
  /// @par Cost        a window of `options.shared_bytes` per rank, of which only what is allocated
  ///   takes memory; about 160 KB per rank; up to `options.exchange_bytes` of staging, which ranks
  ///   on other nodes get with the first data that goes one way
  /// @throws Error (invalid_argument) if MPI is not running or its thread level does not suffice,
  ///   for MPI_COMM_NULL, a deadline that is none, a negative node or a second family beside
  ///   `ProgressThread::sole`; (communication) if a rank does not come within the deadline or has
  ///   other options; (resource) on all ranks if one of them is refused the window or pages for it,
  ///   or MPI has no communicators left
  explicit Mpi(MPI_Comm comm, Options const& options = {})
      : handle_(mpi::detail::first_member(comm, options)) {}

  /// Takes over the rank's place in the group; `other` may only be destroyed or assigned to.
  Mpi(Mpi&& other) noexcept = default;
  /// Leaves the present group as in destruction, then takes over the place of `other`.
  Mpi& operator=(Mpi&& other) noexcept = default;
  /// Leaves the group: peers that wait for this rank, now or later, get an error that names it.
  /// Does nothing after MPI_Finalize.
  ~Mpi() = default;

  /// This rank's number in the group, from 0.
  [[nodiscard]] int rank() const noexcept { return handle_.rank(); }
  /// How many ranks the group has.
  [[nodiscard]] int size() const noexcept { return handle_.size(); }

  /// Starts a collective. Returns at once unless 64 are under way, then helps to finish the oldest.
  /// @par Collective  yes: all ranks, the same calls in the same order
  /// @par Cost        64 bytes in front of the first data for each rank on another node; copies up
  ///   to 2 KiB
  /// @throws Error (invalid_argument) for a call no peer could match, such as a null buffer
  /// @throws Error (communication) if the ranks disagree or one of them has failed
  Ticket start(Collective const& op) {
    std::uint64_t const number = open().post(op);
    return Ticket(handle_.group(), number, rank());
  }

  /// Blocks until the collective is done on every rank, working on all under way meanwhile. In any
  /// order.
  /// @throws Error (communication) if a rank disagrees, throws, leaves or misses the deadline
  void wait(Ticket& ticket) { ticket.wait(); }

  /// Advances what is under way in all groups of the family: call it between pieces of computation.
  /// Never blocks.
  /// @par Cost  under 1 µs if nothing is under way, else at most 256 KiB of each peer's data per
  ///   collective
  void progress() noexcept {
    if (handle_.group() != nullptr) handle_->progress();
  }

  /// Divides the group: ranks of one color form a new group, ordered by key, then by rank. It
  /// shares this group's pool and its fate: an error in either ends both.
  /// @param color  of the group that this rank will be in
  /// @param key    its place among the ranks of that color
  /// @param name   of the group, for messages: "model axis"
  /// @par Collective  yes; blocks; allocates
  /// @throws Error (communication) as `wait` does; (resource) as construction does
  [[nodiscard]] Mpi split(int color, int key, std::string_view name = {}) {
    zero::detail::SplitChoice const mine{color, key};
    std::vector<zero::detail::SplitChoice> all(static_cast<std::size_t>(size()));
    run(*this,
        {.op = Op::all_gather,
         .dtype = DType::i32,
         .count = 2,
         .send = &mine,
         .recv = all.data(),
         .bucket = zero::detail::split_bucket});
    std::vector<int> const members = zero::detail::split_members(all, color);
    auto const place =
        static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    return Mpi(handle_->split(members, place, name));
  }

  /// What the group was called when it was split off; empty for the first.
  [[nodiscard]] std::string_view group_name() const { return open().name(); }

  /// Memory that peers on this node read directly, for the whole family. Whatever was allocated
  /// from it must be given back before `close`.
  [[nodiscard]] mpi::SharedAllocator allocator() const { return open().allocator(); }

  /// Bytes that this group holds on this rank by now: control blocks, and chunks for peers that
  /// data was exchanged with. What `allocator()` has handed out is whose it is, and does not count.
  [[nodiscard]] std::uint64_t held() const { return open().held(); }
  /// At most what `held()` of such a group will be; for `PlanOptions::communicator_bytes`.
  /// @param options  that the group is made with
  /// @param ranks    of the group
  /// @param nodes    on which they are
  [[nodiscard]] static std::uint64_t planned_bytes(Options const& options, int ranks, int nodes) {
    return mpi::detail::planned_bytes(options, ranks, nodes);
  }

  /// What is really in use, and what has gone which way on this rank. Local.
  [[nodiscard]] mpi::Transport transport() const { return open().transport(); }

  /// Ends the whole family of groups because this rank cannot go on: every peer's present or next
  /// call throws Error (communication) with this reason in it. Stays up to 0.1 s to get it out.
  /// @return true if the family was in order until now, so that this is the original failure
  bool report_failure(std::string_view reason) {
    return handle_.group() != nullptr && handle_->report(reason);
  }

  /// Frees what MPI holds for this group, and for the family with the group that was constructed
  /// first, which must be the last. Needed only to have it free at once: see the class. Before
  /// MPI_Finalize. Afterwards every call of this handle but destruction and `progress` throws Error
  /// (invalid_argument).
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument), with nothing closed, if memory of `allocator()` is in use, a
  ///   collective is under way or a group is open that was split from the first; (communication) as
  ///   `wait` does
  void close() {
    open().check_closable();
    std::shared_ptr<Member> const member = handle_.group();
    member->close();
    handle_.forget();
    member->close_family();
  }

 private:
  explicit Mpi(zero::detail::Handle<Member> handle) noexcept : handle_(std::move(handle)) {}

  [[nodiscard]] Member& open() const {
    if (handle_.group() != nullptr) return *handle_.group();
    fail(ErrorKind::invalid_argument, "the MPI communicator is closed", {.rank = rank()});
  }

  zero::detail::Handle<Member> handle_;
};

static_assert(NamingCommunicator<Mpi<mpi::Ordered>>);

}  // namespace zero::inline ZERO_NAMESPACE
