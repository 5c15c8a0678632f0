/// @file
/// Moving the data of collectives under way: receiving, adding, copying, sending.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/links.hpp"
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
#include <cstring>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Bytes of one source that are worked on between two looks at everything else under way.
inline constexpr std::size_t part_bytes = 256 * KiB;

/// Bytes that went one way or another on this rank.
struct Moved {
  std::uint64_t direct = 0;     ///< read from peers' memory
  std::uint64_t exchanged = 0;  ///< received in chunks
  std::uint64_t node_sums = 0;  ///< sent as sums of this node, or up to it
};

/// Carries out schedules, every task as far as its inputs are there and its outcome has room.
///
/// Who sends a chunk says with the first of them which call it is for; near ranks read each other's
/// calls before they read each other's memory. So no data of another call is ever used. Chunks
/// between two ranks go in the order of the calls; what needs no chunks overtakes what does.
class Exchange {
 public:
  Exchange(Peers const& peers, Links& links, Window const& window, Flights& flights)
      : peers_(&peers),
        links_(&links),
        window_(&window),
        flights_(&flights),
        next_arrival_(index(peers.size()), 0),
        next_in_(next_arrival_),
        next_out_(next_arrival_) {
    inputs_.reserve(index(peers.size()) + 1);
  }

  [[nodiscard]] Moved const& moved() const noexcept { return moved_; }
  /// That a rank has called something else.
  struct Disagreement {
    std::uint64_t number = never;  ///< of the collective, or of a later one that showed it
    int peer = -1;                 ///< -1 if MPI has found it
    bool known = false;            ///< is that the peer's call of this number?
    Call call{};
  };
  /// The first that was found.
  [[nodiscard]] Disagreement const& disagreement() const noexcept { return disagreement_; }
  void disagree(Disagreement const& found) noexcept {
    if (disagreement_.number == never) disagreement_ = found;
  }

  /// Prepares a collective of which this rank's slot says where the buffers are.
  void begin(Flight& flight) {
    auto const& tasks = flight.schedule.tasks();
    flight.places.assign(tasks.size(), {});
    flight.pairs.assign(index(peers_->size()), {});
    flight.tasks_left = tasks.size();
    flight.near_left = static_cast<int>(peers_->near().size()) - 1;
    Slot const& own = peers_->own().slot(flight.number);
    for (int peer = 0; peer < peers_->size(); ++peer) {
      Flight::Pair& pair = flight.pairs[index(peer)];
      Traffic const& traffic = flight.schedule.with(peer);
      pair.gives = chunked(traffic.given, peers_->is_near(peer) ? &own : nullptr, pair.results_out);
      if (!peers_->is_near(peer)) pair.takes = chunked(traffic.taken, nullptr, pair.results_in);
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      // What neighbours read where it is takes no chunks.
      bool const lends = tasks[i].to != peers_->rank() && peers_->is_near(tasks[i].to);
      if (!lends || place(own, tasks[i].way) == outside) continue;
      flight.places[i].over = true;
      --flight.tasks_left;
    }
    flight.results_left = flight.schedule.results(0);
  }

  /// Looks at what has come by links: finds out which calls it is for.
  void look() {
    links_->look([&](int peer, Head const& head) { return judge(peer, head); });
  }

  /// Works on a collective, at most on a part of each source; true if anything moved.
  /// @param error  MPI's code if something went wrong
  bool advance(Flight& flight, int& error) {
    if (flight.near_left > 0) compare(flight);
    bool moved = false;
    for (std::size_t i = 0; flight.tasks_left > 0 && i < flight.places.size(); ++i) {
      Task const& task = flight.schedule.tasks()[i];
      if (flight.places[i].over || task.pass > flight.pass) continue;
      // What this rank sends goes as far as there is room, so that it is on its way.
      bool const sends = task.to != peers_->rank();
      while (work(flight, i, error)) {
        moved = true;
        if (!sends || flight.places[i].over || error != MPI_SUCCESS) break;
      }
      if (error != MPI_SUCCESS) return moved;
    }
    while (!flight.received && flight.results_left == 0 && !flight.route.by_library) {
      end_pass(flight);
      moved = true;
    }
    return moved;
  }

