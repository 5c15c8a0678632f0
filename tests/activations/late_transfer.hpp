/// @file
/// A transfer that does nothing before somebody waits for it, and then no more than the wait asks
/// for: the latest that the concept allows.
#pragma once

#include "support/standard.hpp"
#include "zero/concepts/transfer.hpp"
#include "zero/space/host.hpp"

namespace activations {

class LateTransfer {
 public:
  using Space = zero::space::Host;
  using Slow = std::byte*;
  static constexpr std::string_view name = "late";
  struct Ticket {
    std::size_t number = 0;
  };

  [[nodiscard]] Slow allocate(std::size_t bytes) { return new std::byte[bytes]; }
  void deallocate(Slow memory, std::size_t) noexcept { delete[] memory; }
  Ticket send_out(Slow to, void const* from, std::size_t bytes) { return start(to, from, bytes); }
  Ticket bring_in(void* to, Slow from, std::size_t bytes) { return start(to, from, bytes); }
  void wait(Ticket const& ticket) { reach(ticket.number); }
  void settle() noexcept { reach(jobs_.size()); }

 private:
  struct Job {
    void* to;
    void const* from;
    std::size_t bytes;
  };
  Ticket start(void* to, void const* from, std::size_t bytes) {
    jobs_.push_back({to, from, bytes});
    return {jobs_.size()};
  }
  void reach(std::size_t number) noexcept {
    for (; done_ < number; ++done_) {
      Job const& job = jobs_[done_];
      if (job.bytes > 0) std::memcpy(job.to, job.from, job.bytes);
    }
  }
  std::vector<Job> jobs_;
  std::size_t done_ = 0;
};

static_assert(zero::Transfer<LateTransfer>);

}  // namespace activations
