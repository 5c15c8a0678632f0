/// @file
/// Moving the data of collectives under way: receiving, adding, copying, sending.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/links.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/schedule.hpp"
#include "zero/comm/mpi/window.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/partial_sum.hpp"
#include "zero/kernel/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Bytes of one source that are worked on between two looks at everything else under way.
inline constexpr std::size_t part_bytes = 256 * KiB;

/// Carries out schedules, every task as far as its inputs are there and its outcome has room.
///
/// Who sends a chunk says with the first of them which call it is for; local ranks read each
/// other's calls before they read each other's memory. So no data of another call is ever used.
/// Chunks between two ranks go in the order of the calls; what needs no chunks overtakes what does.
class Exchange {
 public:
  /// All live longer.
  /// @param counts  what goes which way
  Exchange(
      Peers const& peers, Links& links, Window const& window, Flights& flights, Transport& counts)
      : peers_(&peers),
        links_(&links),
        window_(&window),
        flights_(&flights),
        counts_(&counts),
        turns_(index(peers.size())) {
    inputs_.reserve(index(peers.size()) + 1);
  }

  /// Prepares a collective of which this rank's slot says where the buffers are.
  void begin(CallInFlight& flight) {
    auto const& tasks = flight.schedule.tasks();
    flight.places.assign(tasks.size(), {});
    flight.pairs.assign(index(peers_->size()), CallInFlight::Pair{});
    flight.tasks_left = tasks.size();
    flight.local_left = static_cast<int>(peers_->local_ranks().size()) - 1;
    flight.results_left = flight.schedule.results(0);
    CallSlot const& own = peers_->own().slot(flight.number);
    for (int peer = 0; peer < peers_->size(); ++peer) {
      auto& [takes, gives] = flight.pairs[index(peer)].queues;
      PeerTraffic const& traffic = flight.schedule.with(peer);
      if (peers_->is_local(peer)) {
        gives = queue(traffic.out, own);
      } else {
        takes = {0, traffic.in.sends};
        gives = {0, traffic.out.sends};
      }
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      // What neighbours read where it is takes no chunks.
      bool const lends = tasks[i].to != peers_->rank() && peers_->is_local(tasks[i].to);
      if (!lends || place(own, tasks[i].way) == outside) continue;
      flight.places[i].over = true;
      --flight.tasks_left;
    }
  }

  /// Looks at what has come by links: finds out which calls it is for.
  void look() {
    links_->look([&](int peer, Head const& head) { return judge(peer, head); });
  }

  /// Works on a collective, at most on a part of each source; true if anything moved.
  bool advance(CallInFlight& flight) {
    if (flight.local_left > 0) compare(flight);
    bool moved = false;
    for (std::size_t i = 0; flight.tasks_left > 0 && i < flight.places.size(); ++i) {
      Task const& task = flight.schedule.tasks()[i];
      // What this rank sends goes as far as there is room, so that it is on its way.
      bool more = !flight.places[i].over && task.pass <= flight.pass;
      while (more && links_->error() == MPI_SUCCESS && work(flight, i)) {
        moved = true;
        more = task.to != peers_->rank() && !flight.places[i].over;
      }
    }
    while (!flight.received && flight.results_left == 0) {
      end_pass(flight);
      moved = true;
    }
    return moved;
  }

  /// Calls `add(peer)` for all whom a collective waits for here.
  template <class Add>
  ZERO_COLD void waits_for(CallInFlight const& flight, Add const& add) {
    for (int peer = 0; peer < peers_->size(); ++peer) {
      if (peer == peers_->rank()) continue;
      bool const waits = peers_->is_local(peer)
                             ? !flight.pairs[index(peer)].agrees ||
                                   (flight.announced && peers_->reads_on(peer, flight.number))
                             : links_->delivers(peer, flight.number);
      if (waits) add(peer);
    }
    for (std::size_t i = 0; i < flight.places.size(); ++i) {
      Task const& task = flight.schedule.tasks()[i];
      if (flight.places[i].over || task.pass > flight.pass) continue;
      bool missing = false;
      for (Input const& input : flight.schedule.inputs(task)) {
        if (find(flight, task, input, 0).data != nullptr) continue;
        missing = true;
        if (input.rank != peers_->rank()) add(input.rank);
      }
      if (missing || task.to == peers_->rank()) continue;
      if (!is_turn(CallInFlight::out, flight, task.to, task.turn) || room(task.to) == nullptr) {
        add(task.to);
      }
    }
  }

