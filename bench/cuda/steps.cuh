/// @file
/// Whole steps under each stage, and the time in them that a rank's stream waits for others.
#pragma once

#include "devices.cuh"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/zero.hpp"

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// A communicator that measures how long its stream stands still in `wait`: communication that
/// nothing hides. On the device's clock, so that the host never waits.
template <zero::Communicator C>
class ExposedOnStream {
 public:
  using Space = typename C::Space;
  using Ticket = typename C::Ticket;

  explicit ExposedOnStream(C& comm) : comm_(&comm) {
    for (std::size_t i = 0; i < clocks; ++i) clocks_.emplace_back(comm.space().stream());
  }

  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }
  [[nodiscard]] Space space() const { return comm_->space(); }

  Ticket start(zero::Collective const& op) { return comm_->start(op); }
  void wait(Ticket& ticket) {
    if (used_ == clocks) return comm_->wait(ticket);
    StreamClock& clock = clocks_[used_++];
    clock.start();
    comm_->wait(ticket);
    clock.stop();
  }

  /// Seconds since the last call. Waits for the stream.
  [[nodiscard]] double take() {
    double sum = 0;
    for (std::size_t i = 0; i < used_; ++i) sum += clocks_[i].seconds();
    used_ = 0;
    return sum;
  }

 private:
  static constexpr std::size_t clocks = 1024;
  C* comm_;
  std::vector<StreamClock> clocks_;
  std::size_t used_ = 0;
};

/// How many units the model has, and how often a step is measured.
inline constexpr std::size_t units = 8;
inline constexpr int repeat = 10;

/// Seconds of a step on the slowest rank's stream, the mean of several. Collective.
/// @param step   enqueues one
/// @param after  is called after each
template <class Step, class After>
[[nodiscard]] double seconds_of(
    int rank, cudaStream_t stream, Meeting& meeting, Step const& step, After const& after) {
  StreamClock clock(stream);
  double seconds = 0;
  for (int i = 0; i < repeat; ++i) {
    meeting.meet();
    clock.start();
    step();
    clock.stop();
    seconds += meeting.longest(rank, clock.seconds());
    after();
  }
  return seconds / repeat;
}

/// A model of equal units, whose passes over gradients and parameters cost nothing: what is left is
/// reduction, norm, update and gathers.
/// @param allocator  of the memory that the optimizer holds
/// @param floor      seconds of what any sharded step has to exchange; 0: not known
template <class Stage, zero::Communicator C, zero::Allocator A>
void steps(char const* backend,
           C& inner,
           Meeting& meeting,
           std::size_t unit_elements,
           A const& allocator,
           double floor) {
  std::vector<zero::Tensor> tensors;
  for (std::size_t u = 0; u < units; ++u) {
    tensors.push_back(
        {.name = "w" + std::to_string(u), .shape = {unit_elements}, .unit = static_cast<int>(u)});
  }
  ExposedOnStream comm(inner);
  auto const space = inner.space();
  zero::ShardedOptimizer optimizer{
      comm, tensors, Stage{}, zero::Mixed<zero::bf16>{}, zero::AdamW{}, zero::Owned{allocator}};
  optimizer.adopt_parameters();
  auto const step = [&] {
    for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit));
    for (int const unit : optimizer.units_backward()) {
      auto const weights = optimizer.parameters(unit);
      auto gradients = optimizer.gradients(unit);
      optimizer.reduce(std::move(gradients));
    }
    optimizer.enqueue_step();
  };
  for (int i = 0; i < 3; ++i) step();
  static_cast<void>(optimizer.report());
  static_cast<void>(comm.take());
  double exposed = 0;
  double const seconds = seconds_of(inner.rank(), space.stream(), meeting, step, [&] {
    exposed += meeting.longest(inner.rank(), comm.take()) / repeat;
  });
  if (inner.rank() == 0) {
    std::printf("%-22s %2d ranks  %-10s %9.3f ms a step, %9.3f ms exposed communication",
                backend,
                inner.size(),
                std::string(Stage::name).c_str(),
                1e3 * seconds,
                1e3 * exposed);
    if (floor > 0) std::printf(", %6.2f of the exchange", seconds / floor);
    std::printf("\n");
  }
}

/// What the benchmarks of steps are told: 8 units of so many elements.
inline std::size_t unit_elements(int argc, char** argv) {
  return size_option(argc, argv, "elements of each of 8 units", std::size_t{8} << 20);
}

/// All stages, one after the other; the parameters are those of `steps`. Collective.
template <zero::Communicator C, zero::Allocator A>
void all_steps(char const* backend,
               C& comm,
               Meeting& meeting,
               std::size_t unit_elements,
               A const& allocator,
               double floor = 0) {
  steps<zero::stage::Replicated>(backend, comm, meeting, unit_elements, allocator, floor);
  steps<zero::stage::Pos>(backend, comm, meeting, unit_elements, allocator, floor);
  steps<zero::stage::PosG>(backend, comm, meeting, unit_elements, allocator, floor);
  steps<zero::stage::PosGP>(backend, comm, meeting, unit_elements, allocator, floor);
}

}  // namespace bench
