/// @file
/// How long communication keeps a rank from computing.
#pragma once

#include "stream.hpp"
#include "zero/concepts/communicator.hpp"

namespace bench {

/// A communicator that measures the time a rank spends inside of it: communication that nothing
/// hides. Time in `progress` counts, too: the rank computes nothing meanwhile.
///
/// Refers to the inner communicator, which must outlive it.
template <zero::Communicator C>
class Exposed {
 public:
  using Space = typename C::Space;
  using Ticket = typename C::Ticket;

  explicit Exposed(C& comm) noexcept : comm_(&comm) {}

  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }
  [[nodiscard]] Space space() const { return zero::detail::space_of(*comm_); }

  Ticket start(zero::Collective const& op) {
    Stopwatch const watch(seconds_);
    return comm_->start(op);
  }
  void wait(Ticket& ticket) {
    Stopwatch const watch(seconds_);
    comm_->wait(ticket);
  }
  void progress() noexcept requires zero::ProgressingCommunicator<C> {
    Stopwatch const watch(seconds_);
    comm_->progress();
  }

  /// Seconds since the last call, or since construction.
  [[nodiscard]] double take() noexcept {
    double const taken = seconds_;
    seconds_ = 0;
    return taken;
  }

 private:
  class Stopwatch {
   public:
    explicit Stopwatch(double& sum) noexcept : sum_(sum) {}
    Stopwatch(Stopwatch const&) = delete;
    Stopwatch& operator=(Stopwatch const&) = delete;
    ~Stopwatch() { sum_ += seconds_now() - start_; }

   private:
    double& sum_;
    double start_ = seconds_now();
  };

  C* comm_;
  double seconds_ = 0;
};

}  // namespace bench
