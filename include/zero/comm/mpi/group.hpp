/// @file
/// One rank's view of a group: who has called what, what is under way, what went wrong.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/failure.hpp"
#include "zero/comm/mpi/channels.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/native.hpp"
#include "zero/comm/shares.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/reduce.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline v0_1::mpi::detail {

/// Advances collectives on this rank. Every rank writes its own results: it reads what lies in a
/// peer's window where it is, and receives the rest chunk by chunk.
///
/// Chunks between two ranks travel in the order of the calls, so both sides know which collective a
/// chunk belongs to. What needs no chunks overtakes what does.
class Group final : public Member {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Collective over `comm`, which is taken over; `world` are its ranks' numbers in the family. The
  /// caller holds the family's lock.
  Group(std::shared_ptr<Family> family,
        MPI_Comm comm,
        std::vector<int> world,
        int rank,
        std::shared_ptr<Window> window,
        bool native)
      : family_(std::move(family)),
        comm_(comm),
        world_(std::move(world)),
        rank_(rank),
        size_(static_cast<int>(world_.size())),
        window_(std::move(window)),
        channels_(std::make_unique<Channels>(comm, rank, size_, family_->options)),
        headers_(ring_slots * world_.size()),
        posted_by_(world_.size(), 0),
        left_at_(world_.size(), never),
        in_turn_(world_.size(), 0),
        out_turn_(world_.size(), 0),
        inputs_(world_.size(), nullptr) {
    int place = 0;
    for (int const number : world_) {
      bool const near = family_->node_of(number) == family_->node_of(world_rank(rank_)) &&
                        (window_->shared() || number == world_rank(rank_));
      controls_.push_back(near ? window_->control(place++) : nullptr);
      pools_.push_back(near && family_->window->shared()
                           ? family_->window->pool(family_->node_rank(number))
                           : nullptr);
      one_node_ = one_node_ && near;
    }
    for (Flight& flight : flights_) flight.pairs.resize(world_.size());
    if (native) native_ = std::make_unique<NativeReduction>(comm, size_, family_->options);
    family_->join(this);
  }
  ~Group() override {
    Lock const lock(family_->mutex);
    family_->leave(this);
    channels_.reset();
  }

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int world_rank(int rank) const noexcept { return world_[index(rank)]; }
  [[nodiscard]] std::shared_ptr<Family> const& family() const noexcept { return family_; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  /// True for the group that the family was constructed with.
  [[nodiscard]] bool is_first() const noexcept { return window_ == family_->window; }

  /// Announces this rank's part of its next collective and returns the collective's number.
  std::uint64_t post(Collective const& op) {
    Lock lock(family_->mutex);
    throw_if_failed(lock, op);
    std::uint64_t const sequence = posted_;
    if (sequence >= ring_slots) {
      finish(lock, op, [&] {
        return done(sequence - ring_slots) && channels_->header_slot_free(sequence);
      });
    }
    begin(op, sequence);
    family_->advance();
    return sequence;
  }

  /// Blocks until a collective that this rank has posted is done.
  void wait(std::uint64_t sequence) {
    Lock lock(family_->mutex);
    // What is done has its result, whatever went wrong since.
    if (done(sequence)) return;
    Collective const op = flight_of(sequence).op;
    throw_if_failed(lock, op);
    finish(lock, op, [&] { return done(sequence); });
  }

  /// Never blocks, never throws: what goes wrong is told by the next call that can.
  void progress() noexcept {
    Lock const lock(family_->mutex);
    if (posted_ == oldest_ && !family_->failed()) return;
    family_->advance();
  }

  /// This rank will not wait for a collective: nothing more is written to its buffers.
  void abandon(std::uint64_t sequence, bool unwinding) noexcept {
    Lock const lock(family_->mutex);
    if (done(sequence)) return;
    Flight& flight = flight_of(sequence);
    flight.withdrawn = true;
    std::string text = zero::detail::describe(
        zero::detail::Failure{.cause = zero::detail::Failure::Cause::abandoned,
                              .rank = world_rank(rank_),
                              .calls = posted_,
                              .call = flight.op});
    if (unwinding) {
      family_->withdrawn = std::move(text);
    } else if (is_running()) {
      family_->record(std::move(text));
    }
  }

  /// This rank will start nothing more: peers that wait for it fail.
  void leave(bool unwinding) noexcept {
    Lock const lock(family_->mutex);
    if (!is_running()) return;
    if (!family_->withdrawn.empty()) {
      family_->record(std::move(family_->withdrawn));
      return;
    }
    if (family_->failed()) return;
    Control& own = *controls_[index(rank_)];
    own.left_unwinding.store(unwinding ? 1 : 0, std::memory_order_relaxed);
    own.left_at.store(posted_, std::memory_order_release);
    Call const farewell{.sequence = posted_,
                        .notice = unwinding ? Notice::left_unwinding : Notice::left};
    for (int peer = 0; peer < size_; ++peer) {
      if (controls_[index(peer)] == nullptr) channels_->send_farewell(peer, farewell);
    }
  }

  /// Ends the family because of an exception on this rank; true if nothing had failed before.
  bool report(std::string_view reason) {
    Lock const lock(family_->mutex);
    zero::detail::Failure failure{
        .cause = zero::detail::Failure::Cause::thrown, .rank = world_rank(rank_), .calls = posted_};
    if (posted_ > 0) failure.call = flight_of(posted_ - 1).op;
    failure.reason = reason;
    family_->withdrawn.clear();
    return family_->record(failure);
  }

  /// Collective; blocks. After a collective that told all ranks to come here.
  void close() {
    {
      Lock const lock(family_->mutex);
      check(MPI_Barrier(comm_), "MPI_Barrier");
      channels_->cancel(true);
      family_->leave(this);
    }
    if (native_ != nullptr) native_->close();
    if (window_ != family_->window) window_->close();
    check(MPI_Comm_free(&comm_), "MPI_Comm_free");
  }

  [[nodiscard]] Transport transport() {
    Lock const lock(family_->mutex);
    Transport result;
    result.library = library_version();
    std::vector<int> nodes;
    for (int const number : world_) nodes.push_back(family_->node_of(number));
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    result.nodes = static_cast<int>(nodes.size());
    for (Control const* const control : controls_) result.local_ranks += control != nullptr ? 1 : 0;
    result.window = window_->shared();
    result.progress_thread = family_->options.progress_thread != ProgressThread::off;
    if (family_->pool != nullptr) {
      result.shared_bytes = family_->pool->bytes();
      result.shared_left = family_->pool->left();
    }
    result.chunk_bytes = channels_->chunk_bytes();
    result.direct_bytes = direct_bytes_;
    result.exchanged_bytes = exchanged_bytes_;
    result.native_bytes = native_bytes_;
    return result;
  }

  [[nodiscard]] bool busy() const noexcept override { return oldest_ != posted_; }

  bool advance() override {
    int error = MPI_SUCCESS;
    bool moved = size_ > 1 && channels_->poll(error);
    for (int peer = 0; peer < size_; ++peer) moved |= take_headers(peer, error);
    for (std::uint64_t s = oldest_; s < posted_ && error == MPI_SUCCESS; ++s) {
      Flight& flight = flight_of(s);
      if (flight.complete || flight.withdrawn) continue;
      if (!flight.matched && !match(flight)) {
        if (family_->failed()) return true;
        continue;
      }
      moved |= advance_flight(flight, error);
    }
    for (int peer = 0; peer < size_; ++peer) {
      moved |= push(peer, error);
      skip_received(peer);
    }
    for (std::uint64_t s = oldest_; s < posted_; ++s) moved |= complete(flight_of(s));
    while (oldest_ < posted_ && flight_of(oldest_).complete) ++oldest_;
    if (error != MPI_SUCCESS) {
      family_->record_error(error, describe_oldest());
      return true;
    }
    return moved;
  }

 private:
  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] Flight& flight_of(std::uint64_t sequence) noexcept {
    return flights_[static_cast<std::size_t>(sequence % ring_slots)];
  }
  [[nodiscard]] bool done(std::uint64_t sequence) noexcept {
    Flight const& flight = flight_of(sequence);
    return flight.sequence != sequence || flight.complete;
  }
  [[nodiscard]] std::string describe_oldest() {
    return oldest_ < posted_ ? zero::detail::describe_call(flight_of(oldest_).op) : "a group";
  }
  /// What a rank called; valid once it has posted.
  [[nodiscard]] Call const& call_of(Flight const& flight, int rank) noexcept {
    if (Control* const control = controls_[index(rank)]; control != nullptr) {
      return control->slot(flight.sequence).call;
    }
    return headers_[static_cast<std::size_t>(flight.sequence % ring_slots) * world_.size() +
                    index(rank)];
  }
  [[nodiscard]] std::uint64_t posted_by(int rank) const noexcept {
    Control const* const control = controls_[index(rank)];
    return control != nullptr ? control->posted.load(std::memory_order_acquire)
                              : posted_by_[index(rank)];
  }

