/// @file
/// How many families of groups a process has, since they share its one MPI.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/library.hpp"

#include <mutex>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// One family's entry among those of the process. MPI keeps the list, as an attribute of
/// MPI_COMM_SELF, and throws it away in MPI_Finalize.
///
/// A progress thread under MPI_THREAD_SERIALIZED knows when its own family calls MPI, and of nobody
/// else's calls: such a family is alone.
class Entry {
 public:
  /// @param blocking  the family's, which lives longer
  /// @throws Error (invalid_argument) if this family or one that is there has to be alone
  Entry(Blocking const& blocking, bool alone) : blocking_(&blocking), alone_(alone) {
    Families& others = all();
    std::lock_guard const lock(others.mutex);
    if (others.has_loner) {
      fail(
          ErrorKind::invalid_argument,
          "a communicator with ProgressThread::sole exists, whose thread alone may call MPI: split "
          "that one, or close it before");
    }
    if (alone && others.count > 0) {
      fail(ErrorKind::invalid_argument,
           {"ProgressThread::sole while there are ",
            others.count,
            " other families of groups in this process: split one of them, or close them before"});
    }
    ++others.count;
    others.has_loner = alone;
  }
  Entry(Entry const&) = delete;
  Entry& operator=(Entry const&) = delete;
  ~Entry() { remove(); }

  /// Says that the family calls MPI no more; not if a thread of its own never came back from there.
  void remove() noexcept {
    if (!entered_ || blocking_->lost() || !is_running()) return;
    Families& others = all();
    std::lock_guard const lock(others.mutex);
    --others.count;
    if (alone_) others.has_loner = false;
    entered_ = false;
  }

 private:
  struct Families {
    std::mutex mutex;
    int count = 0;
    bool has_loner = false;
  };

  static int forget(MPI_Comm /*self*/, int /*key*/, void* families, void* /*unused*/) noexcept {
    delete static_cast<Families*>(families);
    return MPI_SUCCESS;
  }
  static int make_key() {
    int key = MPI_KEYVAL_INVALID;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, nullptr),
          "MPI_Comm_create_keyval");
    check(MPI_Comm_set_attr(MPI_COMM_SELF, key, new Families), "MPI_Comm_set_attr");
    return key;
  }
  static Families& all() {
    // A name, which MPI has no other place for; MPI runs once in a process.
    static int const key = make_key();
    void* families = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(MPI_COMM_SELF, key, static_cast<void*>(&families), &found),
          "MPI_Comm_get_attr");
    return *static_cast<Families*>(families);
  }

  Blocking const* blocking_;
  bool alone_;
  bool entered_ = true;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
