/// @file
/// One rank's part in a group: starting collectives, waiting for them, noticing what goes wrong.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/comm/mpi/bodies.hpp"
#include "zero/comm/mpi/ending.hpp"
#include "zero/comm/mpi/exchange.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/lane.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/links.hpp"
#include "zero/comm/mpi/member.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/comm/mpi/native.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/pool.hpp"
#include "zero/comm/mpi/report.hpp"
#include "zero/comm/mpi/route.hpp"
#include "zero/comm/mpi/window.hpp"
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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Takes a collective through its stations: posted, moved, done here, done everywhere.
/// @tparam Base  Member: units that construct no communicator compile nothing of a template
template <class Base>
class Group final : public Base {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Collective over `comm`, which is taken over; `world` are its ranks' numbers in the family. The
  /// caller holds the family's lock.
  /// @param id  the same on all of its ranks, and of no other group of the family
  Group(std::shared_ptr<Family> family,
        MPI_Comm comm,
        std::vector<int> const& world,
        int rank,
        std::shared_ptr<Window> window,
        bool native,
        std::uint64_t id,
        std::string_view name = {})
      : family_(std::move(family)),
        comm_(comm),
        id_(id),
        name_(name),
        window_(std::move(window)),
        peers_(peers(*family_, *window_, world, rank)),
        routing_{&peers_.topology(), native, family_->options.sums},
        flat_because_(routing_.never_chained()),
        links_(std::make_unique<Links>(
            comm, size(), peers_.topology().nodes() == 1, family_->options)),
        exchange_(peers_, *links_, *window_, flights_) {
    if (native) {
      native_ = std::make_unique<NativeSums>(
          comm, family_->blocking.duplicate(comm), size(), family_->options, flights_);
    }
    if (flat_because_.empty()) flat_because_ = "there was no sum yet";
    family_->join(this);
  }
  ~Group() override {
    Lock const lock(family_->mutex);
    family_->leave(this);
    if (family_->blocking.lost()) links_->forsake();
    links_.reset();
  }