  [[nodiscard]] std::int64_t place_of(void const* buffer, std::size_t bytes) const noexcept {
    if (family_->pool == nullptr || buffer == nullptr) return outside;
    auto const start = reinterpret_cast<std::uintptr_t>(family_->pool->base());
    auto const address = reinterpret_cast<std::uintptr_t>(buffer);
    if (address < start || address + bytes > start + family_->pool->bytes()) return outside;
    return static_cast<std::int64_t>(address - start);
  }

  void begin(Collective const& op, std::uint64_t sequence) {
    Flight& flight = flight_of(sequence);
    flight.begin(op, sequence);
    Control& own = *controls_[index(rank_)];
    Slot& slot = own.slot(sequence);
    std::size_t const element = size_of(op.dtype);
    std::size_t const send_bytes = zero::detail::send_count(op, size_) * element;
    bool const sends = op.op != Op::broadcast || rank_ == op.root;
    Call call = mpi::detail::call_of(op, sequence);
    if (sends && send_bytes <= inline_bytes) {
      if (send_bytes > 0) std::memcpy(slot.copy, op.send, send_bytes);
      call.send_at = inlined;
    } else if (sends) {
      call.send_at = place_of(op.send, send_bytes);
    }
    call.recv_at = place_of(op.recv, zero::detail::receive_count(op, size_) * element);
    flight.send = call.send_at == inlined ? slot.copy : static_cast<std::byte const*>(op.send);
    slot.call = call;
    kernel::publish_streaming_stores();
    posted_ = sequence + 1;
    own.posted.store(posted_, std::memory_order_release);
    for (int peer = 0; peer < size_; ++peer) {
      if (controls_[index(peer)] != nullptr) continue;
      if (int const error = channels_->send_header(peer, call); error != MPI_SUCCESS) {
        family_->record_error(error, zero::detail::describe_call(op));
        return;
      }
    }
  }

