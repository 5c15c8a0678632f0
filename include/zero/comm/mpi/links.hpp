/// @file
/// Chunks of data between ranks that do not share memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/comm/mpi/requests.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Tags on a group's communicator.
inline constexpr int open_tag = 1;
inline constexpr int data_tag = 2;
inline constexpr int credit_tag = 3;

/// One direction between two ranks of a group is a link. A sender may have `chunks_in` chunks on
/// their way or at a receiver that has not taken them. More it sends when it hears what was taken:
/// neither the end of MPI's sends nor a matched message says that. So nothing of a collective lies
/// in MPI's own queue but the first head of each link.
///
/// A link is opened by a head without data. The receiver then has memory for chunks, and says so.
/// All memory that MPI works on is the library's and of constant size; the trainer's buffers are
/// never part of a message.
class Links {
 public:
  Links(MPI_Comm comm, int size, bool alone, Options const& options)
      : chunk_(detail::chunk_bytes(options.exchange_bytes, options.message_bytes, size)),
        requests_(comm, alone ? 0 : 1 + per_peer * (index(size) - 1)),
        numbers_(alone ? 0 : index(size), none) {
    if (alone) return;
    // No message is larger.
    static_cast<void>(narrow_count(stride(), 1, options.message_bytes));
    requests_.add(1, 0);
    check(receive_opening(), "MPI_Irecv");
  }

