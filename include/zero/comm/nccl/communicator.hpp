/// @file
/// The NCCL communicator over any API: all control flow, and neither NCCL's header nor CUDA's.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/construction.hpp"
#include "zero/comm/nccl/core.hpp"
#include "zero/comm/nccl/options.hpp"
#include "zero/comm/nccl/setup.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/comm/shared/ticket.hpp"
#include "zero/concepts/communicator.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// One rank of an NCCL group. `Nccl<>` (zero/comm/nccl.hpp) is the one over the real library.
///
/// `start` makes the communicator's stream wait for what the compute stream has so far, and
/// enqueues; `wait` makes the compute stream wait for the result. Neither blocks the host unless
/// 128 collectives are under way or `Waiting::host` is asked for. The device is never synchronised
/// and the current device never changed: calls from another device are refused.
///
/// Whatever goes wrong in NCCL, on this rank or, as far as NCCL tells, on another, and whatever
/// makes no progress for `deadline_s`, ends every communicator of the family: a group and those
/// split from it. They are aborted, or revoked where they are the trainer's own, so that streams
/// drain and the process can save and exit; every later call throws the same sentence as Error
/// (communication). What aborts and streams still use after `grace_s` is never freed, and the
/// library that holds this code must not be unloaded: a thread may be in it. A thread looks every
/// `watch_s` seconds, so that a trainer who is blocked on a stream is freed too; `on_end` tells of
/// an end where even that does not help.
///
/// A step can be captured in a CUDA graph, in any mode of capture: by all ranks or none, and after
/// one that was not, since NCCL connects peers when they first need it. Graphs are launched by all
/// ranks alike, on the compute stream, and destroyed before `close`, for which NCCL would wait.
/// NCCL recommends one GPU per process for that. A replay is not watched: its collectives have no
/// deadline, `poll` and `confirm` do not know of them, and no sentence names them. Only what NCCL
/// itself reports ends the family. Where a rank does not launch the graph, the others' compute
/// streams stand still. A collective that is started behind the replay has its deadline, and frees
/// them.
///
/// NCCL checks neither counts nor dtypes across ranks: wrap the communicator in `Checked` where
/// ranks may disagree.
/// @par Threads  all calls of a family come from one thread; one family per device and thread
/// @tparam A  NCCL and CUDA, or a stand-in for both
/// @tparam R  who adds over ranks: nccl::Ordered or nccl::Native
template <nccl::Api A, nccl::Reduction R = nccl::Ordered>
class BasicNccl {
  using Core = detail::NcclCore<A>;

 public:
  using Space = typename A::Space;                  ///< where buffers live
  using UniqueId = typename A::UniqueId;            ///< what ranks find each other by
  using Stream = typename A::Stream;                ///< a CUDA stream
  using Comm = typename A::Comm;                    ///< an ncclComm_t
  static constexpr bool adds_squares = R::ordered;  ///< in the sums that the library adds itself

  /// A collective under way. Destroying it without waiting ends the family, because its buffers
  /// may be gone while NCCL still writes to them.
  using Ticket = detail::Ticket<Core, detail::NcclDeparture>;

  /// Memory from NCCL for the library's arenas, registered as the options say. Models Allocator:
  /// `zero::Owned{comm.allocator()}`. Outlives the communicator if it must.
  class Allocator {
   public:
    /// Has no memory to give: `allocator()` makes those that have.
    Allocator() = default;
    /// Collective under Registration::windows: same sizes in the same order on all ranks.
    /// @throws Error (resource) if NCCL refuses the memory
    /// @throws Error (invalid_argument) for an alignment above 4096
    [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
      if (alignment > detail::NcclMemory<A>::alignment) {
        fail(ErrorKind::invalid_argument, {"NCCL memory is not aligned to ", alignment});
      }
      if (core_ == nullptr) {
        fail(ErrorKind::invalid_argument, "an allocator of NCCL memory that no communicator made");
      }
      return core_->allocate(bytes);
    }
    /// Ends the registration and frees. Memory that is in use after `grace_s`, or that a failure
    /// has left in use, is left alone: registered until the group ends, and never freed.
    void deallocate(void* memory, std::size_t /*bytes*/, std::size_t /*alignment*/) noexcept {
      if (core_ != nullptr) core_->deallocate(memory);
    }

   private:
    friend class BasicNccl;
    explicit Allocator(std::shared_ptr<Core> core) noexcept : core_(std::move(core)) {}
    std::shared_ptr<Core> core_;
  };

  /// An id for a new group: one rank makes it and hands it to the others over a channel that the
  /// trainer trusts. NCCL opens a listening socket for it.
  [[nodiscard]] static UniqueId unique_id() {
    UniqueId id{};
    nccl::Status const status = A::unique_id(&id);
    if (!status.ok()) {
      fail(ErrorKind::resource, {"ncclGetUniqueId: ", name(status.result), " ", status.text});
    }
    return id;
  }

  /// Builds a communicator on the current device. Collective; blocks, up to the deadline.
  /// @throws Error (invalid_argument) for wrong options, or if ranks have different ones
  /// @throws Error (resource) if CUDA or memory is refused, or NCCL is older than its header
  /// @throws Error (communication) if ranks do not meet
  BasicNccl(nccl::NewGroup<A> const& group, nccl::Options const& options)
      : handle_(detail::NcclConstruction<A>::of(group, options, R::ordered)) {}

  /// Uses the trainer's own communicator. Collective; blocks, up to the deadline.
  /// @throws Error as the other constructor does; also for options that only a new group can have
  BasicNccl(nccl::Existing<A> const& group, nccl::Options const& options)
      : handle_(detail::NcclConstruction<A>::of(group, options, R::ordered)) {}

