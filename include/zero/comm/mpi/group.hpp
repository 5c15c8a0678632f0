/// @file
/// One rank's part in a group: starting collectives, and waiting for them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/comm/mpi/bodies.hpp"
#include "zero/comm/mpi/exchange.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/lane.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/links.hpp"
#include "zero/comm/mpi/member.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/pool.hpp"
#include "zero/comm/mpi/report.hpp"
#include "zero/comm/mpi/route.hpp"
#include "zero/comm/mpi/window.hpp"
#include "zero/comm/mpi/witness.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/kernel/copy.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Takes a collective through its stations: posted, moved, done here, done everywhere.
/// @tparam Base  GroupMember: units that construct no communicator compile nothing of a template
template <class Base>
class Group final : public Base, public std::enable_shared_from_this<Group<Base>> {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Collective over `comm`, which is taken over; `world` are its ranks' numbers in the family. The
  /// caller holds the family's lock.
  Group(std::shared_ptr<Family> family,
        MPI_Comm comm,
        std::vector<int> const& world,
        int rank,
        std::shared_ptr<Window> window,
        Origin const& origin,
        std::string_view name = {})
      : family_(std::move(family)),
        comm_(comm),
        window_(std::move(window)),
        origin_(origin),
        peers_(peers(*family_, *window_, world, rank)),
        routing_(&peers_.topology(), family_->options.sums),
        flat_because_(routing_.never_chained()),
        links_(std::make_unique<Links>(
            comm, size(), peers_.topology().nodes() == 1, family_->options, counts_)),
        exchange_(peers_, *links_, *window_, flights_, counts_),
        witness_(*family_, peers_, flights_, exchange_, origin.id, name) {
    if (flat_because_.empty()) flat_because_ = "there was no sum yet";
    family_->join(this);
  }
  ~Group() override {
    Lock const lock(family_->mutex);
    family_->leave(this);
    links_.reset();
  }

  [[nodiscard]] int size() const noexcept override { return peers_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return witness_.name(); }
  [[nodiscard]] std::uint64_t id() const noexcept override { return witness_.id(); }

  std::uint64_t post(Collective const& op) override {
    zero::detail::check_arguments(op, peers_.rank(), size(), name());
    Lock lock(family_->mutex);
    witness_.throw_if_ended(op);
    std::uint64_t const number = flights_.posted();
    if (number >= ring_slots) finish(lock, op, number - ring_slots);
    begin(op);
    family_->advance();
    return number;
  }

  void wait(int /*rank*/, std::uint64_t number) override {
    Lock lock(family_->mutex);
    // What is done has its result, whatever went wrong since.
    if (!flights_.done(number)) finish(lock, flights_.at(number).op, number);
  }

  void progress() noexcept override {
    Lock const lock(family_->mutex);
    if (busy() || !family_->is_sound()) family_->advance();
  }

  bool advance() override {
    bool moved = links_->poll();
    exchange_.look();
    for (std::uint64_t n = flights_.oldest(); n < flights_.posted() && error() == MPI_SUCCESS;
         ++n) {
      CallInFlight& flight = flights_.at(n);
      if (flight.complete || flight.withdrawn) continue;
      moved |= exchange_.advance(flight);
      moved |= complete(flight);
    }
    flights_.retire();
    witness_.judge(error());
    if (moved) ++events_;
    return moved;
  }
  [[nodiscard]] bool busy() const noexcept override { return !flights_.none(); }

  ZERO_COLD void abandon(int /*rank*/, std::uint64_t number, bool unwinding) noexcept override {
    Lock const lock(family_->mutex);
    if (!flights_.done(number)) witness_.abandon(number, unwinding);
  }
  ZERO_COLD void leave(int /*rank*/, bool unwinding) noexcept override {
    Lock lock(family_->mutex);
    witness_.leave(is_first(), unwinding);
    auto const left = origin_.left.lock();
    if (left == nullptr || !is_running() || !family_->is_sound() || busy()) return;
    family_->leave(this);
    lock.unlock();
    left->add({origin_.number, is_first() ? flights_.posted() : 0}, this->shared_from_this());
  }
  ZERO_COLD bool report(std::string_view reason) override {
    Lock const lock(family_->mutex);
    return witness_.report(reason);
  }
  ZERO_COLD void tell_calls(Calls& calls) override { witness_.tell_calls(calls); }
  ZERO_COLD void tell_waiting(RankReport& report) override { witness_.tell_waiting(report); }
  [[nodiscard]] ZERO_COLD double still_s() const override {
    return std::chrono::duration<double>(Clock::now() - moved_).count();
  }