 private:
  /// Where a piece of an input is now.
  struct Source {
    std::byte const* data = nullptr;  ///< null if it is not there
    bool chunk = false;               ///< came in a chunk, or will
  };
  /// Collectives whose turn it is with one peer. They move when somebody asks.
  struct Turn {
    std::uint64_t arrival = 0;     ///< whose first chunk has not come
    std::uint64_t queues[2] = {};  ///< whose chunks are taken and given now
  };

  [[nodiscard]] static std::int64_t place(CallSlot const& slot, From from) noexcept {
    return from == From::result ? slot.recv_at : slot.send_at;
  }
  /// Which of the tasks between two ranks of a node take chunks.
  /// @param slot  of the one that gives
  [[nodiscard]] static CallInFlight::TaskQueue queue(LaneTurns tasks,
                                                     CallSlot const& slot) noexcept {
    std::uint32_t const end = tasks.sends + (slot.recv_at == outside ? tasks.results : 0);
    return {slot.send_at == outside ? 0 : tasks.sends, end};
  }
  /// Does this input come in chunks of a lane? Of a local peer that agrees.
  [[nodiscard]] bool is_lent(CallInFlight const& flight, Input const& input) const noexcept {
    return place(peers_->control(input.rank).slot(flight.number), input.from) == outside;
  }
  [[nodiscard]] Lane& lane(int from, int to) const noexcept {
    return window_->lane(peers_->topology().place(from), peers_->topology().place(to));
  }
  [[nodiscard]] std::byte* lane_chunk(int from, int to, int slot) const noexcept {
    Topology const& seats = peers_->topology();
    return slot < 0 ? nullptr : window_->chunk(seats.place(from), seats.place(to), slot);
  }

  /// What a head that has come from a remote peer means: see Links::look.
  [[nodiscard]] std::uint32_t judge(int peer, Head const& head) {
    std::uint64_t& next = turns_[index(peer)].arrival;
    skip(next,
         [&](CallInFlight const& flight) { return flight.schedule.with(peer).chunks_in == 0; });
    if (next == flights_->posted()) {
      // The peer is ahead, or this rank's call expects nothing of it.
      if (head.number < next) flights_->disagree({head.number, peer, true, head.call});
      return 0;
    }
    CallInFlight const& flight = flights_->at(next);
    bool const same =
        head.number == next && head.call == flight.head.call && head.before == flight.head.before;
    if (!same) {
      // The sums alone differ if an earlier call does.
      bool const known = head.number <= next && head.call != flights_->at(head.number).head.call;
      flights_->disagree({(std::min)(head.number, next), peer, known, head.call});
      return 0;
    }
    ++next;
    return flight.schedule.with(peer).chunks_in;
  }
  /// Reads what local peers have called.
  void compare(CallInFlight& flight) {
    for (int const peer : peers_->local_ranks()) {
      CallInFlight::Pair& pair = flight.pairs[index(peer)];
      if (peer == peers_->rank() || pair.agrees) continue;
      if (peers_->posted_by(peer) <= flight.number) continue;
      CallSlot const& slot = peers_->control(peer).slot(flight.number);
      if (slot.call != flight.head.call) {
        flights_->disagree({flight.number, peer, true, slot.call});
        return;
      }
      pair.agrees = true;
      pair.queues[CallInFlight::in] = queue(flight.schedule.with(peer).in, slot);
      --flight.local_left;
    }
  }

