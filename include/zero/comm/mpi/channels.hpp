/// @file
/// Chunks of data between the ranks of a group.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/lane.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/requests.hpp"
#include "zero/comm/mpi/window.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Two chunks to and two from every peer that data is exchanged with. Chunks between ranks of a
/// node lie in their window; MPI carries all others, in memory that is taken when the first chunk
/// goes one way. All memory that MPI works on is the library's and of constant size; the trainer's
/// buffers are never part of a message.
class Channels {
 public:
  Channels(MPI_Comm comm, Peers const& peers, Window const& window, Options const& options)
      : peers_(&peers),
        window_(&window),
        limit_(options.message_bytes),
        chunk_(detail::chunk_bytes(options.exchange_bytes, options.message_bytes, peers.size())),
        requests_(comm, per_link * (ranks() - peers.near().size())),
        numbers_(peers.near().size() < ranks() ? ranks() : 0, none) {}

  /// Bytes that `size` ranks without shared memory hold at most, each; fewer where some share
  /// memory.
  [[nodiscard]] static constexpr std::size_t planned_bytes(int size, std::size_t chunk) noexcept {
    return (index(size) - 1) * per_link * chunk;
  }
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  /// Messages that this rank has sent.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  void forsake() noexcept { requests_.forsake(); }

  [[nodiscard]] std::size_t chunk_bytes() const noexcept { return chunk_; }

  /// Lets MPI work and notes what has arrived or left; true if anything did.
  /// @param error  MPI's code if something went wrong
  bool poll(int& error) {
    if (error_ != MPI_SUCCESS) error = error_;
    return requests_.poll(error, [&](std::size_t number, MPI_Status const& status) {
      Link& link = links_[number / per_link];
      std::size_t const what = number % per_link;
      if (what < out) {
        int bytes = 0;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        link.arrived[what] = index(bytes) + 1;
      } else {
        --leaving_[ring_slot(link.leaving_for[what - out])];
      }
    });
  }

  /// True once MPI holds nothing that this rank has sent for a collective. Until then somebody has
  /// to call MPI: it may move data only while it is called.
  [[nodiscard]] bool has_delivered(std::uint64_t sequence) const noexcept {
    return leaving_[ring_slot(sequence)] == 0;
  }
  /// True while MPI holds something that this rank has sent a peer for a collective.
  [[nodiscard]] bool delivers(int peer, std::uint64_t sequence) const noexcept {
    if (peers_->is_near(peer) || numbers_[index(peer)] == none) return false;
    std::size_t const number = numbers_[index(peer)];
    for (std::size_t slot = 0; slot < 2; ++slot) {
      bool const held = requests_.under_way(number * per_link + out + slot);
      if (held && links_[number].leaving_for[slot] == sequence) return true;
    }
    return false;
  }

  /// The oldest chunk of a peer that was not taken, or null; `bytes` is its size.
  [[nodiscard]] std::byte const* chunk_from(int peer, std::size_t& bytes) {
    if (peers_->is_near(peer)) {
      Lane const& lane = lane_from(peer);
      int const slot = lane.arrived();
      if (slot < 0) return nullptr;
      bytes = lane.bytes[slot];
      return window_->chunk(place(peer), place(peers_->rank()), slot);
    }
    std::size_t const number = number_of(peer);
    Link& link = links_[number];
    if (open(link.in)) {
      for (std::size_t slot = 0; slot < 2; ++slot) keep(receive(peer, slot));
    }
    std::size_t const arrived = link.arrived[link.head_in];
    if (arrived == 0) return nullptr;
    bytes = arrived - 1;
    return link.in.get() + link.head_in * chunk_;
  }
  /// A chunk that `chunk_from` has given is used no more.
  int take_chunk(int peer) {
    if (peers_->is_near(peer)) {
      lane_from(peer).take();
      return MPI_SUCCESS;
    }
    Link& link = links_[number_of(peer)];
    std::size_t const slot = link.head_in;
    link.arrived[slot] = 0;
    link.head_in ^= 1u;
    return receive(peer, slot);
  }

