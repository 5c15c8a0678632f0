/// @file
/// Threads as ranks over device memory, on whatever runtime.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"
#include "zero/comm/device_threads/device_engine.hpp"
#include "zero/comm/device_threads/device_meeting.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/comm/shared/ticket.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/device/turns.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// One rank of a group of threads that work on device memory; every thread holds a handle of its
/// own. `InProcessCuda` is this over the CUDA runtime.
///
/// Peers' buffers are read where they are: a gather or a sum is one kernel per device that reads
/// all ranks' buffers, and a sum adds in rank order, so that results are bit-identical to those of
/// InProcess, but for which NaN a sum is. Transfers have streams of their own and overlap what the
/// trainer enqueues between `start` and `wait`. No kernel ever waits for another.
///
/// `start` and `wait` enqueue: a thread blocks in `wait` until its peers' threads have started the
/// collective, and never for a device. The result is there, and `send` may be written again, for
/// what is enqueued on the rank's stream from then on. The calls that start a collective are made
/// by the last rank to arrive, for all of them. Where ranks do not outnumber the processors, a
/// thread that blocks looks for its peers for 20 µs before it sleeps.
///
/// Steps can be captured in a CUDA graph. A group of one enqueues on the trainer's stream only. In
/// a larger group the streams of all ranks are captured together: one begins, the others join it by
/// an event, all ranks take their step, their streams come back to the first by events, and that
/// ends the capture. The graph is then a step of all ranks; it is launched on the first stream,
/// once that has waited for what is in the others. CUDA does not promise that threads may add to a
/// capture at once: while the rank that captures holds a `capture()`, all calls of the library take
/// turns, and the trainer's own kernels are launched in a `capture_turn()`. A collective that is
/// captured without a `capture()` is refused.
///
/// Ranks that disagree about a collective, that throw, leave, or arrive too late end the whole
/// family of groups, as in InProcess, and so does a call of the runtime that fails. A device that
/// hangs is not noticed here.
/// @par Threads  a handle belongs to one thread at a time; the group itself is shared
template <detail::DeviceApi Api>
class DeviceGroup {
  using Engine = detail::DeviceEngine<Api>;
  using Meeting = detail::DeviceMeeting<Engine>;

 public:
  using Space = typename Api::Space;  ///< a rank's device and its trainer's stream

  /// Settings of a whole family: of a group and of those split from it.
  struct Options {
    double deadline_s = 600;  ///< seconds after which a rank that does not arrive is given up on
  };

  static constexpr bool adds_squares = true;  ///< on the device that adds the elements

  /// The buffers of so many ranks fit into the parameters of a kernel.
  static constexpr int max_ranks = Api::max_ranks;

  /// A collective under way. Destroying it unfinished withdraws this rank's buffers and ends the
  /// group, unless all ranks have started it; what is enqueued on the rank's stream from then on
  /// may overwrite them.
  using Ticket = detail::Ticket<Meeting>;

