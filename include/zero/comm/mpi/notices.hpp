/// @file
/// Sending and receiving what is not expected from anybody in particular.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/inquiry.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/requests.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Notices from and to ranks on other nodes.
class Notices {
 public:
  Notices(MPI_Comm comm, Peers const& peers) : peers_(&peers), incoming_(comm) {
    incoming_.add(1, 0);
    check(receive(), "MPI_Irecv");
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return incoming_.comm(); }
  /// Messages that this rank has sent.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  /// Notices that this rank has taken.
  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

  /// Calls `hear(notice)` for all that have come.
  template <class Hear>
  void poll(int& error, Hear const& hear) {
    auto const take = [&](std::size_t /*number*/, MPI_Status const& /*status*/) {
      ++taken_;
      Notice const notice = incoming_.memory();
      if (int const code = receive(); code != MPI_SUCCESS) error = code;
      hear(notice);
    };
    while (error == MPI_SUCCESS && incoming_.poll(error, take)) {
    }
    std::erase_if(outgoing_, [](auto const& message) { return message->settled(); });
  }

  /// Tells one rank.
  int send(int peer, Notice const& notice) { return send(notice, peer, peer + 1); }
  /// Tells all ranks on other nodes.
  int send(Notice const& notice) { return send(notice, 0, peers_->size()); }

  void cancel() noexcept { incoming_.cancel(); }
  [[nodiscard]] bool settled() noexcept {
    std::erase_if(outgoing_, [](auto const& message) { return message->settled(); });
    return outgoing_.empty() && incoming_.settled();
  }
  void forsake() noexcept {
    incoming_.forsake();
    for (auto const& message : outgoing_) message->forsake();
  }

 private:
  using Message = Requests<Notice>;

  int send(Notice const& notice, int first, int end) {
    auto message = std::make_unique<Message>(incoming_.comm());
    message->memory() = notice;
    for (int peer = first; peer < end; ++peer) {
      if (peers_->is_near(peer)) continue;
      ++sent_;
      int const code =
          message->send(message->add(0, 1), &message->memory(), sizeof(Notice), peer, notice_tag);
      if (code != MPI_SUCCESS) return code;
    }
    if (!message->settled()) outgoing_.push_back(std::move(message));
    return MPI_SUCCESS;
  }
  int receive() {
    return incoming_.receive(0, &incoming_.memory(), sizeof(Notice), MPI_ANY_SOURCE, notice_tag);
  }

  Peers const* peers_;
  Requests<Notice> incoming_;
  std::vector<std::unique_ptr<Message>> outgoing_;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
