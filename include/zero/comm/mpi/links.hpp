/// @file
/// Chunks of data between ranks that do not share memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/topology.hpp"

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
/// Of its two links with a peer a rank has seven counters:
///
/// | counter       | what it counts                                      | who changes it       |
/// |---------------|-----------------------------------------------------|----------------------|
/// | `out.sent`    | chunks sent, without the opening                    | `send`               |
/// | `out.allowed` | chunks that this rank may send in all               | `poll`: `credit_in`  |
/// | `credit_in`   | the same, while it comes                            | MPI                  |
/// | `in.follow`   | chunks to come for the head that was judged last    | `look`, down to 0    |
/// | `in.judged`   | chunks that came for a call of this rank's          | `look`               |
/// | `in.taken`    | chunks that are used no more                        | `take`               |
/// | `credit_out`  | chunks that the peer may send in all, as it is told | `give_credit`        |
///
/// Always `sent <= allowed`, `taken <= judged <= taken + chunks_in`, and a rank's `allowed` is at
/// most its peer's `credit_out`, which is at most its peer's `taken + chunks_in`.
///
/// All memory that MPI works on is the library's and of constant size; the trainer's buffers are
/// never part of a message. What MPI does not give back after a failure is kept on purpose.
class Links {
 public:
  /// @param alone   no rank is on another node
  /// @param counts  what is sent; lives longer
  Links(MPI_Comm comm, int size, bool alone, Options const& options, Transport& counts)
      : comm_(comm),
        counts_(&counts),
        chunk_(detail::chunk_bytes(options.exchange_bytes, options.message_bytes, size)),
        by_peer_(alone ? 0 : index(size), nullptr) {
    if (alone) return;
    // No message is larger.
    static_cast<void>(narrow_count(stride(), 1, options.message_bytes));
    requests_.reserve(1 + per_peer * (index(size) - 1));
    requests_.push_back(MPI_REQUEST_NULL);
    indices_.resize(1);
    statuses_.resize(1);
    receive_opening();
    check(error_, "MPI_Irecv");
  }
  Links(Links const&) = delete;
  Links& operator=(Links const&) = delete;
  ~Links() {
    if (is_running()) {
      cancel();
      if (is_idle()) return;
    }
    static_cast<void>(buffers_.release());
  }

  /// Bytes that `size` ranks without shared memory hold at most, each; fewer where some share
  /// memory.
  [[nodiscard]] static constexpr std::size_t planned_bytes(int size, std::size_t chunk) noexcept {
    return (index(size) - 1) * (chunks_in + chunks_out) * (sizeof(Head) + chunk);
  }
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  /// Bytes of data that a message carries at most.
  [[nodiscard]] std::size_t chunk_bytes() const noexcept { return chunk_; }
  /// MPI's code, unless all calls have succeeded so far.
  [[nodiscard]] int error() const noexcept { return error_; }

  /// Lets MPI work and notes what has arrived or left; true if anything did.
  bool poll() {
    if (requests_.empty()) return false;
    int count = 0;
    note(MPI_Testsome(static_cast<int>(requests_.size()),
                      requests_.data(),
                      &count,
                      indices_.data(),
                      statuses_.data()));
    if (error_ != MPI_SUCCESS || count == MPI_UNDEFINED) return false;
    for (std::size_t i = 0; i < index(count); ++i) {
      std::size_t const number = index(indices_[i]);
      if (number == 0) {
        begin_receiving(statuses_[i].MPI_SOURCE);
        continue;
      }
      Link& link = *buffers_->links[(number - 1) / per_peer];
      std::size_t const what = (number - 1) % per_peer;
      if (what < chunks_in) {
        link.in.arrived[what] = true;
      } else if (what == credit_in) {
        link.out.allowed = link.credit_in;
        receive_credit(link);
      } else if (what == credit_out) {
        --credits_leaving_;
        give_credit(link, chunks_in / 2);
      } else {
        left(link, what - first_out);
      }
    }
    return count > 0;
  }