  /// One piece of a task; true if anything moved.
  bool work(CallInFlight& flight, std::size_t i) {
    Task const& task = flight.schedule.tasks()[i];
    CallInFlight::TaskProgress& at = flight.places[i];
    bool const keeps = task.to == peers_->rank();
    if (!keeps && !is_turn(CallInFlight::out, flight, task.to, task.turn)) return false;
    bool const opens = !keeps && !peers_->is_local(task.to) && !links_->is_open_to(task.to);
    if (opens && task.count > 0) {
      // The head goes at once; data follow when the peer has made room.
      send(flight, task.to, 0);
      return true;
    }
    std::size_t const element = size_of(flight.op.dtype);
    auto* const result = static_cast<std::byte*>(flight.op.recv) + (task.at + at.at) * element;
    std::byte* const out = keeps ? result : room(task.to);
    if (!keeps && !opens && out == nullptr) return false;
    inputs_.clear();
    if (task.work == Work::partial && task.begins) inputs_.push_back(nullptr);
    bool chunks = !keeps;
    bool reads = false;
    for (Input const& input : flight.schedule.inputs(task)) {
      Source const source = find(flight, task, input, at.at);
      if (source.data == nullptr) return false;
      inputs_.push_back(source.data);
      chunks = chunks || source.chunk;
      reads = reads || (!source.chunk && input.rank != peers_->rank());
    }
    std::size_t const most = chunks ? task.piece : part_bytes / element;
    std::size_t const now = (std::min)(most, task.count - at.at);
    if (now > 0) make(flight, task, out, now);
    if (reads && !keeps && !peers_->node_control().is_sound()) return false;
    at.at += now;
    at.over = at.at == task.count;
    if (!keeps) {
      DType const type = task.rounded ? flight.op.dtype : flight.op.accumulate;
      if (task.work != Work::copy) counts_->node_sum_bytes += now * size_of(type);
      send(flight, task.to, now * size_of(type));
    }
    take(flight, task, now, at.over);
    if (!at.over) return true;
    --flight.tasks_left;
    if (keeps) {
      --flight.results_left;
    } else {
      ++flight.pairs[index(task.to)].queues[CallInFlight::out].next;
    }
    return true;
  }
  /// Adds or copies a piece of all inputs.
  void make(CallInFlight& flight, Task const& task, std::byte* out, std::size_t count) {
    Collective const& op = flight.op;
    bool const keeps = task.to == peers_->rank();
    kernel::SquaredSum none;
    kernel::SquaredSum& squared = keeps ? flight.squared : none;
    bool const stream =
        keeps && kernel::is_streaming(kernel::Store::automatic,
                                      zero::detail::larger_bytes(op, peers_->size()));
    auto store = stream ? kernel::Store::streaming : kernel::Store::cached;
    if (task.work == Work::sum) {
      auto const inputs = static_cast<int>(inputs_.size());
      kernel::sum_and_square(
          op.dtype, op.accumulate, out, inputs_.data(), 0, inputs, count, store, squared);
    } else if (task.work == Work::partial) {
      kernel::add_to_partial(op.dtype, op.accumulate, out, task.rounded, inputs_, count, squared);
    } else if (out != inputs_.front()) {
      // What came in a chunk is in the cache.
      bool const remote = flight.schedule.inputs(task).front().from == From::link;
      if (remote) store = kernel::Store::cached;
      kernel::copy(
          out, static_cast<std::byte const*>(inputs_.front()), count * size_of(op.dtype), store);
      squared.add(op.dtype, out, count);
    }
  }

