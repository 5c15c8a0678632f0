/// @file
/// Messages between the ranks of a group: headers that announce calls, and chunks of data.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/lane.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/window.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Two chunks to and two from every peer, and one header from each. Chunks between ranks of a node
/// lie in their window; MPI carries all others. All memory that MPI works on is the library's and
/// of constant size: what MPI does not give back after a failure is kept on purpose, and the
/// trainer's buffers are never part of a message.
class Channels {
 public:
  Channels(MPI_Comm comm, Peers const& peers, Window const& window, Options const& options)
      : comm_(comm),
        peers_(&peers),
        window_(&window),
        limit_(options.message_bytes),
        chunk_(detail::chunk_bytes(options.exchange_bytes, options.message_bytes, peers.size())),
        memory_(std::make_unique<Memory>()),
        first_chunk_(ranks(), 0),
        requests_(ranks() * per_peer, MPI_REQUEST_NULL),
        headers_out_(ranks() * ring_slots, MPI_REQUEST_NULL),
        indices_(requests_.size()),
        statuses_(requests_.size()),
        arrived_(ranks() * 2, 0),
        leaving_for_(ranks() * 2, 0),
        head_in_(ranks(), 0),
        head_out_(ranks(), 0),
        header_here_(ranks(), 0) {
    std::size_t chunks = 0;
    for (int peer = 0; peer < peers.size(); ++peer) {
      if (peers.is_near(peer)) continue;
      first_chunk_[index(peer)] = chunks;
      chunks += 4;
    }
    by_messages_ = chunks > 0;
    memory_->staging.reset(new std::byte[chunks * chunk_]);
    memory_->headers_in.resize(ranks());
    memory_->headers_out.resize(ring_slots);
    held_ = chunks * chunk_ + (ranks() + ring_slots) * sizeof(Call);
    for (int peer = 0; peer < peers.size(); ++peer) {
      if (peers.is_near(peer)) continue;
      receive_header(peer);
      for (int slot = 0; slot < 2; ++slot) receive(peer, slot);
    }
  }
  Channels(Channels const&) = delete;
  Channels& operator=(Channels const&) = delete;
  ~Channels() {
    if (forsaken_ || !is_running()) {
      static_cast<void>(memory_.release());
      return;
    }
    cancel();
    if (!settled()) static_cast<void>(memory_.release());
  }
  /// Bytes that `size` ranks without shared memory hold, each; fewer where some share memory.
  [[nodiscard]] static constexpr std::size_t planned_bytes(int size, std::size_t chunk) noexcept {
    auto const ranks = static_cast<std::size_t>(size);
    return (ranks - 1) * 4 * chunk + (ranks + ring_slots) * sizeof(Call);
  }
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  /// MPI must not be called any more: whatever it holds stays its own.
  void forsake() noexcept { forsaken_ = true; }

  [[nodiscard]] std::size_t chunk_bytes() const noexcept { return chunk_; }

  /// Lets MPI work and notes what has arrived or left; true if anything did.
  /// @param error  MPI's code if something went wrong
  bool poll(int& error) {
    if (!by_messages_) return false;
    int count = 0;
    error = MPI_Testsome(static_cast<int>(requests_.size()),
                         requests_.data(),
                         &count,
                         indices_.data(),
                         statuses_.data());
    if (error != MPI_SUCCESS) return false;
    if (count == MPI_UNDEFINED) return false;
    for (int i = 0; i < count; ++i) {
      auto const at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
      std::size_t const peer = at / per_peer;
      std::size_t const what = at % per_peer;
      if (what == header) header_here_[peer] = 1;
      if (what == in || what == in + 1) {
        int bytes = 0;
        MPI_Get_count(&statuses_[static_cast<std::size_t>(i)], MPI_BYTE, &bytes);
        arrived_[peer * 2 + (what - in)] = static_cast<std::size_t>(bytes) + 1;
      }
      if (what >= out) --leaving_[ring_slot(leaving_for_[peer * 2 + (what - out)])];
    }
    return count > 0;
  }