  /// Handles of a new group, to be moved to one thread each. Not collective.
  /// @param spaces   one per rank: several ranks may share a device, each has a stream of its own
  /// @param options  the deadline of every wait
  /// @param api      the device runtime
  /// @throws Error (invalid_argument) if there are not 1 to max_ranks ranks or the deadline not > 0
  /// @throws Error (resource) if the runtime refuses, or two devices cannot reach one another
  [[nodiscard]] static std::vector<DeviceGroup> group(std::vector<Space> spaces,
                                                      Options options,
                                                      Api api = {}) {
    auto const ranks = static_cast<int>(std::min<std::size_t>(spaces.size(), max_ranks + 1));
    if (ranks < 1 || ranks > max_ranks) {
      fail(ErrorKind::invalid_argument,
           {"a group over devices has 1 to ", max_ranks, " ranks, not ", spaces.size()});
    }
    if (!detail::is_deadline(options.deadline_s)) {
      fail(ErrorKind::invalid_argument, "the deadline of a group is not in (0, 1e9) s");
    }
    for (Space const& own : spaces) {
      for (Space const& peer : spaces) {
        if (char const* const problem = api.connect(own, peer)) fail(ErrorKind::resource, problem);
      }
    }
    auto family = std::make_shared<typename Meeting::Family>();
    family->deadline = std::chrono::duration<double>(options.deadline_s);
    family->looks = static_cast<unsigned>(ranks) <= std::thread::hardware_concurrency();
    Engine engine(std::move(api), spaces, std::make_shared<device::Turns>());
    if (char const* const problem = engine.open(detail::ring_slots)) {
      fail(ErrorKind::resource, problem);
    }
    std::vector<int> numbers;
    for (int rank = 0; rank < ranks; ++rank) numbers.push_back(rank);
    auto const shared =
        std::make_shared<Meeting>(std::move(family), std::move(numbers), std::move(engine));
    std::vector<DeviceGroup> handles;
    handles.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) handles.push_back(DeviceGroup({shared, rank}));
    return handles;
  }

  /// @overload
  [[nodiscard]] static std::vector<DeviceGroup> group(std::vector<Space> spaces) {
    return group(std::move(spaces), Options{});
  }

  /// Takes over the rank's place in the group; `other` may only be destroyed or assigned to.
  DeviceGroup(DeviceGroup&& other) noexcept = default;
  /// Leaves the present group as in destruction, then takes over the place of `other`.
  DeviceGroup& operator=(DeviceGroup&& other) noexcept = default;
  /// Leaves the group: peers that wait for this rank, now or later, get an error that names it.
  ~DeviceGroup() = default;

  /// This rank's number in the group, from 0.
  [[nodiscard]] int rank() const noexcept { return handle_.rank(); }
  /// How many ranks the group has.
  [[nodiscard]] int size() const noexcept { return handle_.size(); }
  /// This rank's device and stream.
  [[nodiscard]] Space space() const { return handle_->engine().space(rank()); }

  /// For the rank that begins a capture in which the streams of several ranks join: from before the
  /// first of them does until after it has ended. All ranks' enqueues take turns while the result
  /// lives, and cost a branch otherwise. Not collective.
  [[nodiscard]] device::Turns::Capture capture() const {
    return device::Turns::Capture(handle_->engine().turns());
  }
  /// For what a trainer enqueues itself: this thread's turn while the result lives, if there is a
  /// `capture()`, else nothing. Functions of `space()` may be called meanwhile, no others of the
  /// library, since they may wait for ranks that wait for this turn.
  [[nodiscard]] device::Turns::Turn capture_turn() const {
    return handle_->engine().turns()->take();
  }

  /// Starts a collective on what is in the buffers when the rank's stream comes here. Returns at
  /// once unless 64 are under way, then waits until all ranks have started the oldest.
  ///
  /// @par Collective  yes: all ranks, the same calls in the same order
  /// @par Cost        allocates nothing; the last rank to arrive enqueues for all
  /// @throws Error (invalid_argument) for a call no peer could match, such as a null buffer; and
  ///   where it would be captured with other ranks' streams while nobody holds a `capture()`
  /// @throws Error (communication) if the ranks disagree or one of them has failed
  Ticket start(Collective const& op) {
    detail::check_arguments(op, rank(), size(), group_name());
    refuse_capture_without_turns();
    return Ticket(handle_.group(), handle_->post(rank(), op), rank());
  }

  /// Blocks until all ranks have started the collective; what is enqueued on the rank's stream from
  /// then on comes after it. In any order.
  /// @throws Error (communication) if a rank disagrees, throws, leaves or misses the deadline
  void wait(Ticket& ticket) { ticket.wait(); }

  /// Divides the group: ranks of one color form a new group, ordered by key, then by rank.
  ///
  /// The new group shares the fate of this one: an error in either ends both.
  /// @param color  of the group that this rank will be in
  /// @param key    its place among the ranks of that color
  /// @param name   of the group, for messages: "model axis"
  /// @par Collective  yes; blocks; allocates
  /// @throws Error (communication) as `wait` does
  [[nodiscard]] DeviceGroup split(int color, int key, std::string_view name = {}) {
    return DeviceGroup(handle_->split(
        rank(), {color, key}, [&](std::vector<int> const& members, std::vector<int> numbers) {
          return part(members, std::move(numbers), name);
        }));
  }

  /// What the group was called when it was split off; empty for the first.
  [[nodiscard]] std::string_view group_name() const noexcept { return handle_->name(); }

  /// Ends the whole family of groups because this rank cannot go on: every peer's present or next
  /// call throws Error (communication) with this reason in it.
  /// @return true if the family was in order until now, so that this is the original failure
  bool report_failure(std::string_view reason) { return handle_->report(rank(), reason); }

 private:
  explicit DeviceGroup(detail::Handle<Meeting> handle) noexcept : handle_(std::move(handle)) {}

  /// Nobody would see that threads add to a capture at once. What is captured with a collective of
  /// several ranks is captured with the streams of all.
  void refuse_capture_without_turns() const {
    if constexpr (RecordingSpace<Space>) {
      auto const& engine = handle_->engine();
      if (size() == 1 || engine.turns()->captured() || !engine.space(rank()).capturing()) return;
      fail(ErrorKind::invalid_argument,
           "ranks are captured together, but do not take turns: the rank that begins the capture "
           "holds comm.capture() before the first stream joins it");
    }
  }

  /// The group of `members`; null once the family has ended because the runtime refuses.
  [[nodiscard]] std::shared_ptr<Meeting> part(std::vector<int> const& members,
                                              std::vector<int> numbers,
                                              std::string_view name) {
    std::vector<Space> spaces;
    for (int const member : members) spaces.push_back(handle_->engine().space(member));
    Engine engine(handle_->engine().api(), spaces, handle_->engine().turns());
    if (char const* const problem = engine.open(detail::ring_slots)) {
      static_cast<void>(report_failure(problem));
      return nullptr;
    }
    return std::make_shared<Meeting>(
        handle_->family(), std::move(numbers), std::move(engine), name);
  }

  detail::Handle<Meeting> handle_;
};

}  // namespace zero::inline ZERO_NAMESPACE