  /// Calls `add(peer)` for all whom a collective waits for here.
  template <class Add>
  ZERO_COLD void waits_for(Flight const& flight, Add const& add) const {
    for (int const peer : peers_->near()) {
      if (peer == peers_->rank()) continue;
      bool const reads = flight.told && peers_->reads_on(peer, flight.number);
      if (!flight.pairs[index(peer)].agrees || reads) add(peer);
    }
    for (int peer = 0; peer < peers_->size(); ++peer) {
      if (!peers_->is_near(peer) && links_->delivers(peer, flight.number)) add(peer);
    }
    for (std::size_t i = 0; i < flight.places.size(); ++i) {
      Task const& task = flight.schedule.tasks()[i];
      if (flight.places[i].over || task.pass > flight.pass) continue;
      bool missing = false;
      for (std::uint32_t k = 0; k < task.inputs; ++k) {
        Input const& input = flight.schedule.inputs(task)[k];
        Source const source = find(flight, task, input, 0);
        if (source.data != nullptr) continue;
        missing = true;
        if (input.rank != peers_->rank()) add(input.rank);
      }
      if (!missing && task.to != peers_->rank() && !has_room(flight, task)) add(task.to);
    }
  }

 private:
  /// Where a piece of an input is now.
  struct Source {
    std::byte const* data = nullptr;  ///< null if it is not there
    bool chunk = false;               ///< came in a chunk, or will
  };

  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] static std::int64_t place(Slot const& slot, From from) noexcept {
    return from == From::result ? slot.recv_at : slot.send_at;
  }
  /// How many of the tasks between two ranks take chunks.
  /// @param tasks    by From
  /// @param slot     of a near peer that gives; null for a far one
  /// @param results  how many of them come before those of results
  [[nodiscard]] static std::uint32_t chunked(std::uint32_t const (&tasks)[3],
                                             Slot const* slot,
                                             std::uint32_t& results) noexcept {
    if (slot == nullptr) return tasks[kind(From::link)];
    results = slot->send_at == outside ? tasks[kind(From::given)] : 0;
    return results + (slot->recv_at == outside ? tasks[kind(From::result)] : 0);
  }
  /// Does this input come in chunks of a lane? Of a near peer that agrees.
  [[nodiscard]] bool is_lent(Flight const& flight, Input const& input) const noexcept {
    return place(peers_->control(input.rank).slot(flight.number), input.from) == outside;
  }
  [[nodiscard]] int seat(int peer) const noexcept { return peers_->topology().place(peer); }
  [[nodiscard]] Lane& lane_to(int peer) const noexcept {
    return window_->lane(seat(peers_->rank()), seat(peer));
  }
  [[nodiscard]] Lane& lane_from(int peer) const noexcept {
    return window_->lane(seat(peer), seat(peers_->rank()));
  }

  /// What a head that has come from a far peer means: see Links::look.
  [[nodiscard]] std::uint32_t judge(int peer, Head const& head) {
    std::uint64_t& next = next_arrival_[index(peer)];
    advance_turn(next,
                 [&](Flight const& flight) { return flight.schedule.with(peer).chunks_in == 0; });
    if (next == flights_->posted()) {
      // The peer is ahead, or this rank's call expects nothing of it.
      if (head.number < next) disagree({head.number, peer, true, head.call});
      return 0;
    }
    Flight const& flight = flights_->at(next);
    bool const same =
        head.number == next && head.call == flight.head.call && head.before == flight.head.before;
    if (!same) {
      // The sums alone differ if an earlier call does.
      bool const known = head.number <= next && head.call != flights_->at(head.number).head.call;
      disagree({(std::min)(head.number, next), peer, known, head.call});
      return 0;
    }
    ++next;
    return flight.schedule.with(peer).chunks_in;
  }
  /// Reads what near peers have called.
  void compare(Flight& flight) {
    for (int const peer : peers_->near()) {
      Flight::Pair& pair = flight.pairs[index(peer)];
      if (peer == peers_->rank() || pair.agrees) continue;
      if (peers_->posted_by(peer) <= flight.number) continue;
      Slot const& slot = peers_->control(peer).slot(flight.number);
      if (slot.call != flight.head.call) {
        disagree({flight.number, peer, true, slot.call});
        return;
      }
      pair.agrees = true;
      pair.takes = chunked(flight.schedule.with(peer).taken, &slot, pair.results_in);
      --flight.near_left;
    }
  }

  /// One piece of a task; true if anything moved.
  bool work(Flight& flight, std::size_t i, int& error) {
    Task const& task = flight.schedule.tasks()[i];
    Flight::Place& at = flight.places[i];
    bool const keeps = task.to == peers_->rank();
    bool const far = !keeps && !peers_->is_near(task.to);
    if (!keeps && !is_turn_out(flight, task)) return false;
    bool const closed = far && !links_->is_open_to(task.to);
    if (closed && task.count > 0) {
      // The head goes at once; data follow when the peer has made room.
      error = send(flight, task, 0);
      return true;
    }
    std::size_t const element = size_of(flight.op.dtype);
    std::byte* const out =
        keeps ? static_cast<std::byte*>(flight.op.recv) + (task.at + at.at) * element : room(task);
    if (!keeps && !closed && out == nullptr) return false;
    inputs_.clear();
    if (task.work == Work::partial && task.begins) inputs_.push_back(nullptr);
    bool chunks = !keeps;
    bool reads = false;
    for (std::uint32_t k = 0; k < task.inputs; ++k) {
      Input const& input = flight.schedule.inputs(task)[k];
      Source const source = find(flight, task, input, at.at);
      if (source.data == nullptr) return false;
      inputs_.push_back(source.data);
      chunks = chunks || source.chunk;
      reads = reads || (!source.chunk && input.rank != peers_->rank());
    }
    std::size_t const now =
        (std::min)(chunks ? task.piece : part_bytes / element, task.count - at.at);
    make(flight, task, out, now, keeps);
    if (reads && !keeps && !peers_->board().is_sound()) return false;
    if (!keeps) {
      std::size_t const bytes =
          now * size_of(task.rounded ? flight.op.dtype : flight.op.accumulate);
      if (task.work != Work::copy) moved_.node_sums += bytes;
      error = send(flight, task, bytes);
    }
    take(flight, task, now, error);
    at.at += now;
    if (at.at == task.count) end(flight, i);
    return true;
  }
  /// Adds or copies a piece of all inputs.
  void make(Flight& flight, Task const& task, std::byte* out, std::size_t count, bool keeps) {
    if (count == 0) return;
    Collective const& op = flight.op;
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
      if (flight.schedule.inputs(task)->from == From::link) store = kernel::Store::cached;
      kernel::copy(
          out, static_cast<std::byte const*>(inputs_.front()), count * size_of(op.dtype), store);
      squared.add(op.dtype, out, count);
    }
  }

  /// Where the piece of an input is that begins at an element of its task.
  [[nodiscard]] Source find(Flight const& flight,
                            Task const& task,
                            Input const& input,
                            std::size_t at) const {
    std::size_t bytes = 0;
    if (input.from == From::link) {
      if (!is_turn_in(flight, input)) return {nullptr, true};
      return {links_->chunk_from(input.rank, bytes), true};
    }
    std::size_t const skip = (input.at + at) * size_of(flight.op.dtype);
    bool const result = input.from == From::result;
    if (input.rank == peers_->rank()) {
      auto const* const own = static_cast<std::byte const*>(flight.op.recv);
      // Nothing is read of a collective of nothing, which may have no buffers.
      if (flight.op.count == 0) return {reinterpret_cast<std::byte const*>(&flight)};
      return {(result ? own : flight.send) + skip};
    }
    if (!flight.pairs[index(input.rank)].agrees) return {};
    Slot& slot = peers_->control(input.rank).slot(flight.number);
    std::int64_t const held = place(slot, input.from);
    if (held == outside) {
      int const chunk = is_turn_in(flight, input) ? lane_from(input.rank).arrived() : -1;
      if (chunk < 0) return {nullptr, true};
      return {window_->chunk(seat(input.rank), seat(peers_->rank()), chunk), true};
    }
    if (result && !slot.has_passed(flight.number, task.pass)) return {};
    return {held == inlined ? slot.copy + skip : peers_->pool(input.rank) + held + skip};
  }
  /// Gives back the chunks of a piece, and counts what went which way.
  void take(Flight const& flight, Task const& task, std::size_t count, int& error) {
    std::size_t const narrow = count * size_of(flight.op.dtype);
    for (std::uint32_t k = 0; k < task.inputs; ++k) {
      Input const& input = flight.schedule.inputs(task)[k];
      if (input.rank == peers_->rank()) continue;
      if (input.from == From::link) {
        bool const partial = task.work == Work::partial;
        moved_.exchanged += partial ? count * size_of(flight.op.accumulate) : narrow;
        if (int const code = links_->take(input.rank); code != MPI_SUCCESS) error = code;
      } else if (is_lent(flight, input)) {
        moved_.exchanged += narrow;
        lane_from(input.rank).take();
      } else if (task.work != Work::sum || task.to == peers_->rank()) {
        moved_.direct += narrow;
      }
    }
  }

  /// Chunks of a peer are taken, and given to it, in the order of the calls, and of tasks.
  [[nodiscard]] bool is_turn_in(Flight const& flight, Input const& input) const {
    std::size_t const peer = index(input.rank);
    advance_turn(next_in_[peer], [&](Flight const& other) {
      return other.pairs[peer].taken == other.pairs[peer].takes;
    });
    Flight::Pair const& pair = flight.pairs[peer];
    std::uint32_t const first = input.from == From::result ? pair.results_in : 0;
    return next_in_[peer] == flight.number && pair.taken == first + input.turn;
  }
  [[nodiscard]] bool is_turn_out(Flight const& flight, Task const& task) const {
    std::size_t const peer = index(task.to);
    advance_turn(next_out_[peer], [&](Flight const& other) {
      return other.pairs[peer].given == other.pairs[peer].gives;
    });
    Flight::Pair const& pair = flight.pairs[peer];
    std::uint32_t const first = task.way == From::result ? pair.results_out : 0;
    return next_out_[peer] == flight.number && pair.given == first + task.turn;
  }
  [[nodiscard]] bool has_room(Flight const& flight, Task const& task) const {
    return is_turn_out(flight, task) && room(task) != nullptr;
  }
  /// Memory for the next chunk of a task that gives its outcome away, or null.
  [[nodiscard]] std::byte* room(Task const& task) const noexcept {
    if (!peers_->is_near(task.to)) {
      return links_->is_open_to(task.to) ? links_->room_for(task.to) : nullptr;
    }
    int const chunk = lane_to(task.to).room();
    return chunk < 0 ? nullptr : window_->chunk(seat(peers_->rank()), seat(task.to), chunk);
  }
  /// Sends what lies in the room for a chunk. The first one for a collective says what it is for.
  int send(Flight& flight, Task const& task, std::size_t bytes) {
    if (peers_->is_near(task.to)) {
      lane_to(task.to).send(bytes);
      return MPI_SUCCESS;
    }
    bool const headed = std::exchange(flight.pairs[index(task.to)].headed, true);
    return links_->send(task.to, flight.number, headed ? nullptr : &flight.head, bytes);
  }

  void end(Flight& flight, std::size_t i) {
    Task const& task = flight.schedule.tasks()[i];
    flight.places[i].over = true;
    --flight.tasks_left;
    if (task.to == peers_->rank()) {
      --flight.results_left;
    } else {
      ++flight.pairs[index(task.to)].given;
    }
    for (std::uint32_t k = 0; k < task.inputs; ++k) {
      Input const& input = flight.schedule.inputs(task)[k];
      if (input.rank == peers_->rank()) continue;
      if (input.from == From::link || is_lent(flight, input))
        ++flight.pairs[index(input.rank)].taken;
    }
  }
  void end_pass(Flight& flight) {
    kernel::publish_streaming_stores();
    if (flight.pass + 1 == passes(flight.op, flight.route)) {
      flight.received = true;
      flight.squared.end();
      return;
    }
    flight.results_left = flight.schedule.results(++flight.pass);
    peers_->own().slot(flight.number).pass(flight.number, flight.pass);
  }
  /// Moves a turn to the first collective that is not over in some respect.
  template <class Over>
  void advance_turn(std::uint64_t& turn, Over const& over) const {
    turn = (std::max)(turn, flights_->oldest());
    while (turn < flights_->posted() && over(flights_->at(turn))) ++turn;
  }

  Peers const* peers_;
  Links* links_;
  Window const* window_;
  Flights* flights_;
  // Collectives, by peer. Turns move when somebody asks.
  std::vector<std::uint64_t> next_arrival_;      ///< whose first chunk has not come
  mutable std::vector<std::uint64_t> next_in_;   ///< whose chunks are taken now
  mutable std::vector<std::uint64_t> next_out_;  ///< whose chunks are given now
  std::vector<void const*> inputs_;
  Moved moved_{};
  Disagreement disagreement_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