  /// Takes over the place in the group; `other` may only be destroyed or assigned to.
  BasicNccl(BasicNccl&& other) noexcept = default;
  /// Leaves the present group as in destruction, then takes over.
  BasicNccl& operator=(BasicNccl&& other) noexcept = default;
  /// Aborts what it owns unless `close` was called: NCCL's own end is collective, and peers may be
  /// gone. Blocks for `grace_s` at most; what is in use even then is never freed.
  ~BasicNccl() = default;

  /// This rank's number in the group, from 0.
  [[nodiscard]] int rank() const noexcept { return handle_.rank(); }
  /// How many ranks the group has.
  [[nodiscard]] int size() const noexcept { return handle_.size(); }

  /// The memory that buffers lie in, and the compute stream as its queue.
  [[nodiscard]] Space space() const requires(!std::default_initializable<Space>) {
    return Space(handle_->device(), handle_->compute());
  }

  /// Enqueues a collective. Returns at once unless 128 are under way, then waits for the oldest.
  /// @par Collective  yes: all ranks, the same calls in the same order
  /// @par Cost        two events and NCCL's own launch, which a non-blocking communicator makes
  ///   from a thread that it creates: tens of microseconds of the host's; allocates nothing itself
  /// @throws Error (invalid_argument) for a call this rank can tell is wrong; nothing has happened
  /// @throws Error (communication) if NCCL or CUDA fails, or the group has failed
  Ticket start(Collective const& op) {
    detail::check_arguments(op, rank(), size(), group_name());
    check_sum(op);
    detail::NcclDeparture departure;
    if (!handle_->template start<R::ordered>(op, departure)) return {};
    return Ticket(handle_.group(), departure, rank());
  }

  /// Lets the compute stream go on once the result is in `recv` and `send` may be overwritten; the
  /// host too under Waiting::host.
  /// @throws Error (communication) if NCCL fails or makes no progress for the deadline
  void wait(Ticket& ticket) { ticket.wait(); }

  /// Divides the group: ranks of one color form a new group, ordered by key, then by rank. It
  /// shares this one's fate and compute stream and has staging memory of its own. Destroying it
  /// disturbs nobody: unless it is closed first, NCCL's part is kept until this group ends.
  /// @par Collective  yes; blocks; allocates
  /// @param color  of the group that this rank will be in
  /// @param key    its place among the ranks of that color
  /// @param name   of the group, for messages: "model axis"
  /// @throws Error (invalid_argument) for a negative color
  [[nodiscard]] BasicNccl split(int color, int key, std::string_view name = {}) {
    return BasicNccl(
        detail::NcclConstruction<A>::split(*handle_.group(), color, key, R::ordered, name));
  }

  /// What the group was called when it was split off; empty for the first.
  [[nodiscard]] std::string_view group_name() const noexcept { return handle_->caller().group(); }

  /// Looks after what is under way without blocking; true if nothing is left.
  /// @throws Error (communication) as `wait` does
  bool poll() { return handle_->poll(); }

  /// Throws if the group has ended, so that what was read from the compute stream's memory may be
  /// of no collective that took place. Never blocks; nothing after `close`.
  /// @throws Error (communication) as `wait` does
  void confirm() { handle_->confirm(); }
  /// A word that kernels read: not zero once the group has ended, from before its streams drain.
  [[nodiscard]] std::int64_t const* ended() const noexcept { return handle_->ended(); }

  /// Ends the family because this rank cannot go on. Peers learn of it from NCCL or by their
  /// deadline. True if the family was in order until now.
  bool report_failure(std::string_view reason) { return handle_->report_failure(reason); }

  /// Waits for everything, then finalizes and destroys what it owns. Closing twice is nothing.
  /// @par Collective  yes; blocks
  /// @throws Error (communication) as `wait` does
  void close() { handle_->close(); }

  /// Bytes of device memory that this group holds: staging. What `allocator()` has handed out is
  /// whose it is, and does not count.
  [[nodiscard]] std::uint64_t held() const { return report().staging_bytes; }
  /// What `held()` of such a group will be; for `PlanOptions::communicator_bytes`.
  /// @param options  that the group is made with
  /// @param ranks    of the group, on however many nodes
  [[nodiscard]] static std::uint64_t planned_bytes(nccl::Options const& options,
                                                   int ranks,
                                                   int /*nodes*/) noexcept {
    return R::ordered ? options.staging_bytes
                      : sizeof(detail::NcclFields) * static_cast<std::size_t>(ranks);
  }

  /// What is in use.
  [[nodiscard]] nccl::Report report() const { return handle_->report(); }

  /// Memory from NCCL, registered with this group as the options say.
  [[nodiscard]] Allocator allocator() const noexcept { return Allocator(handle_.group()); }

 private:
  explicit BasicNccl(detail::Handle<Core> handle) noexcept : handle_(std::move(handle)) {}

  /// NCCL adds in the wire's dtype, which is narrower than asked for where they differ in fp64.
  void check_sum(Collective const& op) const {
    if (R::ordered || !detail::is_reduction(op.op)) return;
    if (op.accumulate == op.dtype || op.accumulate == DType::f32) return;
    fail(ErrorKind::invalid_argument,
         {"NCCL cannot add in that dtype; nccl::Ordered can (", detail::describe(op), ")"},
         {.rank = rank(), .operation = std::string(name(op.op)), .bucket = op.bucket});
  }

  detail::Handle<Core> handle_;
};

}  // namespace zero::inline ZERO_NAMESPACE
