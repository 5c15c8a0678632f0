/// @file
/// Any communicator over the host's memory as one type: optimizers behind the C interface are
/// compiled once for threads and processes.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/space/host.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// One rank of a group, whatever moves its data. A collective under way is a number.
class Rank {
 public:
  /// @param number  of this rank
  /// @param ranks   of the group
  Rank(int number, int ranks) noexcept : number_(number), ranks_(ranks) {}
  Rank(Rank const&) = delete;
  Rank& operator=(Rank const&) = delete;
  virtual ~Rank() = default;

  /// This rank's number, from 0.
  [[nodiscard]] int number() const noexcept { return number_; }
  /// How many ranks there are.
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  /// Begins a collective; its number is in use until `drop`.
  virtual std::size_t start(Collective const& op) = 0;
  /// Waits for it.
  virtual void wait(std::size_t collective) = 0;
  /// Forgets it; one that is not done is withdrawn, which ends the group.
  virtual void drop(std::size_t collective) noexcept = 0;
  /// Advances what is under way.
  virtual void progress() noexcept = 0;
  /// Bytes that the communicator holds on this rank.
  [[nodiscard]] virtual std::uint64_t held() const = 0;
  /// Ends the group with this reason, where there is anybody to hear it.
  virtual void fail_group(std::string_view reason) = 0;
  /// Leaves the group in order.
  virtual void close() = 0;
  /// Memory for optimizers.
  [[nodiscard]] virtual void* allocate(std::size_t bytes, std::size_t alignment) {
    return HostAllocator().allocate(bytes, alignment);
  }
  /// Takes it back.
  virtual void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
    HostAllocator().deallocate(memory, bytes, alignment);
  }

 private:
  int number_;
  int ranks_;
};

/// The rank of a communicator.
/// @tparam C  the communicator, or a reference to one that lives longer
template <class C>
class RankOf : public Rank {
  using Inner = std::remove_reference_t<C>;
  using InnerTicket = typename Inner::Ticket;
  static_assert(SquaringCommunicator<Inner> && Inner::Space::host_accessible);

 public:
  /// Keeps it, or the reference.
  explicit RankOf(C comm) : Rank(comm.rank(), comm.size()), comm_(std::forward<C>(comm)) { grow(); }

  /// @cond
  std::size_t start(Collective const& op) override {
    if (free_.empty()) grow();
    std::size_t const place = free_.back();
    tickets_[place] = comm_.start(op);
    free_.pop_back();
    return place;
  }
  void wait(std::size_t collective) override { comm_.wait(tickets_[collective]); }
  void drop(std::size_t collective) noexcept override {
    tickets_[collective] = InnerTicket{};
    free_.push_back(collective);  // `grow` has made the room
  }
  void progress() noexcept override { zero::progress(comm_); }
  [[nodiscard]] std::uint64_t held() const override { return held_by(comm_); }
  void fail_group(std::string_view reason) override {
    if constexpr (requires { comm_.report_failure(reason); }) comm_.report_failure(reason);
  }
  void close() override {
    if constexpr (requires { comm_.close(); }) comm_.close();
  }
  /// @endcond

 protected:
  /// The communicator.
  [[nodiscard]] Inner& inner() noexcept { return comm_; }

 private:
  /// As many collectives as communicators have under way at most; twice as many each time.
  void grow() {
    std::size_t const first = tickets_.size();
    tickets_.resize(first == 0 ? 64 : 2 * first);
    free_.reserve(tickets_.size());
    for (std::size_t place = tickets_.size(); place-- > first;) free_.push_back(place);
  }

  C comm_;
  std::vector<InnerTicket> tickets_;
  std::vector<std::size_t> free_;
};

/// What optimizers take for their communicator.
class AnyCommunicator {
 public:
  using Space = space::Host;                  ///< buffers are ordinary memory
  static constexpr bool adds_squares = true;  ///< as everyone's that a RankOf is made of

  /// A collective under way; one that is destroyed unfinished is withdrawn.
  class Ticket {
   public:
    Ticket() = default;
    /// Takes over the collective; `other` has nothing left to wait for.
    Ticket(Ticket&& other) noexcept
        : rank_(std::exchange(other.rank_, nullptr)), collective_(other.collective_) {}
    /// The same; what this ticket held is dropped.
    Ticket& operator=(Ticket&& other) noexcept {
      if (this == &other) return *this;
      drop();
      rank_ = std::exchange(other.rank_, nullptr);
      collective_ = other.collective_;
      return *this;
    }
    ~Ticket() { drop(); }

   private:
    friend AnyCommunicator;
    Ticket(Rank& rank, std::size_t collective) noexcept : rank_(&rank), collective_(collective) {}
    void drop() noexcept {
      if (rank_ != nullptr) std::exchange(rank_, nullptr)->drop(collective_);
    }

    Rank* rank_ = nullptr;
    std::size_t collective_ = 0;
  };

  /// Of a rank that lives longer.
  explicit AnyCommunicator(Rank& rank) noexcept : rank_(&rank) {}

  /// This rank's number, from 0.
  [[nodiscard]] int rank() const noexcept { return rank_->number(); }
  /// How many ranks there are.
  [[nodiscard]] int size() const noexcept { return rank_->ranks(); }
  /// Begins a collective.
  Ticket start(Collective const& op) { return {*rank_, rank_->start(op)}; }
  /// Waits for it.
  void wait(Ticket& ticket) {
    if (ticket.rank_ == nullptr) return;
    rank_->wait(ticket.collective_);
    ticket.drop();
  }
  /// Advances what is under way.
  void progress() noexcept { rank_->progress(); }
  /// Bytes that the communicator holds on this rank.
  [[nodiscard]] std::uint64_t held() const { return rank_->held(); }

 private:
  Rank* rank_;
};

static_assert(SquaringCommunicator<AnyCommunicator>);

/// Memory from wherever the rank's communicator wants it.
struct RankAllocator {
  Rank* rank = nullptr;  ///< whose

  /// As its `allocate`.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return rank->allocate(bytes, alignment);
  }
  /// Gives it back.
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
    rank->deallocate(memory, bytes, alignment);
  }
};

static_assert(Allocator<RankAllocator>);

}  // namespace zero::inline ZERO_NAMESPACE::c