  /// The next header of a peer, or null.
  [[nodiscard]] Call const* header_from(int peer) const noexcept {
    return header_here_[index(peer)] != 0 ? &memory_->headers_in[index(peer)] : nullptr;
  }
  int take_header(int peer) {
    header_here_[index(peer)] = 0;
    return receive_header(peer);
  }
  /// True once MPI holds nothing that this rank has sent for a collective. Until then somebody has
  /// to call MPI: it may move data only while it is called.
  /// @param error  MPI's code if something went wrong
  [[nodiscard]] bool has_delivered(std::uint64_t sequence, int& error) {
    if (!by_messages_) return true;
    if (leaving_[ring_slot(sequence)] > 0) return false;
    int done = 0;
    int const code = MPI_Testall(
        peers_->size(), &headers_out_[ring_slot(sequence) * ranks()], &done, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS) error = code;
    return code == MPI_SUCCESS && done != 0;
  }
  /// True while MPI holds something that this rank has sent a peer for a collective.
  [[nodiscard]] bool delivers(int peer, std::uint64_t sequence) const noexcept {
    int gone = 1;
    if (by_messages_) {
      MPI_Request_get_status(
          headers_out_[ring_slot(sequence) * ranks() + index(peer)], &gone, MPI_STATUS_IGNORE);
    }
    if (gone == 0) return true;
    for (std::size_t slot = 0; slot < 2; ++slot) {
      bool const held = request(peer, out + slot) != MPI_REQUEST_NULL;
      if (held && leaving_for_[index(peer) * 2 + slot] == sequence) return true;
    }
    return false;
  }
  int send_header(int peer, Call const& call) {
    std::size_t const slot = ring_slot(call.sequence);
    memory_->headers_out[slot] = call;
    return MPI_Isend(&memory_->headers_out[slot],
                     sizeof(Call),
                     MPI_BYTE,
                     peer,
                     header_tag,
                     comm_,
                     &headers_out_[slot * ranks() + index(peer)]);
  }