  /// Files headers of remote ranks, no more than there are slots for.
  bool take_headers(int peer, int& error) {
    Call const* const call = channels_->header_from(peer);
    if (call == nullptr) return false;
    if (call->notice != Notice::call) {
      left_unwinding_ = call->notice == Notice::left_unwinding;
      left_at_[index(peer)] = call->sequence;
    } else {
      if (call->sequence >= oldest_ + ring_slots) return false;
      headers_[static_cast<std::size_t>(call->sequence % ring_slots) * world_.size() +
               index(peer)] = *call;
      posted_by_[index(peer)] = call->sequence + 1;
    }
    if (int const code = channels_->take_header(peer); code != MPI_SUCCESS) error = code;
    return true;
  }

  /// True once all ranks have started the collective and agree on it.
  bool match(Flight& flight) {
    for (int peer = 0; peer < size_; ++peer) {
      if (posted_by(peer) > flight.sequence) continue;
      note_departure(flight, peer);
      return false;
    }
    Collective const first = call_of(flight, 0).collective();
    for (int peer = 1; peer < size_; ++peer) {
      Collective const other = call_of(flight, peer).collective();
      if (zero::detail::is_same_call(first, other)) continue;
      family_->record({.cause = zero::detail::Failure::Cause::mismatch,
                       .rank = world_rank(peer),
                       .other = world_rank(0),
                       .calls = flight.sequence,
                       .call = other,
                       .other_call = first});
      return false;
    }
    flight.matched = true;
    if (native_ != nullptr && zero::detail::is_reduction(flight.op.op)) {
      bool direct = one_node_;
      for (int peer = 0; peer < size_; ++peer) {
        direct = direct && call_of(flight, peer).send_at != outside;
      }
      flight.native = !direct;
    }
    return true;
  }