  [[nodiscard]] int size() const noexcept override { return peers_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

  std::uint64_t post(Collective const& op) override {
    zero::detail::check_arguments(op, peers_.rank(), size(), name_);
    Lock lock(family_->mutex);
    throw_if_ended(op);
    std::uint64_t const number = flights_.posted();
    if (number >= ring_slots) finish(lock, op, number - ring_slots);
    begin(op);
    family_->advance();
    return number;
  }

  void wait(int /*rank*/, std::uint64_t number) override {
    Lock lock(family_->mutex);
    // What is done has its result, whatever went wrong since.
    if (flights_.done(number)) return;
    Collective const op = flights_.at(number).op;
    throw_if_ended(op);
    finish(lock, op, number);
  }

  void progress() noexcept override {
    Lock const lock(family_->mutex);
    if (flights_.none() && family_->is_sound()) return;
    family_->advance();
  }

  bool advance() override {
    int error = MPI_SUCCESS;
    bool moved = links_->poll(error);
    exchange_.look();
    for (std::uint64_t n = flights_.oldest(); n < flights_.posted() && error == MPI_SUCCESS; ++n) {
      Flight& flight = flights_.at(n);
      if (flight.complete || flight.withdrawn) continue;
      moved |= exchange_.advance(flight, error);
      if (flight.route.by_library && !flight.received) moved |= native_->advance(flight, error);
      moved |= complete(flight);
    }
    flights_.retire();
    if (native_ != nullptr && native_->disagreement() != never) {
      exchange_.disagree({native_->disagreement()});
    }
    if (Exchange::Disagreement const& found = exchange_.disagreement(); found.number != never) {
      family_->end({.cause = Cause::mismatch,
                    .at = {id_, found.number},
                    .rank = found.peer < 0 ? -1 : peers_.world_rank(found.peer),
                    .known = found.known,
                    .call = found.call});
    } else if (error != MPI_SUCCESS) {
      family_->end_by_mpi(error, describe_oldest() + on_group(), {id_, flights_.oldest()});
    }
    if (moved) ++events_;
    return moved;
  }
  [[nodiscard]] bool busy() const noexcept override { return !flights_.none(); }

  ZERO_COLD void abandon(int /*rank*/, std::uint64_t number, bool unwinding) noexcept override {
    Lock const lock(family_->mutex);
    if (flights_.done(number)) return;
    Flight& flight = flights_.at(number);
    flight.withdrawn = true;
    family_->give_up_buffers();
    std::string text = zero::detail::describe(
        zero::detail::Failure{.cause = zero::detail::Failure::Cause::abandoned,
                              .rank = own_number(),
                              .calls = flights_.posted(),
                              .call = flight.op,
                              .group = name_});
    if (unwinding) {
      family_->withdrawn = std::move(text);
    } else if (is_running()) {
      family_->end_by_words(std::move(text), {id_, number});
    }
  }

  ZERO_COLD void leave(int /*rank*/, bool unwinding) noexcept override {
    Lock const lock(family_->mutex);
    if (!is_running()) return;
    // Where a group that was split off is unwound, its rank can still say why in the first one.
    if (!family_->withdrawn.empty() && (is_first() || !unwinding)) {
      family_->end_by_words(std::exchange(family_->withdrawn, {}), {id_, flights_.posted()});
      family_->stay();
      return;
    }
    family_->depart({.cause = Cause::left,
                     .at = {id_, flights_.posted()},
                     .rank = own_number(),
                     .unwinding = unwinding,
                     .calls = flights_.posted()});
  }

  ZERO_COLD bool report(std::string_view reason) override {
    Lock lock(family_->mutex);
    zero::detail::Failure failure{.cause = zero::detail::Failure::Cause::thrown,
                                  .rank = own_number(),
                                  .calls = flights_.posted()};
    if (failure.calls > 0) failure.call = flights_.at(failure.calls - 1).op;
    failure.reason = reason;
    failure.group = name_;
    family_->withdrawn.clear();
    bool const first =
        family_->end_by_words(zero::detail::describe(failure), {id_, flights_.posted()});
    family_->stay();
    return first;
  }

  [[nodiscard]] ZERO_COLD zero::detail::Handle<Member> split(std::vector<int> const& members,
                                                             int rank,
                                                             std::string_view name) override {
    Lock const lock(family_->mutex);
    Blocking& blocking = family_->blocking;
    blocking.begin("split");
    int const first = *std::min_element(members.begin(), members.end());
    MPI_Comm const part = blocking.divide(comm_, first, rank);
    std::vector<int> world;
    for (int const member : members) world.push_back(peers_.world_rank(member));
    auto window = std::make_shared<Window>();
    if (family_->window->shared()) {
      MPI_Comm const node = blocking.divide(part, family_->node_of(family_->rank()), rank);
      window = family_->make_window(part, static_cast<int>(members.size()), node, 0);
    }
    // Of one group no two calls have one number, and of one split no two parts have one rank.
    zero::detail::Hash id;
    id.add(id_);
    id.add(flights_.posted());
    id.add(static_cast<std::uint64_t>(peers_.world_rank(first)));
    return {
        std::make_shared<Group>(
            family_, part, world, rank, std::move(window), native_ != nullptr, id.value(), name),
        rank};
  }

  ZERO_COLD void check_closable() override {
    Lock const lock(family_->mutex);
    zero::ErrorContext const context{.rank = own_number(), .operation = "close"};
    bool const first = is_first();
    if (first && family_->pool != nullptr && family_->pool->pieces() > 0) {
      fail(ErrorKind::invalid_argument,
           {"close() while ", family_->pool->pieces(), " blocks of the shared window are in use"},
           context);
    }
    if (first && family_->members() > 1) {
      fail(ErrorKind::invalid_argument,
           {"close() of the group constructed first while ",
            family_->members() - 1,
            " groups split from it are open"},
           context);
    }
    if (!flights_.none()) {
      fail(ErrorKind::invalid_argument,
           {"close() while [", describe_oldest(), "] is under way: wait for it before"},
           context);
    }
  }

  ZERO_COLD void close() override {
    Lock const lock(family_->mutex);
    family_->blocking.begin("close");
    // What peers say to have taken would reach a later group that MPI takes for this one.
    family_->blocking.wait("the last messages", [&] {
      int error = MPI_SUCCESS;
      links_->poll(error);
      check(error, "MPI_Testsome");
      check(links_->settle(), "MPI_Isend");
      return links_->is_settled();
    });
    links_->cancel();
    family_->blocking.wait("the end of receives", [&] { return links_->is_idle(); });
    family_->leave(this);
    if (native_ != nullptr) native_->close(family_->blocking);
    if (window_ != family_->window) window_->close(family_->blocking);
    family_->blocking.release(comm_);
  }

  ZERO_COLD void close_family() override {
    if (is_first()) family_->close();
  }

  [[nodiscard]] SharedAllocator allocator() const override {
    return SharedAllocator(family_->pool);
  }

  [[nodiscard]] ZERO_COLD Transport transport() override {
    Lock const lock(family_->mutex);
    Transport result;
    result.library = library_version();
    Topology const& topology = peers_.topology();
    result.nodes = static_cast<int>(topology.nodes());
    result.local_ranks = static_cast<int>(peers_.near().size());
    result.window = window_->shared();
    result.always_deadline = family_->blocking.always_ends();
    result.progress_thread = family_->options.progress_thread != ProgressThread::off;
    if (family_->pool != nullptr) {
      result.shared_bytes = family_->pool->bytes();
      result.shared_left = family_->pool->left();
    }
    result.chunk_bytes = head_bytes + links_->chunk_bytes();
    result.direct_bytes = exchange_.moved().direct;
    result.exchanged_bytes = exchange_.moved().exchanged;
    result.node_sum_bytes = exchange_.moved().node_sums;
    result.native_bytes = native_ != nullptr ? native_->bytes() : 0;
    result.flat_because = flat_because_;
    result.control_messages = links_->credits_sent();
    result.data_messages = links_->sent();
    result.sent_bytes = links_->sent_bytes();
    return result;
  }

  [[nodiscard]] std::uint64_t held() const noexcept override {
    return window_->held() + links_->held() + (native_ != nullptr ? native_->held() : 0);
  }

  [[nodiscard]] std::uint64_t id() const noexcept override { return id_; }
  ZERO_COLD void tell_calls(Calls& calls) override {
    calls.group = id_;
    calls.made = flights_.posted();
    copy_text(name_, calls.name);
    for (auto n = calls.first(); n < calls.made; ++n) calls.at(n) = flights_.at(n).head.call;
  }
  [[nodiscard]] ZERO_COLD double still_s() const override {
    return std::chrono::duration<double>(Clock::now() - moved_).count();
  }
  ZERO_COLD void tell_waiting(Report& report) override {
    if (flights_.none()) return;
    Flight const& flight = flights_.at(flights_.oldest());
    report.waits = true;
    report.at = {id_, flight.number};
    report.native = flight.route.by_library && !flight.received;
    exchange_.waits_for(flight, [&](int peer) { report.wait_on(peers_.world_rank(peer)); });
    for (int peer = 0; report.native && peer < size(); ++peer) {
      if (peer != peers_.rank()) report.wait_on(peers_.world_rank(peer));
    }
  }

 private:
  /// True for the group that the family was constructed with.
  [[nodiscard]] bool is_first() const noexcept { return window_ == family_->window; }

  /// Where a buffer lies in this rank's pool.
  [[nodiscard]] std::int64_t place_of(void const* buffer, std::size_t bytes) const noexcept {
    if (family_->pool == nullptr || buffer == nullptr) return outside;
    auto const start = reinterpret_cast<std::uintptr_t>(family_->pool->base());
    auto const address = reinterpret_cast<std::uintptr_t>(buffer);
    if (address < start || address + bytes > start + family_->pool->bytes()) return outside;
    return static_cast<std::int64_t>(address - start);
  }

  /// Tells near ranks of this rank's next call, and where its buffers are. Far ones learn of it
  /// with the first data.
  void begin(Collective const& op) {
    Flight& flight = flights_.begin(op, routing_, peers_.rank(), links_->chunk_bytes());
    if (zero::detail::is_reduction(op.op) && !is_small_sum(op)) {
      flat_because_ = routing_.why_flat(op);
    }
    if (op.bucket == zero::detail::close_bucket) {
      // The last call meets all with whom this rank ever exchanged anything.
      for (int peer = 0; peer < size(); ++peer) {
        if (peers_.is_near(peer)) continue;
        flight.schedule.add_empty(peer, links_->is_open_to(peer), links_->is_open_from(peer));
      }
    }
    Slot& slot = peers_.own().slot(flight.number);
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
  /// all near peers have made the same call and no peer reads this rank's memory any more, if what
  /// this rank has read of theirs is good.
  bool complete(Flight& flight) {
    if (!flight.received || flight.tasks_left > 0 || flight.near_left > 0) return false;
    bool const moved = !flight.told;
    if (moved) {
      peers_.own().slot(flight.number).done.store(flight.number + 1, std::memory_order_release);
      flight.told = true;
    }
    if (!links_->has_delivered(flight.number)) return moved;
    for (int const peer : peers_.near()) {
      if (peers_.reads_on(peer, flight.number)) return moved;
    }
    if (!peers_.board().is_sound()) return moved;
    flight.complete = true;
    return true;
  }

  /// Works on everything until a collective is done; begins to end when nothing of this group moves
  /// for the deadline, whatever other groups do meanwhile. Something is under way.
  void finish(Lock& lock, Collective const& op, std::uint64_t number) {
    Backoff backoff;
    std::uint64_t events = events_;
    auto const patience = family_->patience();
    moved_ = Clock::now();
    Family::Waiting const waiting = family_->wait_in(this);
    while (!flights_.done(number)) {
      family_->advance();
      throw_if_ended(op);
      if (flights_.done(number)) return;
      if (events_ != events) {
        events = events_;
        moved_ = Clock::now();
        backoff.reset();
        continue;
      }
      if (family_->is_sound() && !family_->departures().empty()) look_for_departures();
      if (Clock::now() - moved_ > patience) {
        family_->end({.cause = Cause::late, .at = {id_, flights_.oldest()}});
      }
      lock.unlock();
      backoff.pause();
      lock.lock();
    }
  }
  /// Who waits for a rank that has left will wait for ever. One that left while an exception was on
  /// its way is given time to say why.
  ZERO_COLD void look_for_departures() {
    std::uint64_t const oldest = flights_.oldest();
    Finding const* gone = nullptr;
    exchange_.waits_for(flights_.at(oldest), [&](int peer) {
      for (Finding const& one : family_->departures()) {
        bool const misses = one.at.group == id_ && one.rank == peers_.world_rank(peer);
        if (!misses || one.calls > oldest) continue;
        if (gone == nullptr || one.rank < gone->rank) gone = &one;
      }
    });
    if (gone == nullptr) return;
    auto const now = Clock::now();
    if (missed_ == Clock::time_point{}) missed_ = now;
    std::chrono::duration<double> const since = now - missed_;
    if (gone->unwinding && since.count() < window_s(true, 0)) return;
    Finding found = *gone;
    found.at.number = oldest;
    family_->end(found);
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
    for (int const peer : result.near()) {
      int const in_family = shared ? family.node_rank(result.world_rank(peer)) : 0;
      result.see(peer, window.control(place++), shared ? family.window->pool(in_family) : nullptr);
    }
    return result;
  }
  [[nodiscard]] int own_number() const noexcept { return peers_.world_rank(peers_.rank()); }
  [[nodiscard]] std::string on_group() const { return zero::detail::on_group(name_); }
  [[nodiscard]] ZERO_COLD std::string describe_oldest() {
    return flights_.none() ? "a group"
                           : zero::detail::describe_call(flights_.at(flights_.oldest()).op);
  }

  void throw_if_ended(Collective const& op) {
    if (!family_->withdrawn.empty()) {
      family_->end_by_words(std::exchange(family_->withdrawn, {}), {id_, flights_.oldest()});
    }
    if (!family_->has_ended()) return;
    fail(ErrorKind::communication,
         family_->sentence(),
         {.rank = own_number(),
          .operation = zero::detail::operation_name(op),
          .bucket = op.bucket,
          .group = name_});
  }

  std::shared_ptr<Family> family_;
  MPI_Comm comm_;
  std::uint64_t id_;
  std::string name_;
  std::shared_ptr<Window> window_;
  Peers peers_;
  Routing routing_;
  std::string_view flat_because_;
  std::unique_ptr<Links> links_;
  Flights flights_;
  Exchange exchange_;
  std::unique_ptr<NativeSums> native_;  ///< null if the library adds everything itself
  Clock::time_point moved_{};           ///< when anything moved last, or a wait began
  Clock::time_point missed_{};          ///< when this rank first waited for one that has left
  std::uint64_t events_ = 0;  ///< counts what moved, so that a wait sees other threads' progress
};

ZERO_MPI_BODY zero::detail::Handle<Member> first_member(MPI_Comm comm,
                                                        Options const& options,
                                                        bool native) {
  require_usable(comm, options);
  auto const family = std::make_shared<Family>(comm, options, native);
  std::lock_guard const lock(family->mutex);
  std::vector<int> world;
  for (int rank = 0; rank < family->size(); ++rank) world.push_back(rank);
  return {std::make_shared<Group<Member>>(
              family, family->duplicate(), world, family->rank(), family->window, native, 0),
          family->rank()};
}

ZERO_MPI_BODY std::uint64_t planned_bytes(Options const& options,
                                          int ranks,
                                          int nodes,
                                          bool native) {
  std::size_t const chunk = chunk_bytes(options.exchange_bytes, options.message_bytes, ranks);
  bool const near = options.shared_memory && nodes == 1;
  return Window::planned_bytes(near ? ranks : 1, chunk) +
         Links::planned_bytes(near ? 1 : ranks, chunk) +
         static_cast<std::size_t>(ranks) * sizeof(Lane) +
         (native ? NativeReduction::planned_bytes(options, ranks) : 0);
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
