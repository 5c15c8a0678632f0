/// @file
/// One rank's part in a group: starting collectives, waiting for them, noticing what goes wrong.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/blame.hpp"
#include "zero/comm/mpi/channels.hpp"
#include "zero/comm/mpi/dissemination.hpp"
#include "zero/comm/mpi/exchange.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/lane.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/member.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/comm/mpi/native.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/patience.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/pool.hpp"
#include "zero/comm/mpi/roll.hpp"
#include "zero/comm/mpi/sources.hpp"
#include "zero/comm/mpi/window.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/kernel/copy.hpp"

#include <algorithm>
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

/// Takes a collective through its stations: announced, compared, moved, done here, done everywhere.
/// @tparam Base  Member: units that construct no communicator compile nothing of a template
template <class Base>
class Group final : public Base {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Collective over `comm`, which is taken over; `world` are its ranks' numbers in the family. The
  /// caller holds the family's lock.
  Group(std::shared_ptr<Family> family,
        MPI_Comm comm,
        std::vector<int> const& world,
        int rank,
        std::shared_ptr<Window> window,
        bool native,
        std::string_view name = {})
      : family_(std::move(family)),
        comm_(comm),
        native_(native),
        name_(name),
        window_(std::move(window)),
        peers_(peers(*family_, *window_, world, rank)),
        channels_(std::make_unique<Channels>(comm, peers_, *window_, family_->options)),
        roll_(comm, peers_),
        sources_(peers_, roll_, native, family_->options.sums),
        flights_(peers_.size()),
        exchange_(peers_,
                  sources_,
                  *channels_,
                  flights_,
                  family_->board(),
                  native ? std::make_unique<NativeReduction>(comm, peers_.size(), family_->options)
                         : nullptr),
        blame_(peers_, roll_, exchange_, flights_) {
    family_->join(this);
  }
  ~Group() override {
    Lock const lock(family_->mutex);
    family_->leave(this);
    bool const lost = family_->blocking.lost();
    if (lost) channels_->forsake();
    channels_.reset();
    roll_.end(lost);
  }