  /// A rank that left will never come. One that left while an exception was on its way is given
  /// time to say why.
  void note_departure(Flight const& flight, int peer) {
    Control const* const control = controls_[index(peer)];
    std::uint64_t const left = control != nullptr ? control->left_at.load(std::memory_order_acquire)
                                                  : left_at_[index(peer)];
    if (left > flight.sequence) return;
    bool const unwinding = control != nullptr
                               ? control->left_unwinding.load(std::memory_order_relaxed) != 0
                               : left_unwinding_;
    if (unwinding) {
      auto const now = Clock::now();
      if (departure_ == Clock::time_point{}) departure_ = now;
      if (now - departure_ < grace) return;
    }
    family_->record({.cause = zero::detail::Failure::Cause::left,
                     .rank = world_rank(peer),
                     .calls = left,
                     .call = flight.op});
  }

  /// Memory of a source that this rank may read, or null if it sends chunks.
  [[nodiscard]] std::byte const* direct_source(Flight const& flight, int pass, int source) {
    std::byte const* const pool = pools_[index(source)];
    Control* const control = controls_[index(source)];
    if (control == nullptr) return nullptr;
    Slot& slot = control->slot(flight.sequence);
    std::int64_t const at = pass == 0 ? slot.call.send_at : slot.call.recv_at;
    if (at == inlined) return slot.copy;
    return at == outside || pool == nullptr ? nullptr : pool + at;
  }
  /// True if chunks travel from `source` to `target`; one of them is this rank.
  [[nodiscard]] bool is_sent(Flight const& flight, int pass, int source, int target) {
    if (source == target || flight.native) return false;
    if (transfer(flight.op, pass, source, target, size_).count == 0) return false;
    if (controls_[index(source == rank_ ? target : source)] == nullptr) return true;
    return direct_source(flight, pass, source) == nullptr;
  }

  bool advance_flight(Flight& flight, int& error) {
    if (flight.received) return false;
    if (flight.native) return advance_native(flight, error);
    return is_sum(flight.op, flight.pass) ? advance_sum(flight, error)
                                          : advance_copies(flight, error);
  }

  bool advance_native(Flight& flight, int& error) {
    if (native_turn_ != flight.sequence) {
      // Reductions before this one that MPI does not carry out count as passed.
      while (native_turn_ < flight.sequence && flight_of(native_turn_).matched &&
             (!flight_of(native_turn_).native || flight_of(native_turn_).received)) {
        ++native_turn_;
      }
      if (native_turn_ != flight.sequence) return false;
    }
    std::size_t const before = flight.at;
    if (flight.at < flight.op.count) {
      if (!native_->advance(flight.op, flight.at, error)) return false;
      native_bytes_ += (flight.at - before) * size_of(flight.op.dtype);
    }
    flight.received = flight.at == flight.op.count;
    return true;
  }

