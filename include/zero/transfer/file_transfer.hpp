/// @file
/// A file that stands for a slower memory, read and written by a thread of its own.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/transfer.hpp"
#include "zero/space/host.hpp"
#include "zero/transfer/file/temporary_file.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// Slower memory is a file without a name, which is gone when the program ends, however it ends.
/// All its room is taken from the file system when it is allocated: a disk that is full says so
/// then.
///
/// One thread does all transfers, in the order in which they were started. Up to 64 may be under
/// way; one more waits for the oldest.
class FileTransfer {
 public:
  using Space = space::Host;                        ///< the fast memory
  static constexpr std::string_view name = "file";  ///< of the slower memory, for people
  /// A place in a file.
  struct Slow {
    int file = -1;             ///< its handle
    std::uint64_t offset = 0;  ///< in bytes
    /// `bytes` farther.
    [[nodiscard]] friend constexpr Slow operator+(Slow const& at, std::size_t bytes) noexcept {
      return {at.file, at.offset + bytes};
    }
  };
  /// How many transfers were started until then; 0 is done.
  struct Ticket {
    std::uint64_t number = 0;  ///< counted from 1
  };

  /// Files will lie in `directory`. Starts the thread.
  explicit FileTransfer(std::string directory)
      : directory_(std::move(directory)), thread_([this] { work(); }) {}
  FileTransfer(FileTransfer const&) = delete;
  FileTransfer& operator=(FileTransfer const&) = delete;
  /// Finishes what is under way.
  ~FileTransfer() {
    {
      std::lock_guard const lock(mutex_);
      ended_ = true;
    }
    started_some_.notify_one();
    thread_.join();
  }

  /// A new file of so many bytes.
  /// @throws Error (resource) if there is no such directory, or not so much room
  [[nodiscard]] Slow allocate(std::size_t bytes) {
    int const file = detail::open_temporary(directory_);
    if (file < 0) refuse("cannot make a file in '" + directory_ + "'", errno);
    int const answer = detail::take_room(file, bytes);
    if (answer != 0) {
      ::close(file);
      refuse("'" + directory_ + "' has no room for " + std::to_string(bytes) + " bytes", answer);
    }
    return {file, 0};
  }
  /// The file is gone.
  void deallocate(Slow memory, std::size_t /*bytes*/) noexcept { ::close(memory.file); }

  /// Starts writing; returns at once unless 64 transfers are under way.
  /// @throws Error (resource) if an earlier transfer has failed
  Ticket send_out(Slow to, void const* from, std::size_t bytes) {
    // Only ever read: see `carry_out`.
    return start({to, const_cast<void*>(from), bytes, true});
  }
  /// Starts reading; returns at once unless 64 transfers are under way.
  /// @throws Error (resource) if an earlier transfer has failed
  Ticket bring_in(void* to, Slow from, std::size_t bytes) {
    return start({from, to, bytes, false});
  }

  /// Blocks until a transfer is done.
  /// @throws Error (resource) if it, or one before it, has failed
  void wait(Ticket const& ticket) {
    std::unique_lock lock(mutex_);
    finished_some_.wait(lock, [&] { return finished_ >= ticket.number; });
    if (error_ != 0 && ticket.number >= failed_) refuse("a transfer of the slower memory", error_);
  }
  /// Blocks until nothing is under way.
  void settle() noexcept {
    std::unique_lock lock(mutex_);
    finished_some_.wait(lock, [&] { return finished_ == started_; });
  }

 private:
  struct Job {
    Slow slow;
    void* fast;
    std::size_t bytes;
    bool out;
  };
  static constexpr std::size_t most_under_way = 64;

  [[noreturn]] static void refuse(std::string const& what, int error) {
    fail(ErrorKind::resource, {what, ": ", std::strerror(error)});
  }

  Ticket start(Job const& job) {
    std::unique_lock lock(mutex_);
    finished_some_.wait(lock, [&] { return started_ - finished_ < most_under_way; });
    if (error_ != 0) refuse("a transfer of the slower memory", error_);
    jobs_[started_++ % most_under_way] = job;
    Ticket const ticket{started_};
    lock.unlock();
    started_some_.notify_one();
    return ticket;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      started_some_.wait(lock, [&] { return ended_ || finished_ < started_; });
      if (finished_ == started_) return;
      Job const job = jobs_[finished_ % most_under_way];
      bool const skipped = error_ != 0;
      lock.unlock();
      int const error = skipped ? 0 : carry_out(job);
      lock.lock();
      ++finished_;
      if (error != 0) {
        error_ = error;
        failed_ = finished_;
      }
      finished_some_.notify_all();
    }
  }

  /// 0, or an errno.
  [[nodiscard]] static int carry_out(Job const& job) noexcept {
    return detail::move_bytes(job.slow.file, job.slow.offset, job.fast, job.bytes, job.out);
  }

  std::string directory_;
  std::mutex mutex_;
  std::condition_variable started_some_;
  std::condition_variable finished_some_;
  std::array<Job, most_under_way> jobs_{};
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t failed_ = 0;  ///< the first that failed
  int error_ = 0;             ///< why
  bool ended_ = false;
  std::thread thread_;
};

static_assert(Transfer<FileTransfer>);

}  // namespace zero::inline ZERO_NAMESPACE