  [[nodiscard]] int size() const noexcept override { return peers_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

  std::uint64_t post(Collective const& op) override {
    zero::detail::check_arguments(op, peers_.rank(), size(), name_);
    Lock lock(family_->mutex);
    throw_if_failed(lock, op);
    std::uint64_t const sequence = flights_.posted();
    if (sequence >= ring_slots) {
      finish(lock, op, sequence - ring_slots);
    }
    begin(op);
    family_->advance();
    return sequence;
  }

  void wait(int /*rank*/, std::uint64_t sequence) override {
    Lock lock(family_->mutex);
    // What is done has its result, whatever went wrong since.
    if (flights_.done(sequence)) return;
    Collective const op = flights_.at(sequence).op;
    throw_if_failed(lock, op);
    finish(lock, op, sequence);
  }

  void progress() noexcept override {
    Lock const lock(family_->mutex);
    if (flights_.none() && !family_->failed()) return;
    family_->advance();
  }

  bool advance() override {
    int error = MPI_SUCCESS;
    bool moved = size() > 1 && channels_->poll(error);
    moved |= roll_.hear(flights_.oldest(), error);
    for (std::uint64_t s = flights_.oldest(); s < flights_.posted() && error == MPI_SUCCESS; ++s) {
      Flight& flight = flights_.at(s);
      if (flight.complete || flight.withdrawn) continue;
      if (!flight.matched && !match(flight)) {
        if (family_->failed()) return true;
        continue;
      }
      moved |= exchange_.receive(flight, error);
    }
    for (int peer = 0; peer < size(); ++peer) {
      moved |= exchange_.send(peer, error);
      exchange_.skip_received(peer);
    }
    for (std::uint64_t s = flights_.oldest(); s < flights_.posted(); ++s) {
      moved |= complete(flights_.at(s), error);
    }
    flights_.retire();
    if (error != MPI_SUCCESS) {
      family_->record_error(error, describe_oldest() + on_group());
      return true;
    }
    if (moved) ++events_;
    return moved;
  }
  [[nodiscard]] bool busy() const noexcept override { return !flights_.none(); }

  ZERO_COLD void abandon(int /*rank*/, std::uint64_t sequence, bool unwinding) noexcept override {
    Lock const lock(family_->mutex);
    if (flights_.done(sequence)) return;
    Flight& flight = flights_.at(sequence);
    flight.withdrawn = true;
    family_->board().withdraw();
    std::string text = zero::detail::describe(
        zero::detail::Failure{.cause = zero::detail::Failure::Cause::abandoned,
                              .rank = own_number(),
                              .calls = flights_.posted(),
                              .call = flight.op,
                              .group = name_});
    if (unwinding) {
      family_->withdrawn = std::move(text);
    } else if (is_running()) {
      family_->record(std::move(text));
    }
  }

  ZERO_COLD void leave(int /*rank*/, bool unwinding) noexcept override {
    Lock const lock(family_->mutex);
    if (!is_running()) return;
    // Where a group that was split off is unwound, its rank can still say why in the first one.
    if (!family_->withdrawn.empty() && (is_first() || !unwinding)) {
      family_->record(std::move(family_->withdrawn));
      return;
    }
    if (!family_->failed()) roll_.leave(flights_.posted(), unwinding);
  }

  ZERO_COLD bool report(std::string_view reason) override {
    Lock const lock(family_->mutex);
    zero::detail::Failure failure{.cause = zero::detail::Failure::Cause::thrown,
                                  .rank = own_number(),
                                  .calls = flights_.posted()};
    if (failure.calls > 0) failure.call = flights_.at(failure.calls - 1).op;
    failure.reason = reason;
    failure.group = name_;
    family_->withdrawn.clear();
    return family_->record(failure);
  }

  [[nodiscard]] ZERO_COLD zero::detail::Handle<Member> split(std::vector<int> const& members,
                                                             int rank,
                                                             std::string_view name) override {
    Lock const lock(family_->mutex);
    Blocking& blocking = family_->blocking;
    blocking.begin("split");
    MPI_Comm const part =
        blocking.divide(comm_, *std::min_element(members.begin(), members.end()), rank);
    std::vector<int> world;
    for (int const member : members) world.push_back(peers_.world_rank(member));
    auto window = std::make_shared<Window>();
    if (family_->window->shared()) {
      MPI_Comm const node = blocking.divide(part, family_->node_of(family_->rank()), rank);
      window = family_->make_window(part, static_cast<int>(members.size()), node, 0);
    }
    return {std::make_shared<Group>(family_, part, world, rank, std::move(window), native_, name),
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
    roll_.hear_last(family_->blocking, flights_.oldest());
    family_->blocking.meet(comm_);
    channels_->cancel();
    roll_.cancel();
    family_->blocking.wait("the last messages",
                           [&] { return channels_->settled() && roll_.settled(); });
    family_->leave(this);
    exchange_.close();
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
    result.local_ranks = static_cast<int>(topology.ranks(topology.node(peers_.rank())).size());
    result.window = window_->shared();
    result.always_deadline = family_->blocking.always_ends();
    result.progress_thread = family_->options.progress_thread != ProgressThread::off;
    if (family_->pool != nullptr) {
      result.shared_bytes = family_->pool->bytes();
      result.shared_left = family_->pool->left();
    }
    result.chunk_bytes = channels_->chunk_bytes();
    result.direct_bytes = exchange_.moved().direct;
    result.exchanged_bytes = exchange_.moved().exchanged;
    result.node_sum_bytes = exchange_.moved().node_sums;
    result.native_bytes = exchange_.moved().native;
    result.flat_because = sources_.flat_because();
    result.control_messages = roll_.sent();
    result.data_messages = channels_->sent();
    return result;
  }

  [[nodiscard]] std::uint64_t held() const noexcept override {
    return window_->held() + channels_->held() + roll_.held() + exchange_.held();
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

  void begin(Collective const& op) {
    Flight& flight = flights_.begin(op);
    Slot& slot = peers_.own().slot(flight.sequence);
    std::size_t const element = size_of(op.dtype);
    std::size_t const send_bytes = zero::detail::send_count(op, size()) * element;
    bool const sends = op.op != Op::broadcast || peers_.rank() == op.root;
    Call call = call_of(op, flight.sequence);
    if (sends && send_bytes <= inline_bytes) {
      if (send_bytes > 0) std::memcpy(slot.copy, op.send, send_bytes);
      call.send_at = inlined;
    } else if (sends) {
      call.send_at = place_of(op.send, send_bytes);
    }
    call.recv_at = place_of(op.recv, zero::detail::receive_count(op, size()) * element);
    flight.send = call.send_at == inlined ? slot.copy : static_cast<std::byte const*>(op.send);
    kernel::publish_streaming_stores();
    roll_.announce(call);
  }

  /// True once all ranks have started the collective and agree on it.
  bool match(Flight& flight) {
    Roll::Verdict const verdict = roll_.compare(flight);
    if (verdict.failure) family_->record(zero::detail::describe(*verdict.failure) + on_group());
    if (!verdict.agreed) return false;
    flight.matched = true;
    flight.route = sources_.route(flight);
    return true;
  }

  /// Done here once nothing is to come or to go; done altogether once MPI has delivered what went
  /// and no peer reads this rank's memory any more, if what this rank has read of theirs is good.
  bool complete(Flight& flight, int& error) {
    if (flight.complete || !flight.received) return false;
    bool moved = false;
    if (!flight.told) {
      if (!exchange_.has_sent(flight)) return false;
      peers_.own().slot(flight.sequence).done.store(flight.sequence + 1, std::memory_order_release);
      flight.told = moved = true;
    }
    if (!channels_->has_delivered(flight.sequence)) return moved;
    if (!roll_.has_delivered(flight.sequence, error)) return moved;
    for (int peer = 0; peer < size(); ++peer) {
      if (peers_.reads_on(peer, flight.sequence)) return moved;
    }
    if (!family_->board().is_sound()) return moved;
    flight.complete = true;
    return true;
  }

  /// Works on everything until a collective is done; gives up when nothing of this group moves for
  /// the deadline, whatever other groups do meanwhile. Something is under way.
  void finish(Lock& lock, Collective const& op, std::uint64_t sequence) {
    Backoff backoff;
    std::uint64_t events = events_;
    Patience patience(family_->options.deadline_s, Clock::now());
    Peers::Waiting const waiting(peers_);
    while (!flights_.done(sequence)) {
      family_->advance();
      throw_if_failed(lock, op);
      if (flights_.done(sequence)) return;
      if (events_ != events) {
        events = events_;
        patience.reset(Clock::now());
        backoff.reset();
        continue;
      }
      Patience::Step const step = patience.look(Clock::now());
      if (step == Patience::Step::ask) {
        if (int const error = roll_.ask(); error != MPI_SUCCESS) {
          family_->record_error(error, describe_oldest() + on_group());
        }
      } else if (step != Patience::Step::wait) {
        std::string text = blame_.find(family_->options.deadline_s, patience.graces(Clock::now()));
        if (!text.empty()) family_->record(std::move(text) + on_group());
        throw_if_failed(lock, op);
      }
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
    Peers result(rank, world, Topology(labels));
    int place = 0;
    bool const shared = family.window->shared();
    for (int const peer : result.topology().ranks(result.topology().node(rank))) {
      int const in_family = shared ? family.node_rank(result.world_rank(peer)) : 0;
      result.see(peer,
                 window.control(place++),
                 family.window->control(in_family),
                 shared ? family.window->pool(in_family) : nullptr);
    }
    return result;
  }
  [[nodiscard]] int own_number() const noexcept { return peers_.world_rank(peers_.rank()); }
  [[nodiscard]] std::string on_group() const { return zero::detail::on_group(name_); }
  [[nodiscard]] ZERO_COLD std::string describe_oldest() {
    return flights_.none() ? "a group"
                           : zero::detail::describe_call(flights_.at(flights_.oldest()).op);
  }

  void throw_if_failed(Lock& lock, Collective const& op) {
    if (!family_->withdrawn.empty()) family_->record(std::exchange(family_->withdrawn, {}));
    if (!family_->failed()) return;
    std::string message = family_->failure();
    lock.unlock();
    fail(ErrorKind::communication,
         std::move(message),
         {.rank = own_number(),
          .operation = zero::detail::operation_name(op),
          .bucket = op.bucket,
          .group = name_});
  }

  std::shared_ptr<Family> family_;
  MPI_Comm comm_;
  bool native_;
  std::string name_;
  std::shared_ptr<Window> window_;
  Peers peers_;
  std::unique_ptr<Channels> channels_;
  Roll roll_;
  Sources sources_;
  Flights flights_;
  Exchange exchange_;
  Blame blame_;
  std::uint64_t events_ = 0;  ///< counts what moved, so that a wait sees other threads' progress
};

ZERO_OPTIONAL_BODY zero::detail::Handle<Member> first_member(MPI_Comm comm,
                                                             Options const& options,
                                                             bool native) {
  require_usable(comm, options);
  auto const family = std::make_shared<Family>(comm, options, native);
  std::lock_guard const lock(family->mutex);
  std::vector<int> world;
  for (int rank = 0; rank < family->size(); ++rank) world.push_back(rank);
  return {std::make_shared<Group<Member>>(
              family, family->duplicate(), world, family->rank(), family->window, native),
          family->rank()};
}

ZERO_OPTIONAL_BODY std::uint64_t planned_bytes(Options const& options,
                                               int ranks,
                                               int nodes,
                                               bool native) {
  std::size_t const chunk = chunk_bytes(options.exchange_bytes, options.message_bytes, ranks);
  bool const near = options.shared_memory && nodes == 1;
  auto const all = static_cast<std::size_t>(ranks);
  return Window::planned_bytes(near ? ranks : 1, chunk) +
         Channels::planned_bytes(near ? 1 : ranks, chunk) +
         (near || ranks == 1 ? 0 : Dissemination::planned_bytes(all)) + all * sizeof(Lane) +
         (native ? NativeReduction::planned_bytes(options, ranks) : 0);
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