  /// Where the piece of an input is that begins at an element of its task.
  [[nodiscard]] Source find(CallInFlight const& flight,
                            Task const& task,
                            Input const& input,
                            std::size_t at) {
    int const own = peers_->rank();
    int const peer = input.rank;
    bool const result = input.from == From::result;
    std::size_t const skip = (input.at + at) * size_of(flight.op.dtype);
    if (peer == own) {
      // Nothing is read of a collective of nothing, which may have no buffers.
      if (flight.op.count == 0) return {reinterpret_cast<std::byte const*>(&flight)};
      return {(result ? static_cast<std::byte const*>(flight.op.recv) : flight.send) + skip};
    }
    if (input.from == From::link) {
      bool const next = is_turn(CallInFlight::in, flight, peer, input.turn);
      return {next ? links_->chunk_from(peer) : nullptr, true};
    }
    if (!flight.pairs[index(peer)].agrees) return {};
    CallSlot& slot = peers_->control(peer).slot(flight.number);
    std::int64_t const held = place(slot, input.from);
    if (held == outside) {
      bool const next = is_turn(CallInFlight::in, flight, peer, input.turn);
      return {next ? lane_chunk(peer, own, lane(peer, own).arrived()) : nullptr, true};
    }
    if (result && !slot.has_published(flight.number, task.pass)) return {};
    return {(held == inlined ? slot.copy : peers_->pool(peer) + held) + skip};
  }
  /// Gives back the chunks of a piece, and counts what went which way.
  /// @param last  the next task may take chunks
  void take(CallInFlight& flight, Task const& task, std::size_t count, bool last) {
    bool const partial = task.work == Work::partial;
    for (Input const& input : flight.schedule.inputs(task)) {
      if (input.rank == peers_->rank()) continue;
      bool const remote = input.from == From::link;
      bool const wide = remote && partial;
      std::size_t const bytes = count * size_of(wide ? flight.op.accumulate : flight.op.dtype);
      if (!remote && !is_lent(flight, input)) {
        counts_->direct_bytes += bytes;
        continue;
      }
      counts_->exchanged_bytes += bytes;
      remote ? links_->take(input.rank) : lane(input.rank, peers_->rank()).take();
      if (last) ++flight.pairs[index(input.rank)].queues[CallInFlight::in].next;
    }
  }

  /// Chunks of a peer are taken, and given to it, in the order of the calls, and of tasks.
  [[nodiscard]] bool is_turn(CallInFlight::Way way,
                             CallInFlight const& flight,
                             int peer,
                             std::uint32_t turn) {
    std::uint64_t& number = turns_[index(peer)].queues[way];
    skip(number, [&](CallInFlight const& other) {
      CallInFlight::TaskQueue const& queue = other.pairs[index(peer)].queues[way];
      return queue.next == queue.end;
    });
    return number == flight.number && flight.pairs[index(peer)].queues[way].next == turn;
  }
  /// Moves a turn to the first collective that is not over in some respect.
  template <class Over>
  void skip(std::uint64_t& turn, Over const& over) const {
    turn = (std::max)(turn, flights_->oldest());
    while (turn < flights_->posted() && over(flights_->at(turn))) ++turn;
  }
  /// Memory for the next chunk to a rank, or null.
  [[nodiscard]] std::byte* room(int to) const noexcept {
    if (!peers_->is_local(to)) return links_->room_for(to);
    return lane_chunk(peers_->rank(), to, lane(peers_->rank(), to).room());
  }
  /// Sends what lies in the room for a chunk. The first one for a collective says what it is for.
  void send(CallInFlight& flight, int to, std::size_t bytes) {
    if (peers_->is_local(to)) return lane(peers_->rank(), to).send();
    bool const headed = std::exchange(flight.pairs[index(to)].headed, true);
    links_->send(to, flight.number, headed ? nullptr : &flight.head, bytes);
  }
  void end_pass(CallInFlight& flight) {
    kernel::publish_streaming_stores();
    if (flight.pass + 1 == passes(flight.op, flight.route)) {
      flight.received = true;
      flight.squared.end();
      return;
    }
    flight.results_left = flight.schedule.results(++flight.pass);
    peers_->own().slot(flight.number).publish(flight.number, flight.pass);
  }

  Peers const* peers_;
  Links* links_;
  Window const* window_;
  Flights* flights_;
  Transport* counts_;
  std::vector<Turn> turns_;  ///< by peer
  std::vector<void const*> inputs_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