  /// One chunk or part of a sum, once all sources are there.
  bool advance_sum(Flight& flight, int& error) {
    std::size_t const element = size_of(flight.op.dtype);
    Transfer const own = transfer(flight.op, 0, rank_, rank_, size_);
    if (flight.at == own.count) return end_pass(flight);
    std::size_t now = std::min(part_bytes / element, own.count - flight.at);
    for (int source = 0; source < size_; ++source) {
      if (!is_sent(flight, 0, source, rank_)) continue;
      if (in_turn_[index(source)] != flight.sequence) return false;
      std::size_t bytes = 0;
      if (channels_->chunk_from(source, bytes) == nullptr) return false;
      now = bytes / element;
    }
    for (int source = 0; source < size_; ++source) {
      std::size_t bytes = 0;
      bool const sent = is_sent(flight, 0, source, rank_);
      std::byte const* const base = source == rank_ ? flight.send
                                    : sent          ? channels_->chunk_from(source, bytes)
                                                    : direct_source(flight, 0, source);
      std::size_t const skip =
          sent ? 0 : transfer(flight.op, 0, source, rank_, size_).from + flight.at;
      inputs_[index(source)] = base + skip * element;
      if (source != rank_) (sent ? exchanged_bytes_ : direct_bytes_) += now * element;
    }
    bool const stream = kernel::is_streaming(kernel::Store::automatic, own.count * element);
    auto* const out = static_cast<std::byte*>(flight.op.recv) + (own.to + flight.at) * element;
    kernel::sum_function(flight.op.dtype, flight.op.accumulate)(
        out,
        inputs_.data(),
        0,
        size_,
        now,
        stream ? kernel::Store::streaming : kernel::Store::cached);
    flight.at += now;
    for (int source = 0; source < size_; ++source) {
      if (!is_sent(flight, 0, source, rank_)) continue;
      flight.pairs[index(source)].in = flight.at;
      if (int const code = channels_->take_chunk(source); code != MPI_SUCCESS) error = code;
    }
    if (flight.at == own.count) end_pass(flight);
    return true;
  }

  /// One chunk or part of what each source gives.
  bool advance_copies(Flight& flight, int& error) {
    bool moved = false;
    bool finished = true;
    std::size_t const element = size_of(flight.op.dtype);
    for (int turn = 0; turn < size_; ++turn) {
      int const source = (rank_ + turn) % size_;
      Transfer const part = transfer(flight.op, flight.pass, source, rank_, size_);
      std::size_t& at = flight.pairs[index(source)].in;
      if (at >= part.count) continue;
      auto* const to = static_cast<std::byte*>(flight.op.recv) + (part.to + at) * element;
      std::size_t now = std::min(part_bytes / element, part.count - at);
      std::byte const* from = nullptr;
      if (is_sent(flight, flight.pass, source, rank_)) {
        std::size_t bytes = 0;
        if (in_turn_[index(source)] == flight.sequence) from = channels_->chunk_from(source, bytes);
        if (from == nullptr) {
          finished = false;
          continue;
        }
        now = bytes / element;
        kernel::copy(to, from, bytes, kernel::Store::cached);
        exchanged_bytes_ += bytes;
        if (int const code = channels_->take_chunk(source); code != MPI_SUCCESS) error = code;
      } else {
        if (part.result && !is_summed(flight, source)) {
          finished = false;
          continue;
        }
        from = source == rank_ ? flight.send : direct_source(flight, flight.pass, source);
        std::size_t const whole = part.count * element;
        bool const stream = kernel::is_streaming(kernel::Store::automatic, whole);
        kernel::copy(to,
                     from + (part.from + at) * element,
                     now * element,
                     stream ? kernel::Store::streaming : kernel::Store::cached);
        if (source != rank_) direct_bytes_ += now * element;
      }
      at += now;
      moved = true;
      finished = finished && at == part.count;
    }
    if (finished) return end_pass(flight);
    return moved;
  }