  /// Memory for the next chunk to a peer, or null while both are on their way.
  [[nodiscard]] std::byte* room_for(int peer) {
    if (peers_->is_near(peer)) {
      int const slot = lane_to(peer).room();
      return slot < 0 ? nullptr : window_->chunk(place(peers_->rank()), place(peer), slot);
    }
    std::size_t const number = number_of(peer);
    Link& link = links_[number];
    open(link.out);
    bool const full = requests_.under_way(number * per_link + out + link.head_out);
    return full ? nullptr : link.out.get() + link.head_out * chunk_;
  }
  /// Sends what was put into the room, a part of collective `sequence`.
  int send_chunk(int peer, std::uint64_t sequence, std::size_t bytes) {
    if (peers_->is_near(peer)) {
      lane_to(peer).send(bytes);
      return MPI_SUCCESS;
    }
    std::size_t const number = number_of(peer);
    Link& link = links_[number];
    std::size_t const slot = link.head_out;
    link.head_out ^= 1u;
    link.leaving_for[slot] = sequence;
    ++leaving_[ring_slot(sequence)];
    ++sent_;
    return requests_.send(number * per_link + out + slot,
                          link.out.get() + slot * chunk_,
                          narrow_count(bytes, 1, limit_),
                          peer,
                          data_tag);
  }

  /// Ends the receives that wait for nothing.
  void cancel() noexcept { requests_.cancel(); }
  /// True if MPI holds no memory any more.
  [[nodiscard]] bool settled() noexcept { return requests_.settled(); }

 private:
  static constexpr std::size_t out = 2;
  static constexpr std::size_t per_link = 4;
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  /// What goes on between this rank and a peer on another node.
  struct Link {
    std::unique_ptr<std::byte[]> in{};   ///< two chunks, once one is expected
    std::unique_ptr<std::byte[]> out{};  ///< two chunks, once one is to go
    std::size_t arrived[2] = {};         ///< bytes + 1
    std::uint64_t leaving_for[2] = {};   ///< the collective of the chunk sent last
    std::size_t head_in = 0;
    std::size_t head_out = 0;
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

  /// The link to a peer on another node, which there is from now on.
  [[nodiscard]] std::size_t number_of(int peer) {
    std::uint32_t& number = numbers_[index(peer)];
    if (number == none) {
      number = static_cast<std::uint32_t>(links_.size());
      links_.emplace_back();
      requests_.add(out, per_link - out);
    }
    return number;
  }
  /// True if the memory of two chunks was not there before.
  bool open(std::unique_ptr<std::byte[]>& chunks) {
    if (chunks != nullptr) return false;
    chunks.reset(new std::byte[2 * chunk_]);
    held_ += 2 * chunk_;
    return true;
  }
  int receive(int peer, std::size_t slot) {
    std::size_t const number = number_of(peer);
    return requests_.receive(number * per_link + slot,
                             links_[number].in.get() + slot * chunk_,
                             narrow_count(chunk_, 1, limit_),
                             peer,
                             data_tag);
  }
  void keep(int code) noexcept {
    if (code != MPI_SUCCESS) error_ = code;
  }

  Peers const* peers_;
  Window const* window_;
  std::size_t limit_;
  std::size_t chunk_;
  Requests<std::vector<Link>> requests_;
  std::vector<Link>& links_ = requests_.memory();    ///< in the order of their first chunks
  std::vector<std::uint32_t> numbers_;               ///< of links, by peer
  std::array<std::uint32_t, ring_slots> leaving_{};  ///< chunks that MPI holds, by collective
  std::size_t held_ = 0;
  std::uint64_t sent_ = 0;
  int error_ = MPI_SUCCESS;  ///< of a receive that could not begin
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
