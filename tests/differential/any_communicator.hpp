/// @file
/// Any communicator over host memory that adds squares as one type: the optimizers are compiled
/// once for threads and processes.
#pragma once

#include "zero/concepts/communicator.hpp"
#include "zero/space/host.hpp"

#include <functional>
#include <memory>

namespace differential {

class AnyCommunicator {
 public:
  using Space = zero::space::Host;
  using Ticket = std::shared_ptr<void>;
  static constexpr bool adds_squares = true;

  template <zero::SquaringCommunicator C>
  explicit AnyCommunicator(C& comm)
      : rank_(comm.rank()),
        size_(comm.size()),
        start_([&comm](zero::Collective const& op) {
          return std::make_shared<typename C::Ticket>(comm.start(op));
        }),
        wait_([&comm](void* ticket) { comm.wait(*static_cast<typename C::Ticket*>(ticket)); }),
        progress_([&comm] { zero::progress(comm); }) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  Ticket start(zero::Collective const& op) { return start_(op); }
  void wait(Ticket& ticket) {
    if (ticket != nullptr) wait_(ticket.get());
    ticket.reset();
  }
  void progress() noexcept { progress_(); }

 private:
  int rank_;
  int size_;
  std::function<Ticket(zero::Collective const&)> start_;
  std::function<void(void*)> wait_;
  std::function<void()> progress_;
};

}  // namespace differential