  [[nodiscard]] bool is_summed(Flight const& flight, int source) const noexcept {
    return controls_[index(source)]->slot(flight.sequence).summed.load(std::memory_order_acquire) >
           flight.sequence;
  }

  bool end_pass(Flight& flight) {
    kernel::publish_streaming_stores();
    if (flight.pass + 1 < passes(flight.op)) {
      controls_[index(rank_)]
          ->slot(flight.sequence)
          .summed.store(flight.sequence + 1, std::memory_order_release);
      ++flight.pass;
      flight.at = 0;
      for (auto& pair : flight.pairs) pair.in = 0;
    } else {
      flight.received = true;
    }
    return true;
  }

  /// Copies chunks for a peer into staging and sends them, in the order of the calls.
  bool push(int peer, int& error) {
    bool moved = false;
    for (; out_turn_[index(peer)] < posted_; ++out_turn_[index(peer)]) {
      Flight& flight = flight_of(out_turn_[index(peer)]);
      if (!flight.matched || flight.withdrawn) return moved;
      Flight::Pair& pair = flight.pairs[index(peer)];
      for (; pair.out_pass < passes(flight.op); ++pair.out_pass, pair.out = 0) {
        if (!is_sent(flight, pair.out_pass, rank_, peer)) continue;
        if (pair.out_pass > flight.pass) return moved;
        Transfer const part = transfer(flight.op, pair.out_pass, rank_, peer, size_);
        std::size_t const element = size_of(flight.op.dtype);
        auto const* const from =
            part.result ? static_cast<std::byte const*>(flight.op.recv) : flight.send;
        while (pair.out < part.count) {
          std::byte* const room = channels_->room_for(peer);
          if (room == nullptr) return moved;
          std::size_t const now =
              std::min(channels_->chunk_bytes() / element, part.count - pair.out);
          std::memcpy(room, from + (part.from + pair.out) * element, now * element);
          if (int const code = channels_->send_chunk(peer, now, element); code != MPI_SUCCESS) {
            error = code;
            return moved;
          }
          pair.out += now;
          moved = true;
        }
      }
    }
    return moved;
  }

  /// Moves on to the next collective of which a peer sends chunks.
  void skip_received(int peer) {
    for (std::uint64_t& turn = in_turn_[index(peer)]; turn < posted_; ++turn) {
      Flight const& flight = flight_of(turn);
      if (flight.received) continue;
      if (!flight.matched || expects(flight, peer)) return;
    }
  }
  [[nodiscard]] bool expects(Flight const& flight, int source) {
    for (int pass = flight.pass; pass < passes(flight.op); ++pass) {
      std::size_t const got = pass == flight.pass ? flight.pairs[index(source)].in : 0;
      if (is_sent(flight, pass, source, rank_) &&
          got < transfer(flight.op, pass, source, rank_, size_).count) {
        return true;
      }
    }
    return false;
  }

  /// Done here once nothing is to come or to go; done altogether once no peer reads this rank's
  /// memory any more.
  bool complete(Flight& flight) {
    if (flight.complete || !flight.received) return false;
    bool moved = false;
    if (!flight.told) {
      for (std::uint64_t const turn : out_turn_) {
        if (turn <= flight.sequence) return false;
      }
      controls_[index(rank_)]
          ->slot(flight.sequence)
          .done.store(flight.sequence + 1, std::memory_order_release);
      flight.told = moved = true;
    }
    for (Control* const control : controls_) {
      if (control != nullptr &&
          control->slot(flight.sequence).done.load(std::memory_order_acquire) <= flight.sequence) {
        return moved;
      }
    }
    flight.complete = true;
    return true;
  }

