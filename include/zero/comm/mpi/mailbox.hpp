/// @file
/// Messages of a whole family: from any rank, at any time, rare.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/report.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Tag on the family's communicator.
inline constexpr int notice_tag = 3;

/// One rank's messages to and from all others of its family. What MPI does not give back is kept on
/// purpose.
class Mailbox {
 public:
  /// Receives from here on.
  Mailbox(MPI_Comm comm, int size)
      : comm_(comm), bytes_(largest_notice(size)), in_(new std::byte[bytes_]) {
    check(receive(), "MPI_Irecv");
  }
  Mailbox(Mailbox const&) = delete;
  Mailbox& operator=(Mailbox const&) = delete;
  ~Mailbox() {
    if (request_ != MPI_REQUEST_NULL && !forsaken_ && is_running()) cancel();
    if (request_ != MPI_REQUEST_NULL) static_cast<void>(in_.release());
    if (!forsaken_ && is_running()) forget_sent();
    for (std::unique_ptr<Letter>& letter : out_) static_cast<void>(letter.release());
  }
  /// MPI must not be called any more.
  void forsake() noexcept { forsaken_ = true; }

  /// Calls `hear(message)` for all that have come.
  /// @return MPI's code
  template <class Hear>
  int poll(Hear const& hear) {
    if (!out_.empty()) forget_sent();
    for (;;) {
      int done = 0;
      MPI_Status status;
      if (request_ == MPI_REQUEST_NULL) return MPI_SUCCESS;
      int code = MPI_Test(&request_, &done, &status);
      if (code != MPI_SUCCESS || done == 0) return code;
      int length = 0;
      MPI_Get_count(&status, MPI_BYTE, &length);
      // The next may come while this one is read.
      std::vector<std::byte> const message(in_.get(), in_.get() + length);
      if (code = receive(); code != MPI_SUCCESS) return code;
      hear(std::span<std::byte const>(message));
    }
  }

  /// Best effort: who is gone hears nothing.
  /// @param matched  see `is_matched`
  ZERO_COLD void send(int rank, std::span<std::byte const> message, bool matched) {
    auto letter = std::make_unique<Letter>();
    letter->text.assign(message.begin(), message.end());
    letter->to = rank;
    letter->matched = matched;
    auto const count = static_cast<int>(message.size());
    int const code =
        matched
            ? MPI_Issend(
                  letter->text.data(), count, MPI_BYTE, rank, notice_tag, comm_, &letter->request)
            : MPI_Isend(
                  letter->text.data(), count, MPI_BYTE, rank, notice_tag, comm_, &letter->request);
    if (code == MPI_SUCCESS) out_.push_back(std::move(letter));
  }
  /// True if what was sent there with `matched` has arrived.
  [[nodiscard]] bool is_matched(int rank) {
    forget_sent();
    return std::none_of(out_.begin(), out_.end(), [&](auto const& letter) {
      return letter->matched && letter->to == rank;
    });
  }
  /// True if MPI has all messages, but for those of which it was asked whether they arrive.
  [[nodiscard]] bool is_idle() {
    forget_sent();
    return std::all_of(
        out_.begin(), out_.end(), [](auto const& letter) { return letter->matched; });
  }

  /// Ends receiving. No message may be on its way.
  void cancel() {
    // Local, since nothing has matched.
    MPI_Cancel(&request_);
    int done = 0;
    MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
  }

 private:
  struct Letter {
    std::vector<std::byte> text{};
    MPI_Request request = MPI_REQUEST_NULL;
    int to = 0;
    bool matched = false;
  };

  int receive() {
    return MPI_Irecv(in_.get(),
                     static_cast<int>(bytes_),
                     MPI_BYTE,
                     MPI_ANY_SOURCE,
                     notice_tag,
                     comm_,
                     &request_);
  }
  void forget_sent() {
    std::erase_if(out_, [](std::unique_ptr<Letter> const& letter) {
      int done = 0;
      return MPI_Test(&letter->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
    });
  }

  MPI_Comm comm_;
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> in_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::vector<std::unique_ptr<Letter>> out_;
  bool forsaken_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