  /// Looks at what has come from every peer, in order, as far as heads are judged.
  /// @param judge  `judge(peer, head)`: how many chunks the peer sends for that call, at least 1; 0
  ///   if that cannot be said yet, or never
  template <class Judge>
  void look(Judge const& judge) {
    for (std::unique_ptr<Link> const& link : buffers_->links) {
      In& in = link->in;
      if (in.opens) {
        in.follow = judge(link->peer, in.opening);
        in.opens = in.follow == 0;
        in.empty = !in.opens && in.opening.call.count == 0;
        if (in.empty) in.follow = 0;
      }
      while (!in.opens && in.judged < in.taken + chunks_in) {
        std::size_t const slot = in.judged % chunks_in;
        if (!in.arrived[slot]) break;
        in.headed[slot] = in.follow == 0;
        if (in.headed[slot]) {
          Head head;
          std::memcpy(&head, in.memory.get() + slot * stride(), sizeof head);
          in.follow = judge(link->peer, head);
          if (in.follow == 0) break;
        }
        --in.follow;
        ++in.judged;
      }
    }
  }

  /// The oldest chunk of a peer that was judged and not taken, or null.
  [[nodiscard]] std::byte const* chunk_from(int peer) const noexcept {
    Link const* const link = by_peer_[index(peer)];
    if (link == nullptr) return nullptr;
    In const& in = link->in;
    if (in.empty) return reinterpret_cast<std::byte const*>(&in);
    std::size_t const slot = in.taken % chunks_in;
    std::size_t const skip = in.headed[slot] ? sizeof(Head) : 0;
    return in.taken == in.judged ? nullptr : in.memory.get() + slot * stride() + skip;
  }
  /// A chunk that `chunk_from` has given is used no more.
  void take(int peer) {
    Link& link = *by_peer_[index(peer)];
    if (std::exchange(link.in.empty, false)) return;
    std::size_t const slot = link.in.taken++ % chunks_in;
    link.in.arrived[slot] = false;
    receive_chunk(link, slot);
    give_credit(link, chunks_in / 2);
  }

  /// Has this rank asked a peer to receive?
  [[nodiscard]] bool is_open_to(int peer) const noexcept {
    Link const* const link = by_peer_[index(peer)];
    return link != nullptr && link->out.memory != nullptr;
  }
  [[nodiscard]] bool is_open_from(int peer) const noexcept {
    Link const* const link = by_peer_[index(peer)];
    return link != nullptr && link->in.memory != nullptr;
  }
  /// Memory for the data of the next chunk to a peer, or null. There is none before the first.
  [[nodiscard]] std::byte* room_for(int peer) noexcept {
    if (!is_open_to(peer)) return nullptr;
    Link const& link = *by_peer_[index(peer)];
    bool const full = link.out.sent == link.out.allowed || is_leaving(link, next_out(link));
    return full ? nullptr : link.out.memory.get() + next_out(link) * stride() + sizeof(Head);
  }
  /// Sends what was put into the room, a part of collective `number`. The first message to a peer
  /// is a head alone, and asks it to receive.
  /// @param head  null if an earlier message for the collective had it
  void send(int peer, std::uint64_t number, Head const* head, std::size_t bytes) {
    Link& link = make(peer);
    bool const opens = link.out.memory == nullptr;
    std::size_t const slot = opens ? 0 : next_out(link);
    if (opens) {
      link.out.memory = chunks(chunks_out);
      receive_credit(link);
    } else {
      ++link.out.sent;
    }
    std::byte* data = link.out.memory.get() + slot * stride() + sizeof(Head);
    if (head != nullptr) {
      std::memcpy(data -= sizeof *head, head, sizeof *head);
      bytes += sizeof *head;
    }
    link.out.leaving_for[slot] = number;
    ++leaving_[ring_slot(number)];
    ++counts_->data_messages;
    counts_->sent_bytes += bytes;
    // What is small has left already.
    bool const gone = send_bytes(link, first_out + slot, data, bytes, opens ? open_tag : data_tag);
    if (gone) left(link, slot);
  }