  /// Works on everything until `ready()`; gives up when nothing moves for the deadline.
  template <class Ready>
  void finish(Lock& lock, Collective const& op, Ready ready) {
    Backoff backoff;
    std::uint64_t events = family_->events();
    auto last = Clock::now();
    while (!ready()) {
      family_->advance();
      throw_if_failed(lock, op);
      if (ready()) return;
      if (family_->events() != events) {
        events = family_->events();
        last = Clock::now();
        backoff.reset();
        continue;
      }
      if (std::chrono::duration<double>(Clock::now() - last).count() >
          family_->options.deadline_s) {
        record_late(op);
        throw_if_failed(lock, op);
      }
      lock.unlock();
      backoff.pause();
      lock.lock();
    }
  }

  /// Names who did not arrive, or who arrived and then fell silent, at the oldest collective.
  void record_late(Collective const& op) {
    Flight const& flight = flight_of(oldest_ < posted_ ? oldest_ : posted_ - 1);
    zero::detail::Failure failure{.cause = zero::detail::Failure::Cause::late, .call = op};
    failure.call = flight.op;
    failure.seconds = family_->options.deadline_s;
    for (int peer = size_ - 1; peer >= 0; --peer) {
      if (posted_by(peer) > flight.sequence) continue;
      failure.more += failure.rank >= 0 ? 1 : 0;
      failure.rank = world_rank(peer);
    }
    if (failure.rank >= 0) {
      family_->record(failure);
      return;
    }
    std::string silent;
    for (int peer = 0; peer < size_; ++peer) {
      Control* const control = controls_[index(peer)];
      bool const reads =
          control != nullptr && control->slot(flight.sequence).done.load() <= flight.sequence;
      bool const sends =
          !flight.received && is_sent(flight, flight.pass, peer, rank_) &&
          flight.pairs[index(peer)].in < transfer(flight.op, flight.pass, peer, rank_, size_).count;
      bool const takes = out_turn_[index(peer)] <= flight.sequence;
      if (peer == rank_ || !(reads || sends || takes)) continue;
      silent += (silent.empty() ? "rank " : ", rank ") + std::to_string(world_rank(peer));
    }
    family_->record((silent.empty() ? "every rank" : silent) + " fell silent for " +
                    std::to_string(failure.seconds) + " s in [" +
                    zero::detail::describe_call(flight.op) + "]");
  }

  void throw_if_failed(Lock& lock, Collective const& op) {
    if (!family_->withdrawn.empty()) family_->record(std::exchange(family_->withdrawn, {}));
    if (!family_->failed()) return;
    std::string message = family_->failure();
    lock.unlock();
    fail(ErrorKind::communication,
         std::move(message),
         {.rank = world_rank(rank_),
          .operation = zero::detail::operation_name(op),
          .bucket = op.bucket});
  }

  std::shared_ptr<Family> family_;
  MPI_Comm comm_;
  std::vector<int> world_;
  int rank_;
  int size_;
  bool one_node_ = true;
  std::shared_ptr<Window> window_;
  std::vector<Control*> controls_;  ///< by rank; null where no memory is shared
  std::vector<std::byte*> pools_;
  std::unique_ptr<Channels> channels_;
  std::unique_ptr<NativeReduction> native_;
  std::vector<Call> headers_;             ///< of remote ranks, by slot and rank
  std::vector<std::uint64_t> posted_by_;  ///< calls of remote ranks
  std::vector<std::uint64_t> left_at_;    ///< where remote ranks left
  std::vector<std::uint64_t> in_turn_;    ///< of whose chunks are next, by source
  std::vector<std::uint64_t> out_turn_;   ///< of whose chunks are next, by target
  std::vector<void const*> inputs_;
  Flight flights_[ring_slots];
  std::uint64_t posted_ = 0;
  std::uint64_t oldest_ = 0;
  std::uint64_t native_turn_ = 0;
  bool left_unwinding_ = false;
  Clock::time_point departure_{};
  std::uint64_t direct_bytes_ = 0;
  std::uint64_t exchanged_bytes_ = 0;
  std::uint64_t native_bytes_ = 0;
};

}  // namespace zero::inline v0_1::mpi::detail
