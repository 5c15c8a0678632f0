/// @file
/// Whole steps under each stage, and the time in them that a rank's stream waits for others.
///
/// Figures are medians: one step in which a thread of the host was held up would double the mean of
/// ten. Beside them stand the longest step, and how long the host took to enqueue one: where that
/// is as long as the step, the device has waited for the host.
#pragma once

#include "devices.cuh"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/zero.hpp"

#include <algorithm>
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

/// How many units the model has.
inline constexpr std::size_t units = 8;

/// How often a step is measured: seldom where units are so small that only a test can want it.
[[nodiscard]] inline int repetitions(std::size_t unit_elements) {
  return unit_elements < (std::size_t{1} << 16) ? 3 : 31;
}

/// Seconds of a step.
struct StepTimes {
  double median = 0;   ///< on the slowest rank's stream
  double longest = 0;  ///< the longest of them
  double host = 0;     ///< until the slowest rank's thread has enqueued one; a median as well
};

/// Measures a step on all ranks. Collective.
/// @param repeat  how often
/// @param step    enqueues one
/// @param after   is called after each
template <class Step, class After>
[[nodiscard]] StepTimes times_of(int rank,
                                 cudaStream_t stream,
                                 Meeting& meeting,
                                 int repeat,
                                 Step const& step,
                                 After const& after) {
  StreamClock clock(stream);
  std::vector<double> seconds;
  std::vector<double> host;
  for (int i = 0; i < repeat; ++i) {
    meeting.meet();
    double const begin = host_seconds();
    clock.start();
    step();
    clock.stop();
    double const end = host_seconds();
    seconds.push_back(meeting.longest(rank, clock.seconds()));
    host.push_back(meeting.longest(rank, end - begin));
    after();
  }
  return {median(seconds), *std::max_element(seconds.begin(), seconds.end()), median(host)};
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
  int const repeat = repetitions(unit_elements);
  for (int i = 0; i < repeat / 3; ++i) {  // until clocks, and what first steps allocate, settle
    meeting.meet();
    step();
    static_cast<void>(optimizer.report());
    static_cast<void>(comm.take());
  }
  std::vector<double> exposed;
  StepTimes const times = times_of(inner.rank(), space.stream(), meeting, repeat, step, [&] {
    exposed.push_back(meeting.longest(inner.rank(), comm.take()));
  });
  if (inner.rank() == 0) {
    std::printf(
        "%-22s %2d ranks  %-10s %9.3f ms a step (longest %.3f), %9.3f ms exposed communication, "
        "%9.3f ms on the host",
        backend,
        inner.size(),
        std::string(Stage::name).c_str(),
        1e3 * times.median,
        1e3 * times.longest,
        1e3 * median(exposed),
        1e3 * times.host);
    if (floor > 0) std::printf(", %6.2f of the exchange", times.median / floor);
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