  /// Bytes that `size` ranks without shared memory hold at most, each; fewer where some share
  /// memory.
  [[nodiscard]] static constexpr std::size_t planned_bytes(int size, std::size_t chunk) noexcept {
    return (index(size) - 1) * (chunks_in + chunks_out) * (sizeof(Head) + chunk);
  }
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  /// Messages with heads or data that this rank has sent.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  /// Bytes in them.
  [[nodiscard]] std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }
  /// Messages that said what was taken.
  [[nodiscard]] std::uint64_t credits_sent() const noexcept { return credits_sent_; }
  /// Bytes of data that a message carries at most.
  [[nodiscard]] std::size_t chunk_bytes() const noexcept { return chunk_; }
  void forsake() noexcept { requests_.forsake(); }

  /// Lets MPI work and notes what has arrived or left; true if anything did.
  /// @param error  MPI's code if something went wrong
  bool poll(int& error) {
    return requests_.poll(error, [&](std::size_t number, MPI_Status const& status) {
      if (number == 0) {
        note(begin_receiving(status.MPI_SOURCE, requests_.memory().opening), error);
        note(receive_opening(), error);
        return;
      }
      Link& link = *links()[(number - 1) / per_peer];
      std::size_t const what = (number - 1) % per_peer;
      if (what < chunks_in) {
        int bytes = 0;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        link.in.arrived[what] = index(bytes) + 1;
      } else if (what == credit_in) {
        link.out.allowed = link.credit_in;
        note(receive_credit(link), error);
      } else if (what == credit_out) {
        --credits_leaving_;
        note(give_credit(link, chunks_in / 2), error);
      } else {
        left(link, what - first_out);
      }
    });
  }

  /// Looks at what has come from every peer, in order, as far as heads are judged.
  /// @param judge  `judge(peer, head)`: how many chunks the peer sends for that call, at least 1; 0
  ///   if that cannot be said yet, or never
  template <class Judge>
  void look(Judge const& judge) {
    for (std::unique_ptr<Link> const& link : links()) {
      In& in = link->in;
      for (;;) {
        if (in.opens) {
          std::uint32_t const chunks = judge(link->peer, in.opening);
          if (chunks == 0) break;
          in.opens = false;
          in.empty = in.opening.call.count == 0;
          in.follow = in.empty ? 0 : chunks;
          continue;
        }
        std::size_t const slot = in.judged % chunks_in;
        if (in.arrived[slot] == 0 || in.judged == in.taken + chunks_in) break;
        in.headed[slot] = in.follow == 0;
        if (in.headed[slot]) {
          Head head;
          std::memcpy(&head, in.memory.get() + slot * stride(), sizeof head);
          std::uint32_t const chunks = judge(link->peer, head);
          if (chunks == 0) break;
          in.follow = chunks;
        }
        --in.follow;
        ++in.judged;
      }
    }
  }

  /// The oldest chunk of a peer that was judged and not taken, or null; `bytes` is its size.
  [[nodiscard]] std::byte const* chunk_from(int peer, std::size_t& bytes) const noexcept {
    if (numbers_[index(peer)] == none) return nullptr;
    In const& in = link(peer).in;
    bytes = 0;
    if (in.empty) return reinterpret_cast<std::byte const*>(&in);
    if (in.taken == in.judged) return nullptr;
    std::size_t const slot = in.taken % chunks_in;
    std::size_t const skip = in.headed[slot] ? sizeof(Head) : 0;
    bytes = in.arrived[slot] - 1 - skip;
    return in.memory.get() + slot * stride() + skip;
  }
  /// A chunk that `chunk_from` has given is used no more.
  /// @return MPI's code
  int take(int peer) {
    In& in = link(peer).in;
    if (std::exchange(in.empty, false)) return MPI_SUCCESS;
    std::size_t const slot = in.taken++ % chunks_in;
    in.arrived[slot] = 0;
    int const code = receive(link(peer), slot);
    return code == MPI_SUCCESS ? give_credit(link(peer), chunks_in / 2) : code;
  }

  /// Has this rank asked a peer to receive?
  [[nodiscard]] bool is_open_to(int peer) const noexcept {
    return numbers_[index(peer)] != none && link(peer).out.memory != nullptr;
  }
  [[nodiscard]] bool is_open_from(int peer) const noexcept {
    return numbers_[index(peer)] != none && link(peer).in.memory != nullptr;
  }
  /// Memory for the data of the next chunk to a peer whom this rank has asked, or null.
  [[nodiscard]] std::byte* room_for(int peer) noexcept {
    Link& link = this->link(peer);
    bool const full = link.out.sent == link.out.allowed || is_leaving(link, next_out(link));
    return full ? nullptr : link.out.memory.get() + next_out(link) * stride() + sizeof(Head);
  }
  /// Sends what was put into the room, a part of collective `number`. The first message to a peer
  /// is a head alone, and asks it to receive.
  /// @param head  null if an earlier message for the collective had it
  /// @return MPI's code
  int send(int peer, std::uint64_t number, Head const* head, std::size_t bytes) {
    Link& link = make(peer);
    int code = MPI_SUCCESS;
    bool const opens = link.out.memory == nullptr;
    if (opens) {
      link.out.memory = chunks(chunks_out);
      code = receive_credit(link);
    } else {
      ++link.out.sent;
    }
    std::size_t const slot = next_out(link);
    std::byte* data = link.out.memory.get() + slot * stride() + sizeof(Head);
    if (head != nullptr) {
      std::memcpy(data -= sizeof *head, head, sizeof *head);
      bytes += sizeof *head;
    }
    ++link.out.messages;
    link.out.leaving_for[slot] = number;
    ++leaving_[ring_slot(number)];
    ++sent_;
    sent_bytes_ += bytes;
    std::size_t const request = link.first + first_out + slot;
    int const tag = opens ? open_tag : data_tag;
    if (code == MPI_SUCCESS) code = requests_.send(request, data, bytes, peer, tag);
    // What is small has left already.
    if (code == MPI_SUCCESS && requests_.look(request)) left(link, slot);
    return code;
  }

  /// True once MPI holds nothing that this rank has sent for a collective. Until then somebody has
  /// to call MPI: it may move data only while it is called.
  [[nodiscard]] bool has_delivered(std::uint64_t number) const noexcept {
    return leaving_[ring_slot(number)] == 0 && credits_leaving_ == 0;
  }
  /// True while MPI holds something that this rank has sent a peer for a collective, or what it has
  /// told it to have taken.
  [[nodiscard]] bool delivers(int peer, std::uint64_t number) const noexcept {
    if (numbers_[index(peer)] == none) return false;
    Link const& link = this->link(peer);
    bool found = requests_.under_way(link.first + credit_out);
    for (std::size_t slot = 0; slot < chunks_out; ++slot) {
      found = found || (is_leaving(link, slot) && link.out.leaving_for[slot] == number);
    }
    return found;
  }

  /// Says what was taken, wherever that was not said yet.
  /// @return MPI's code
  int settle() {
    for (std::unique_ptr<Link> const& link : links()) {
      if (link->in.memory == nullptr) continue;
      if (int const code = give_credit(*link, 1); code != MPI_SUCCESS) return code;
    }
    return MPI_SUCCESS;
  }
  /// True once peers have said to have taken all that this rank has sent, and been told the same.
  [[nodiscard]] bool is_settled() const noexcept {
    for (std::unique_ptr<Link> const& link : links()) {
      Out const& out = link->out;
      if (out.memory != nullptr && out.allowed != out.sent + chunks_in) return false;
      if (link->in.memory != nullptr && link->in.credited != link->in.taken) return false;
    }
    return true;
  }
  /// Ends the receives that wait for nothing.
  void cancel() noexcept { requests_.cancel(); }
  /// True if MPI holds no memory any more.
  [[nodiscard]] bool is_idle() noexcept { return requests_.settled(); }

 private:
  // What requests of a peer are for: receives, then sends.
  static constexpr std::size_t credit_in = chunks_in;
  static constexpr std::size_t first_out = credit_in + 1;
  static constexpr std::size_t credit_out = first_out + chunks_out;
  static constexpr std::size_t per_peer = credit_out + 1;
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  struct In {
    std::unique_ptr<std::byte[]> memory{};  ///< once the peer has asked
    std::size_t arrived[chunks_in] = {};    ///< bytes + 1
    bool headed[chunks_in] = {};
    bool opens = false;  ///< the first head has come and was not judged
    bool empty = false;  ///< and is a chunk without data, not taken
    Head opening{};
    std::uint32_t follow = 0;  ///< chunks still to come for the last head that was judged
    std::uint64_t judged = 0;
    std::uint64_t taken = 0;
    std::uint64_t credited = ~std::uint64_t{0};  ///< taken, as the peer was told last
  };
  struct Out {
    std::unique_ptr<std::byte[]> memory{};       ///< once this rank has asked
    std::uint64_t leaving_for[chunks_out] = {};  ///< the collective of what was sent last
    std::uint64_t messages = 0;                  ///< the first is the opening
    std::uint64_t sent = 0;                      ///< chunks
    std::uint64_t allowed = 0;                   ///< chunks, by what the peer has told
  };
  /// What goes on between this rank and a peer.
  struct Link {
    int peer = 0;
    std::size_t first = 0;  ///< of its requests
    In in{};
    Out out{};
    std::uint64_t credit_in = 0;   ///< MPI writes here,
    std::uint64_t credit_out = 0;  ///< and reads here
  };
  struct Memory {
    Head opening{};
    std::vector<std::unique_ptr<Link>> links{};
  };

  [[nodiscard]] static constexpr std::size_t index(int peer) noexcept {
    return static_cast<std::size_t>(peer);
  }
  [[nodiscard]] static constexpr std::size_t ring_slot(std::uint64_t number) noexcept {
    return static_cast<std::size_t>(number % ring_slots);
  }
  [[nodiscard]] static std::size_t next_out(Link const& link) noexcept {
    return static_cast<std::size_t>(link.out.messages % chunks_out);
  }
  [[nodiscard]] std::size_t stride() const noexcept { return sizeof(Head) + chunk_; }
  [[nodiscard]] bool is_leaving(Link const& link, std::size_t slot) const noexcept {
    return requests_.under_way(link.first + first_out + slot);
  }
  [[nodiscard]] std::vector<std::unique_ptr<Link>>& links() const noexcept {
    return requests_.memory().links;
  }
  [[nodiscard]] Link& link(int peer) const noexcept { return *links()[numbers_[index(peer)]]; }
  /// The link to a peer, which there is from now on.
  [[nodiscard]] Link& make(int peer) {
    std::uint32_t& number = numbers_[index(peer)];
    if (number == none) {
      number = static_cast<std::uint32_t>(links().size());
      links().push_back(std::make_unique<Link>());
      links().back()->peer = peer;
      links().back()->first = requests_.add(first_out, per_peer - first_out);
    }
    return link(peer);
  }

  [[nodiscard]] std::unique_ptr<std::byte[]> chunks(std::size_t count) {
    held_ += count * stride();
    return std::unique_ptr<std::byte[]>(new std::byte[count * stride()]);
  }
  int receive_opening() {
    Head& head = requests_.memory().opening;
    return requests_.receive(0, &head, sizeof head, MPI_ANY_SOURCE, open_tag);
  }
  /// A peer has asked to send.
  int begin_receiving(int peer, Head const& head) {
    Link& link = make(peer);
    link.in.opens = true;
    link.in.opening = head;
    link.in.memory = chunks(chunks_in);
    for (std::size_t slot = 0; slot < chunks_in; ++slot) {
      if (int const code = receive(link, slot); code != MPI_SUCCESS) return code;
    }
    return give_credit(link, 0);
  }
  int receive(Link& link, std::size_t slot) {
    std::byte* const to = link.in.memory.get() + slot * stride();
    return requests_.receive(link.first + slot, to, stride(), link.peer, data_tag);
  }
  void left(Link const& link, std::size_t slot) noexcept {
    --leaving_[ring_slot(link.out.leaving_for[slot])];
  }
  int receive_credit(Link& link) {
    std::uint64_t& to = link.credit_in;
    return requests_.receive(link.first + credit_in, &to, sizeof to, link.peer, credit_tag);
  }
  /// Tells a peer how many chunks it may have sent in all, if so many more are taken than it knows.
  int give_credit(Link& link, std::uint64_t least) {
    std::uint64_t const news = link.in.taken - link.in.credited;
    std::size_t const number = link.first + credit_out;
    if (news < least || news == 0 || requests_.under_way(number)) return MPI_SUCCESS;
    link.in.credited = link.in.taken;
    link.credit_out = link.in.taken + chunks_in;
    ++credits_sent_;
    int const code =
        requests_.send(number, &link.credit_out, sizeof link.credit_out, link.peer, credit_tag);
    if (code == MPI_SUCCESS && !requests_.look(number)) ++credits_leaving_;
    return code;
  }
  static void note(int code, int& error) noexcept {
    if (code != MPI_SUCCESS) error = code;
  }

  std::size_t chunk_;
  Requests<Memory> requests_;
  std::vector<std::uint32_t> numbers_;               ///< of links, by peer
  std::array<std::uint32_t, ring_slots> leaving_{};  ///< messages that MPI holds, by collective
  std::size_t held_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t credits_sent_ = 0;
  std::size_t credits_leaving_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
