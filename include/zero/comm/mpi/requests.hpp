/// @file
/// Messages that MPI has under way for one purpose, and the memory that it works on.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/library.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Requests that are tested together. What MPI does not give back after a failure is kept on
/// purpose.
/// @tparam Memory  of all messages
template <class Memory>
class Requests {
 public:
  /// Up to `most` requests stay where they are.
  explicit Requests(MPI_Comm comm, std::size_t most = 0)
      : comm_(comm), memory_(std::make_unique<Memory>()) {
    all_.reserve(most);
  }
  Requests(Requests const&) = delete;
  Requests& operator=(Requests const&) = delete;
  ~Requests() {
    if (forsaken_ || !is_running()) {
      static_cast<void>(memory_.release());
      return;
    }
    cancel();
    if (!settled()) static_cast<void>(memory_.release());
  }
  /// MPI must not be called any more: whatever it holds stays its own.
  void forsake() noexcept { forsaken_ = true; }

  [[nodiscard]] Memory& memory() const noexcept { return *memory_; }

  /// Makes room for requests, of which some receive; returns the number of the first.
  std::size_t add(std::size_t receives, std::size_t sends) {
    std::size_t const first = all_.size();
    all_.resize(first + receives + sends, MPI_REQUEST_NULL);
    indices_.resize(all_.size());
    statuses_.resize(all_.size());
    receives_.resize(first + receives, 1);
    receives_.resize(all_.size(), 0);
    return first;
  }
  [[nodiscard]] bool under_way(std::size_t number) const noexcept {
    return all_[number] != MPI_REQUEST_NULL;
  }

  /// @param bytes  what narrow_count() lets through
  /// @return MPI's code
  int receive(std::size_t number, void* to, std::size_t bytes, int source, int tag) {
    auto const count = static_cast<int>(bytes);
    return MPI_Irecv(to, count, MPI_BYTE, source, tag, comm_, &all_[number]);
  }
  int send(std::size_t number, void const* from, std::size_t bytes, int target, int tag) {
    auto const count = static_cast<int>(bytes);
    return MPI_Isend(from, count, MPI_BYTE, target, tag, comm_, &all_[number]);
  }

  /// Has MPI done with a message already? An error is found by the next poll.
  [[nodiscard]] bool look(std::size_t number) {
    int done = 0;
    return MPI_Test(&all_[number], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  }
  /// Lets MPI work and calls `done(number, status)` for what is done; true if anything is.
  /// @param error  MPI's code if something went wrong
  template <class Done>
  bool poll(int& error, Done const& done) {
    if (all_.empty()) return false;
    int count = 0;
    int const code = MPI_Testsome(
        static_cast<int>(all_.size()), all_.data(), &count, indices_.data(), statuses_.data());
    if (code != MPI_SUCCESS) error = code;
    if (code != MPI_SUCCESS || count == MPI_UNDEFINED) return false;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      done(static_cast<std::size_t>(indices_[i]), statuses_[i]);
    }
    return count > 0;
  }

  /// Ends the receives that wait for nothing.
  void cancel() noexcept {
    for (std::size_t at = 0; at < all_.size(); ++at) {
      if (receives_[at] != 0 && under_way(at)) MPI_Cancel(&all_[at]);
    }
  }
  /// True if MPI holds no memory any more.
  [[nodiscard]] bool settled() noexcept {
    int done = 0;
    int const count = static_cast<int>(all_.size());
    return MPI_Testall(count, all_.data(), &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && done != 0;
  }

 private:
  MPI_Comm comm_;
  std::unique_ptr<Memory> memory_;
  bool forsaken_ = false;
  std::vector<MPI_Request> all_;
  std::vector<std::uint8_t> receives_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