  /// A last header, from a destructor: nobody waits for it any more.
  void send_farewell(int peer, Call const& call) noexcept {
    auto* const words = new (std::nothrow) Call(call);
    if (words == nullptr) return;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(words, sizeof(Call), MPI_BYTE, peer, header_tag, comm_, &request) !=
        MPI_SUCCESS) {
      return;
    }
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) delete words;
  }

  /// The oldest chunk of a peer that was not taken, or null; `bytes` is its size.
  [[nodiscard]] std::byte const* chunk_from(int peer, std::size_t& bytes) const noexcept {
    if (peers_->is_near(peer)) {
      Lane const& lane = lane_from(peer);
      int const slot = lane.arrived();
      if (slot < 0) return nullptr;
      bytes = lane.bytes[slot];
      return window_->chunk(place(peer), place(peers_->rank()), slot);
    }
    std::size_t const arrived = arrived_[index(peer) * 2 + head_in_[index(peer)]];
    if (arrived == 0) return nullptr;
    bytes = arrived - 1;
    return staging(peer, head_in_[index(peer)]);
  }
  int take_chunk(int peer) {
    if (peers_->is_near(peer)) {
      lane_from(peer).take();
      return MPI_SUCCESS;
    }
    std::uint8_t& head = head_in_[index(peer)];
    arrived_[index(peer) * 2 + head] = 0;
    int const slot = head;
    head ^= 1u;
    return receive(peer, slot);
  }

  /// Memory for the next chunk to a peer, or null while both are on their way.
  [[nodiscard]] std::byte* room_for(int peer) const noexcept {
    if (peers_->is_near(peer)) {
      int const slot = lane_to(peer).room();
      return slot < 0 ? nullptr : window_->chunk(place(peers_->rank()), place(peer), slot);
    }
    std::uint8_t const head = head_out_[index(peer)];
    return request(peer, out + head) == MPI_REQUEST_NULL ? staging(peer, 2 + head) : nullptr;
  }
  /// Sends what was put into the room, a part of collective `sequence`.
  int send_chunk(int peer, std::uint64_t sequence, std::size_t bytes) {
    if (peers_->is_near(peer)) {
      lane_to(peer).send(bytes);
      return MPI_SUCCESS;
    }
    std::uint8_t const head = head_out_[index(peer)];
    head_out_[index(peer)] ^= 1u;
    leaving_for_[index(peer) * 2 + head] = sequence;
    ++leaving_[ring_slot(sequence)];
    return MPI_Isend(staging(peer, 2 + head),
                     narrow_count(bytes, 1, limit_),
                     MPI_BYTE,
                     peer,
                     data_tag,
                     comm_,
                     &requests_[index(peer) * per_peer + out + head]);
  }

  /// Ends the receives that wait for nothing.
  void cancel() noexcept {
    for (std::size_t at = 0; at < requests_.size(); ++at) {
      if (at % per_peer < out && requests_[at] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[at]);
    }
  }
  /// True if MPI holds no memory any more.
  [[nodiscard]] bool settled() noexcept { return all_done(requests_) && all_done(headers_out_); }

 private:
  static constexpr std::size_t header = 0;
  static constexpr std::size_t in = 1;
  static constexpr std::size_t out = 3;
  static constexpr std::size_t per_peer = 5;

  struct Memory {
    std::unique_ptr<std::byte[]> staging;
    std::vector<Call> headers_in;
    std::vector<Call> headers_out;
  };

  [[nodiscard]] static constexpr std::size_t index(int peer) noexcept {
    return static_cast<std::size_t>(peer);
  }
  [[nodiscard]] static constexpr std::size_t ring_slot(std::uint64_t sequence) noexcept {
    return static_cast<std::size_t>(sequence % ring_slots);
  }
  [[nodiscard]] std::size_t ranks() const noexcept { return index(peers_->size()); }
  [[nodiscard]] int place(int peer) const noexcept { return peers_->topology().place(peer); }
  [[nodiscard]] Lane& lane_to(int peer) const noexcept {
    return window_->lane(place(peers_->rank()), place(peer));
  }
  [[nodiscard]] Lane& lane_from(int peer) const noexcept {
    return window_->lane(place(peer), place(peers_->rank()));
  }
  [[nodiscard]] MPI_Request request(int peer, std::size_t what) const noexcept {
    return requests_[index(peer) * per_peer + what];
  }
  /// Chunks 0 and 1 come from the peer, 2 and 3 go there.
  [[nodiscard]] std::byte* staging(int peer, int slot) const noexcept {
    return memory_->staging.get() + (first_chunk_[index(peer)] + index(slot)) * chunk_;
  }

  [[nodiscard]] static bool all_done(std::vector<MPI_Request>& requests) noexcept {
    int done = 0;
    return MPI_Testall(
               static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE) ==
               MPI_SUCCESS &&
           done != 0;
  }

  int receive_header(int peer) {
    return MPI_Irecv(&memory_->headers_in[index(peer)],
                     sizeof(Call),
                     MPI_BYTE,
                     peer,
                     header_tag,
                     comm_,
                     &requests_[index(peer) * per_peer + header]);
  }
  int receive(int peer, int slot) {
    return MPI_Irecv(staging(peer, slot),
                     narrow_count(chunk_, 1, limit_),
                     MPI_BYTE,
                     peer,
                     data_tag,
                     comm_,
                     &requests_[index(peer) * per_peer + in + index(slot)]);
  }

  MPI_Comm comm_;
  Peers const* peers_;
  Window const* window_;
  std::size_t limit_;
  std::size_t chunk_;
  std::unique_ptr<Memory> memory_;
  std::vector<std::size_t> first_chunk_;  ///< in staging, by peer
  std::size_t held_ = 0;
  bool by_messages_ = false;  ///< is any peer on another node?
  bool forsaken_ = false;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Request> headers_out_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::size_t> arrived_;        ///< by slot: bytes + 1
  std::vector<std::uint64_t> leaving_for_;  ///< by slot: the collective of the chunk sent last
  std::array<std::uint32_t, ring_slots> leaving_{};  ///< chunks that MPI holds, by collective
  std::vector<std::uint8_t> head_in_;
  std::vector<std::uint8_t> head_out_;
  std::vector<std::uint8_t> header_here_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