  [[nodiscard]] ZERO_COLD zero::detail::Handle<GroupMember> split(std::vector<int> const& members,
                                                                  int rank,
                                                                  std::string_view name) override {
    family_->close_left(*parts_, "split", family_->comm(), comm_, size());
    Lock const lock(family_->mutex);
    int const first = *std::min_element(members.begin(), members.end());
    MPI_Comm const part = family_->blocking.divide(comm_, first, rank);
    std::vector<int> world;
    for (int const member : members) world.push_back(peers_.world_rank(member));
    auto window = std::make_shared<Window>();
    if (family_->window->shared()) {
      MPI_Comm const node = family_->blocking.divide(part, family_->node_of(family_->rank()), rank);
      window = family_->make_window(part, static_cast<int>(members.size()), node, 0);
    }
    // Of one group no two calls have one number, and of one split no two parts have one rank.
    zero::detail::Hash part_id;
    part_id.add(id());
    part_id.add(flights_.posted());
    part_id.add(static_cast<std::uint64_t>(peers_.world_rank(first)));
    Origin const origin{parts_, flights_.posted(), part_id.value()};
    return {std::make_shared<Group>(family_, part, world, rank, std::move(window), origin, name),
            rank};
  }

  [[nodiscard]] ZERO_COLD bool is_unused() override {
    Lock const lock(family_->mutex);
    bool const held = pieces() > 0 || family_->pool.use_count() > 1 || family_->members() > 0;
    return family_->is_sound() && !busy() && !(held && is_first());
  }
  ZERO_COLD void check_closable() override {
    Lock const lock(family_->mutex);
    auto const refuse = [&](Message const& why) {
      fail(ErrorKind::invalid_argument, why, {.rank = witness_.own_number(), .operation = "close"});
    };
    if (is_first() && pieces() > 0) {
      refuse({"close() while ", pieces(), " blocks of the shared window are in use"});
    }
    if (is_first() && family_->members() > 1) {
      refuse({"close() of the group constructed first while ",
              family_->members() - 1,
              " groups split from it are open"});
    }
    if (busy()) {
      refuse({"close() while [", witness_.describe_oldest(), "] is under way: wait for it before"});
    }
  }

  ZERO_COLD void close() override {
    Lock lock(family_->mutex);
    family_->join(this);  // once more, if it had left
    lock.unlock();
    Collective const last{
        .op = Op::all_gather, .dtype = DType::u8, .bucket = zero::detail::close_bucket};
    wait(peers_.rank(), post(last));
    family_->close_left(*parts_, "close", family_->comm(), comm_, size());
    lock.lock();
    // What peers say to have taken would reach a later group that MPI takes for this one.
    family_->blocking.wait("the last messages", comm_, [&] {
      links_->poll();
      bool const settled = links_->settle();
      check(links_->error(), "MPI_Testsome");
      return settled;
    });
    links_->cancel();
    family_->blocking.wait("the end of receives", comm_, [&] { return links_->is_idle(); });
    family_->blocking.meet("MPI_Comm_free", comm_);
    family_->leave(this);
    if (!is_first()) window_->close();
    Blocking::release(comm_);
  }
  ZERO_COLD void close_family() override {
    if (is_first()) family_->close();
  }

  [[nodiscard]] SharedAllocator allocator() const override {
    return SharedAllocator(family_->pool);
  }

  [[nodiscard]] ZERO_COLD Transport transport() override {
    Lock const lock(family_->mutex);
    Transport result = counts_;
    result.library = library_version();
    result.nodes = static_cast<int>(peers_.topology().nodes());
    result.local_ranks = static_cast<int>(peers_.local_ranks().size());
    result.window = window_->shared();
    result.progress_thread = family_->options.progress_thread != ProgressThread::off;
    if (family_->pool != nullptr) {
      result.shared_bytes = family_->pool->bytes();
      result.shared_left = family_->pool->left();
    }
    result.chunk_bytes = head_bytes + links_->chunk_bytes();
    result.flat_because = flat_because_;
    return result;
  }

  [[nodiscard]] std::uint64_t held() const noexcept override {
    return window_->held() + links_->held();
  }

 private:
  /// True for the group that the family was constructed with.
  [[nodiscard]] bool is_first() const noexcept { return window_ == family_->window; }
  /// MPI's code, unless all calls have succeeded so far.
  [[nodiscard]] int error() const noexcept { return links_->error(); }
  /// Blocks of the pool that are in use.
  [[nodiscard]] std::size_t pieces() const {
    return family_->pool == nullptr ? 0 : family_->pool->pieces();
  }

  /// Where a buffer lies in this rank's pool.
  [[nodiscard]] std::int64_t place_of(void const* buffer, std::size_t bytes) const noexcept {
    return family_->pool != nullptr ? family_->pool->place_of(buffer, bytes) : outside;
  }