  /// True once MPI holds nothing that this rank has sent for a collective. Until then somebody has
  /// to call MPI: it may move data only while it is called.
  [[nodiscard]] bool has_delivered(std::uint64_t number) const noexcept {
    return leaving_[ring_slot(number)] == 0 && credits_leaving_ == 0;
  }
  /// True while MPI holds something that this rank has sent a peer for a collective, or what it has
  /// told it to have taken.
  [[nodiscard]] bool delivers(int peer, std::uint64_t number) const noexcept {
    Link const* const link = by_peer_[index(peer)];
    if (link == nullptr) return false;
    bool found = is_under_way(*link, credit_out);
    for (std::size_t slot = 0; slot < chunks_out; ++slot) {
      found = found || (is_leaving(*link, slot) && link->out.leaving_for[slot] == number);
    }
    return found;
  }

  /// Says what was taken, wherever that was not said yet. True once peers have said to have taken
  /// all that this rank has sent, and been told the same.
  [[nodiscard]] bool settle() {
    bool settled = true;
    for (std::unique_ptr<Link> const& link : buffers_->links) {
      In const& in = link->in;
      Out const& out = link->out;
      if (in.memory != nullptr) give_credit(*link, 1);
      settled = settled && (in.memory == nullptr || link->credit_out == in.taken + chunks_in) &&
                (out.memory == nullptr || out.allowed == out.sent + chunks_in);
    }
    return settled;
  }
  /// Ends the receives that wait for nothing.
  void cancel() noexcept {
    for (std::size_t number = 0; number < requests_.size(); ++number) {
      bool const receives = number == 0 || (number - 1) % per_peer < first_out;
      if (receives && requests_[number] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[number]);
    }
  }
  /// True if MPI holds no memory any more.
  [[nodiscard]] bool is_idle() noexcept {
    int done = 0;
    auto const count = static_cast<int>(requests_.size());
    int const code = MPI_Testall(count, requests_.data(), &done, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS && done != 0;
  }

 private:
  // What requests of a peer are for: receives, then sends.
  static constexpr std::size_t credit_in = chunks_in;
  static constexpr std::size_t first_out = credit_in + 1;
  static constexpr std::size_t credit_out = first_out + chunks_out;
  static constexpr std::size_t per_peer = credit_out + 1;

  struct In {
    std::unique_ptr<std::byte[]> memory{};  ///< once the peer has asked
    bool arrived[chunks_in] = {};
    bool headed[chunks_in] = {};
    bool opens = false;  ///< the first head has come and was not judged
    bool empty = false;  ///< and is a chunk without data, not taken
    Head opening{};
    std::uint32_t follow = 0;
    std::uint64_t judged = 0;
    std::uint64_t taken = 0;
  };
  struct Out {
    std::unique_ptr<std::byte[]> memory{};       ///< once this rank has asked
    std::uint64_t leaving_for[chunks_out] = {};  ///< the collective of what was sent last
    std::uint64_t sent = 0;
    std::uint64_t allowed = 0;
  };
  /// What goes on between this rank and a peer.
  struct Link {
    int peer = 0;
    std::size_t first = 0;  ///< of its requests
    In in{};
    Out out{};
    std::uint64_t credit_in = 0;               ///< MPI writes here,
    std::uint64_t credit_out = chunks_in - 1;  ///< and reads here; the first is new to the peer
  };
  struct LinkBuffers {
    Head opening{};
    std::vector<std::unique_ptr<Link>> links{};  ///< in the order of their requests
  };

  [[nodiscard]] static constexpr std::size_t ring_slot(std::uint64_t number) noexcept {
    return static_cast<std::size_t>(number % ring_slots);
  }
  /// Where the next chunk goes; the opening was in place 0.
  [[nodiscard]] static std::size_t next_out(Link const& link) noexcept {
    return static_cast<std::size_t>((link.out.sent + 1) % chunks_out);
  }
  [[nodiscard]] std::size_t stride() const noexcept { return sizeof(Head) + chunk_; }
  [[nodiscard]] bool is_under_way(Link const& link, std::size_t what) const noexcept {
    return requests_[link.first + what] != MPI_REQUEST_NULL;
  }
  [[nodiscard]] bool is_leaving(Link const& link, std::size_t slot) const noexcept {
    return is_under_way(link, first_out + slot);
  }
  void note(int code) noexcept {
    if (code != MPI_SUCCESS) error_ = code;
  }

  /// The link to a peer, which there is from now on.
  [[nodiscard]] Link& make(int peer) {
    Link*& link = by_peer_[index(peer)];
    if (link == nullptr) {
      buffers_->links.push_back(std::make_unique<Link>());
      link = buffers_->links.back().get();
      link->peer = peer;
      link->first = requests_.size();
      // They stay where they are: there is room for all peers'.
      requests_.resize(link->first + per_peer, MPI_REQUEST_NULL);
      indices_.resize(requests_.size());
      statuses_.resize(requests_.size());
    }
    return *link;
  }
  [[nodiscard]] std::unique_ptr<std::byte[]> chunks(std::size_t count) {
    held_ += count * stride();
    return std::unique_ptr<std::byte[]>(new std::byte[count * stride()]);
  }

  void receive(std::size_t number, void* to, std::size_t bytes, int source, int tag) {
    // narrow_count() has let the largest through.
    auto const count = static_cast<int>(bytes);
    note(MPI_Irecv(to, count, MPI_BYTE, source, tag, comm_, &requests_[number]));
  }
  void receive_opening() { receive(0, &buffers_->opening, sizeof(Head), MPI_ANY_SOURCE, open_tag); }
  void receive_chunk(Link& link, std::size_t slot) {
    std::byte* const to = link.in.memory.get() + slot * stride();
    receive(link.first + slot, to, stride(), link.peer, data_tag);
  }
  void receive_credit(Link& link) {
    std::uint64_t& to = link.credit_in;
    receive(link.first + credit_in, &to, sizeof to, link.peer, credit_tag);
  }
  /// A peer has asked to send.
  void begin_receiving(int peer) {
    Link& link = make(peer);
    link.in.opens = true;
    link.in.opening = buffers_->opening;
    link.in.memory = chunks(chunks_in);
    for (std::size_t slot = 0; slot < chunks_in; ++slot) receive_chunk(link, slot);
    give_credit(link, 0);
    receive_opening();
  }

  /// True if MPI has done with it already. An error of that is found by the next poll.
  bool send_bytes(Link& link, std::size_t what, void const* from, std::size_t bytes, int tag) {
    MPI_Request& request = requests_[link.first + what];
    auto const count = static_cast<int>(bytes);
    note(MPI_Isend(from, count, MPI_BYTE, link.peer, tag, comm_, &request));
    int done = 0;
    return error_ == MPI_SUCCESS && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           done != 0;
  }
  void left(Link const& link, std::size_t slot) noexcept {
    --leaving_[ring_slot(link.out.leaving_for[slot])];
  }
  /// Tells a peer how many chunks it may have sent in all, if so many more are taken than it knows.
  void give_credit(Link& link, std::uint64_t least) {
    std::uint64_t const news = link.in.taken + chunks_in - link.credit_out;
    if (news < least || news == 0 || is_under_way(link, credit_out)) return;
    link.credit_out = link.in.taken + chunks_in;
    ++counts_->control_messages;
    std::uint64_t const& credit = link.credit_out;
    if (!send_bytes(link, credit_out, &credit, sizeof credit, credit_tag)) ++credits_leaving_;
  }

  MPI_Comm comm_;
  Transport* counts_;
  std::size_t chunk_;
  std::unique_ptr<LinkBuffers> buffers_ = std::make_unique<LinkBuffers>();
  std::vector<Link*> by_peer_;         ///< null where nothing was exchanged yet
  std::vector<MPI_Request> requests_;  ///< an opening's, then those of the links
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::array<std::uint32_t, ring_slots> leaving_{};  ///< messages that MPI holds, by collective
  std::size_t held_ = 0;
  std::size_t credits_leaving_ = 0;
  int error_ = MPI_SUCCESS;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
