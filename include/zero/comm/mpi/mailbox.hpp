/// @file
/// Messages of a whole family: from any rank, at any time, rare.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/report.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// One rank's messages to and from all others of its family. What MPI does not give back is kept on
/// purpose.
class Mailbox {
 public:
  /// Receives from here on.
  Mailbox(MPI_Comm comm, int size) : comm_(comm), size_(size) { check(receive(), "MPI_Irecv"); }
  Mailbox(Mailbox const&) = delete;
  Mailbox& operator=(Mailbox const&) = delete;
  ~Mailbox() {
    if (is_running()) {
      cancel();
      forget_sent();
    }
    if (in_->request != MPI_REQUEST_NULL) static_cast<void>(in_.release());
    for (std::unique_ptr<PendingNotice>& pending : out_) static_cast<void>(pending.release());
  }

  /// Calls `hear(notice)` for all that have come.
  /// @return MPI's code
  template <class Hear>
  int poll(Hear const& hear) {
    if (!out_.empty()) forget_sent();
    int code = MPI_SUCCESS;
    while (code == MPI_SUCCESS && in_->request != MPI_REQUEST_NULL) {
      int done = 0;
      code = MPI_Test(&in_->request, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS || done == 0) break;
      // The next may come while this one is read.
      Notice const notice = std::exchange(in_->notice, {});
      code = receive();
      if (code == MPI_SUCCESS) hear(notice);
    }
    return code;
  }

  /// Best effort: who is gone hears nothing.
  ZERO_COLD void send(int rank, Notice const& notice) {
    auto pending = std::make_unique<PendingNotice>(PendingNotice{notice});
    auto const count = static_cast<int>(notice.bytes(size_));
    bool const about = notice.kind == NoticeKind::about;
    if (about) pending->matched = rank;
    int const code = (about ? MPI_Issend : MPI_Isend)(
        &pending->notice, count, MPI_BYTE, rank, tag, comm_, &pending->request);
    if (code == MPI_SUCCESS) out_.push_back(std::move(pending));
  }
  /// True while an ABOUT has not arrived at a rank; of nobody, while MPI has not taken all else.
  [[nodiscard]] bool holds(int matched = nobody) {
    forget_sent();
    return std::any_of(
        out_.begin(), out_.end(), [&](auto const& one) { return one->matched == matched; });
  }

  /// Ends receiving. No message may be on its way.
  void cancel() {
    if (in_->request == MPI_REQUEST_NULL) return;
    // Local, since nothing has matched.
    MPI_Cancel(&in_->request);
    int done = 0;
    MPI_Test(&in_->request, &done, MPI_STATUS_IGNORE);
  }

 private:
  static constexpr int tag = 3;
  static constexpr int nobody = -1;

  struct PendingNotice {
    Notice notice{};
    MPI_Request request = MPI_REQUEST_NULL;
    int matched = nobody;  ///< of whom it is asked whether it has arrived
  };

  int receive() {
    auto const count = static_cast<int>(sizeof(Notice));
    return MPI_Irecv(&in_->notice, count, MPI_BYTE, MPI_ANY_SOURCE, tag, comm_, &in_->request);
  }
  void forget_sent() {
    std::erase_if(out_, [](std::unique_ptr<PendingNotice> const& pending) {
      int done = 0;
      return MPI_Test(&pending->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
    });
  }

  MPI_Comm comm_;
  int size_;
  std::unique_ptr<PendingNotice> in_ = std::make_unique<PendingNotice>();
  std::vector<std::unique_ptr<PendingNotice>> out_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