  /// Tells local ranks of this rank's next call, and where its buffers are. Remote ones learn of it
  /// with the first data.
  void begin(Collective const& op) {
    CallInFlight& flight = flights_.begin(op, routing_, peers_.rank(), links_->chunk_bytes());
    if (zero::detail::is_reduction(op.op) && !is_small_sum(op)) {
      flat_because_ = flight.route.flat_because;
    }
    // The last call meets all with whom this rank ever exchanged anything.
    for (int peer = 0; op.bucket == zero::detail::close_bucket && peer < size(); ++peer) {
      if (peers_.is_local(peer)) continue;
      flight.schedule.add_empty(peer, links_->is_open_to(peer), links_->is_open_from(peer));
    }
    CallSlot& slot = peers_.own().slot(flight.number);
    std::size_t const element = size_of(op.dtype);
    std::size_t const send_bytes = zero::detail::send_count(op, size()) * element;
    bool const sends = op.op != Op::broadcast || peers_.rank() == op.root;
    slot.send_at = sends ? place_of(op.send, send_bytes) : outside;
    if (sends && send_bytes <= inline_bytes) {
      if (send_bytes > 0) std::memcpy(slot.copy, op.send, send_bytes);
      slot.send_at = inlined;
    }
    slot.call = flight.head.call;
    slot.recv_at = place_of(op.recv, zero::detail::receive_count(op, size()) * element);
    flight.send = slot.send_at == inlined ? slot.copy : static_cast<std::byte const*>(op.send);
    kernel::publish_streaming_stores();
    peers_.own().posted.store(flight.number + 1, std::memory_order_release);
    exchange_.begin(flight);
  }

  /// Done here once nothing is to come or to go; done altogether once MPI has delivered what went,
  /// all local peers have made the same call and no peer reads this rank's memory any more, if what
  /// this rank has read of theirs is good.
  bool complete(CallInFlight& flight) {
    if (!flight.received || flight.tasks_left > 0 || flight.local_left > 0) return false;
    bool const moved = !flight.announced;
    if (moved) {
      peers_.own().slot(flight.number).done.store(flight.number + 1, std::memory_order_release);
      flight.announced = true;
    }
    if (!links_->has_delivered(flight.number)) return moved;
    for (int const peer : peers_.local_ranks()) {
      if (peers_.reads_on(peer, flight.number)) return moved;
    }
    if (!peers_.node_control().is_sound()) return moved;
    flight.complete = true;
    return true;
  }

  /// Works on everything until a collective is done; begins to end when nothing of this group moves
  /// for the deadline, whatever other groups do meanwhile. Something is under way.
  /// @param op  what the caller is told about
  void finish(Lock& lock, Collective const& op, std::uint64_t number) {
    auto const patience = family_->patience();
    Family::GroupWait const waiting = family_->wait_in(this);
    Backoff backoff;
    moved_ = Clock::now();
    for (std::uint64_t events = events_; !flights_.done(number);) {
      witness_.throw_if_ended(op);
      family_->advance();
      if (events_ != events) {
        events = events_;
        moved_ = Clock::now();
        backoff.reset();
        continue;
      }
      witness_.look_for_departures();
      if (Clock::now() - moved_ > patience) witness_.end_late();
      lock.unlock();
      backoff.pause();
      lock.lock();
    }
  }

  [[nodiscard]] static Peers peers(Family const& family,
                                   Window const& window,
                                   std::vector<int> const& world,
                                   int rank) {
    std::vector<int> labels;
    for (int const number : world) labels.push_back(family.node_of(number));
    Peers result(rank, world, Topology(labels), family.window->control(0));
    int place = 0;
    bool const shared = family.window->shared();
    for (int const peer : result.local_ranks()) {
      int const in_family = shared ? family.node_rank(result.world_rank(peer)) : 0;
      result.see(peer, window.control(place++), shared ? family.window->pool(in_family) : nullptr);
    }
    return result;
  }

  std::shared_ptr<Family> family_;
  MPI_Comm comm_;
  std::shared_ptr<Window> window_;
  Origin origin_;
  std::shared_ptr<LeftBehind> parts_ = std::make_shared<LeftBehind>();
  Peers peers_;
  Routing routing_;
  std::string_view flat_because_;
  Transport counts_{};
  std::unique_ptr<Links> links_;
  Flights flights_;
  Exchange exchange_;
  Witness witness_;
  Clock::time_point moved_{};  ///< when anything moved last, or a wait began
  std::uint64_t events_ = 0;   ///< counts what moved, so that a wait sees other threads' progress
};

ZERO_MPI_BODY zero::detail::Handle<GroupMember> first_member(MPI_Comm comm,
                                                             Options const& options) {
  require_usable(comm, options);
  auto const family = std::make_shared<Family>(comm, options);
  std::lock_guard const lock(family->mutex);
  std::vector<int> world;
  for (int rank = 0; rank < family->size(); ++rank) world.push_back(rank);
  return {std::make_shared<Group<GroupMember>>(
              family, family->duplicate(), world, family->rank(), family->window, family->origin),
          family->rank()};
}

ZERO_MPI_BODY std::uint64_t planned_bytes(Options const& options, int ranks, int nodes) {
  std::size_t const chunk = chunk_bytes(options.exchange_bytes, options.message_bytes, ranks);
  bool const local = options.shared_memory && nodes == 1;
  return Window::planned_bytes(local ? ranks : 1, chunk) +
         Links::planned_bytes(local ? 1 : ranks, chunk) +
         static_cast<std::size_t>(ranks) * sizeof(Lane);
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
