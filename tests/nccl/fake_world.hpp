/// @file
/// A stand-in for GPUs and NCCL over host memory: streams, events and cliques of ranks as threads.
///
/// Streams are lazy: their work runs when some rank asks an event, a few tasks at a time, in a
/// random order of streams. Work that was not ordered by events runs too early or too late.
#pragma once

#include "fake_collective.hpp"
#include "support/standard.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/nccl/api.hpp"

#include <list>

namespace fake {

using zero::nccl::Result;
using zero::nccl::Status;

class World;

inline constexpr double for_ever_s = 1e9;

/// What one rank's libraries do wrong, and when.
struct Script {
  int version = 22809;
  long fail_call = -1;  ///< the n-th call of anything returns `fail_with`
  Result fail_with = Result::internal_error;
  int in_progress = 0;         ///< polls that every nonblocking call takes
  long hang_at = -1;           ///< the n-th launch never runs
  long remote_error_at = -1;   ///< from the n-th launch on the communicator reports an error
  double abort_s = 0;          ///< that an abort takes
  bool abort_hangs = false;    ///< until the world ends
  bool destroy_hangs = false;  ///< until the world ends
  bool aligned = true;         ///< memory begins at a page
  bool registers = true;       ///< as asked; else NCCL leaves it out and says nothing
  std::size_t room = ~std::size_t{0};  ///< of a stream; who enqueues more blocks
  bool remembers = false;  ///< a refused collective, as a non-blocking communicator does
  bool revokes = true;     ///< as NCCL does since 2.28.7
  std::function<void(std::string_view)> before_enqueue{};  ///< given what comes into a stream
};

/// One rank's process.
struct Process {
  World* world = nullptr;
  int rank = 0;
  int device = 0;
  Script script{};
  std::atomic<long> calls{0};
  long launches = 0;
  std::uint64_t sent = 0;  ///< elements, to other ranks by ncclSend
  long exchanges = 0;      ///< groups of ncclSend and ncclRecv that are over
  bool capturing = false;
  bool holds_kernels = false;  ///< that are not a communicator's: none runs
  int group_depth = 0;
  std::vector<int> max_ctas;  ///< of communicators, by creation
};

/// The rank this thread is; set by `World::run`, unset on threads of the library.
inline thread_local Process* current = nullptr;

struct Stream;
struct Comm;

struct Event {
  Process* process = nullptr;
  std::uint64_t recorded = 0;
  std::uint64_t happened = 0;
  bool captured = false;
};

struct Part {
  bool sends = false;
  void* memory = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  int peer = 0;
  bool matched = false;
};

struct Task {
  enum class Type { record, wait, work, collective, exchange } type = Type::work;
  Event* event = nullptr;
  std::uint64_t generation = 0;
  std::function<void()> work{};
  Comm* comm = nullptr;
  std::uint64_t sequence = 0;
  Collective call{};
  std::vector<Part> parts{};
  bool hangs = false;
  bool posted = false;
};

struct Stream {
  Process* process = nullptr;
  std::list<Task> tasks;
  Comm* unsettled = nullptr;  ///< whose last launch here has not been polled to its end
  bool dead = false;
};

/// Stands for the handle that means another stream in each thread.
inline Stream stream_per_thread;

/// Ranks that were built together.
struct Clique {
  int size = 0;
  std::vector<Comm*> members;
  int arrived = 0;
  bool broken = false;  ///< a member aborted
  std::map<std::uint64_t, std::vector<Task*>> posted;
  std::set<std::uint64_t> executed;
  std::map<int, std::vector<std::pair<Comm*, std::pair<int, int>>>> splitting;
  std::vector<int> arrivals;  ///< of collective management calls, by how many
};

struct Comm {
  Process* process = nullptr;
  std::shared_ptr<Clique> clique;
  int rank = -1;
  std::atomic<int> inside{0};
  int polls = 0;
  std::function<bool()> pending;  ///< empty, or true once peers have come
  void** output = nullptr;        ///< written to when the call has settled
  void* result = nullptr;
  std::uint64_t sequence = 0;
  int management = 0;
  int splits = 0;
  bool asked = false;  ///< for its state, by who has it
  bool dead = false;
  bool revoked = false;
  bool finalized = false;
  Result error = Result::success;
  std::vector<Task*> exchanges;  ///< at the head of their streams, unmatched

  [[nodiscard]] bool unsettled() { return polls > 0 || (pending && !pending()); }
  /// Gives the call's result to its caller, as late as that may be.
  void deliver() {
    if (output != nullptr) *output = result;
    output = nullptr;
  }
};

/// Whose memory of the host kernels read, for a thread that looks at it and is no rank's.
class HostMemory {
 public:
  void put(void const* begin, World* world) {
    std::lock_guard const lock(mutex_);
    worlds_[begin] = world;
  }
  void take(void const* begin) {
    std::lock_guard const lock(mutex_);
    worlds_.erase(begin);
  }
  [[nodiscard]] World& world_of(void const* inside) {
    std::lock_guard const lock(mutex_);
    return *std::prev(worlds_.upper_bound(inside))->second;
  }

 private:
  std::mutex mutex_;
  std::map<void const*, World*> worlds_;
};

inline HostMemory& host_memory() {
  static HostMemory instance;
  return instance;
}

/// All ranks of one test.
class World {
 public:
  World(int ranks, unsigned seed) : random_(seed) {
    for (int rank = 0; rank < ranks; ++rank) {
      processes_.push_back(std::make_unique<Process>());
      processes_.back()->world = this;
      processes_.back()->rank = rank;
    }
  }

  World(World const&) = delete;
  World& operator=(World const&) = delete;
  /// Frees what a stuck abort has kept from being given back.
  ~World() {
    for (auto const& [memory, bytes] : allocations) {
      host_memory().take(memory);
      std::free(memory);
    }
  }

  std::mutex mutex;
  std::map<void*, std::size_t> allocations;  ///< bytes that were asked for
  std::multiset<void const*> registered;     ///< what kernels on peers may read
  bool errors_spread = true;  ///< an abort is a remote error for peers, else only silence
  long live_memory = 0;
  long live_events = 0;
  long live_streams = 0;
  std::map<std::uint64_t, std::shared_ptr<Clique>> meetings;
  std::uint64_t next_id = 1;

  [[nodiscard]] int size() const { return static_cast<int>(processes_.size()); }
  [[nodiscard]] Process& process(int rank) { return *processes_[static_cast<std::size_t>(rank)]; }

  /// A call that does not return before `release`, or so many seconds.
  template <class End>
  void hang(double seconds, End const& end) {
    ++hanging_;
    auto const start = std::chrono::steady_clock::now();
    while (!released_ &&
           std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    end();
    // The last that is done to this world, which may be gone from here on.
    --hanging_;
  }
  /// Lets calls that hang return, and waits for them: they may use this world.
  void release() {
    released_ = true;
    while (hanging_ != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  /// The same where all communicators are aborted, by threads that may not have begun yet.
  void release_aborts() {
    released_ = true;
    auto const ended = [&] {
      std::lock_guard const lock(mutex);
      return std::ranges::all_of(comms_, [](auto const& c) { return c->dead || !c->asked; });
    };
    while (!ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    release();
  }

  /// What NCCL or CUDA would have punished, perhaps.
  void violation(Process const* process, std::string text) {
    std::lock_guard const lock(violations_mutex_);
    std::string const who = process != nullptr ? std::to_string(process->rank) : "?";
    if (violations_.size() < 8) violations_.push_back("rank " + who + ": " + std::move(text));
  }
  [[nodiscard]] std::string violations() {
    std::lock_guard const lock(violations_mutex_);
    std::string all;
    for (auto const& text : violations_) all += text + "; ";
    return all;
  }

  Comm* make_comm(Process* process, std::shared_ptr<Clique> clique) {
    comms_.push_back(std::make_unique<Comm>());
    Comm* const comm = comms_.back().get();
    comm->process = process;
    comm->clique = std::move(clique);
    return comm;
  }
  Stream* make_stream(Process* process) {
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->process = process;
    return streams_.back().get();
  }
  Event* make_event(Process* process) {
    events_.push_back(std::make_unique<Event>());
    events_.back()->process = process;
    return events_.back().get();
  }

  /// Runs a few tasks of every stream. The caller holds `mutex`.
  void pump(unsigned most = 4) {
    order_.clear();
    for (auto const& stream : streams_) order_.push_back(stream.get());
    std::shuffle(order_.begin(), order_.end(), random_);
    for (Stream* const stream : order_) {
      for (auto left = random_() % most; left > 0 && !stream->tasks.empty(); --left) {
        bool const kernel = stream->tasks.front().type == Task::Type::work;
        if (kernel && stream->process->holds_kernels) break;
        if (!advance(stream->tasks.front())) break;
        stream->tasks.pop_front();
      }
    }
  }

  /// True if some stream of a rank has a kernel that is not a communicator's and has not run.
  [[nodiscard]] bool has_kernels(Process const& process) {
    std::lock_guard const lock(mutex);
    for (auto const& stream : streams_) {
      if (stream->process != &process) continue;
      for (Task const& task : stream->tasks) {
        if (task.type == Task::Type::work) return true;
      }
    }
    return false;
  }

  /// How many collectives that have not run come before the last record of an event in its stream.
  [[nodiscard]] int collectives_before(Event const* event) {
    std::lock_guard const lock(mutex);
    for (auto const& stream : streams_) {
      int collectives = 0;
      for (Task const& task : stream->tasks) {
        collectives += task.type == Task::Type::collective ? 1 : 0;
        if (task.event == event && task.generation == event->recorded &&
            task.type == Task::Type::record) {
          return collectives;
        }
      }
    }
    return 0;
  }

  /// The communicator's kernels end at once, wherever they are.
  void kill(Comm& comm) {
    comm.exchanges.clear();
    for (auto& [sequence, tasks] : comm.clique->posted) {
      if (comm.rank >= 0) tasks[static_cast<std::size_t>(comm.rank)] = nullptr;
    }
    for (auto const& stream : streams_) {
      std::erase_if(stream->tasks, [&](Task const& task) { return task.comm == &comm; });
      if (stream->unsettled == &comm) stream->unsettled = nullptr;
    }
    comm.polls = 0;
    comm.pending = nullptr;
    comm.clique->broken = true;
    if (!errors_spread) return;
    for (Comm* const member : comm.clique->members) {
      if (member != nullptr && member != &comm && !member->dead) {
        member->error = Result::remote_error;
      }
    }
  }

 private:
  /// True if the task at the head of a stream is over.
  bool advance(Task& task) {
    if (task.hangs) return false;
    switch (task.type) {
      case Task::Type::record:
        task.event->happened = std::max(task.event->happened, task.generation);
        return true;
      case Task::Type::wait: return task.event->happened >= task.generation;
      case Task::Type::work: task.work(); return true;
      case Task::Type::collective: return advance_collective(task);
      case Task::Type::exchange: return advance_exchange(task);
    }
    return true;
  }

  bool advance_collective(Task& task) {
    Comm& comm = *task.comm;
    Clique& clique = *comm.clique;
    auto const size = static_cast<std::size_t>(clique.size);
    if (clique.executed.count(task.sequence) != 0) return true;
    auto& posted = clique.posted[task.sequence];
    posted.resize(size);
    posted[static_cast<std::size_t>(comm.rank)] = &task;
    if (std::count(posted.begin(), posted.end(), nullptr) != 0) return false;
    std::vector<Collective> calls;
    for (Task const* const other : posted) calls.push_back(other->call);
    // What NCCL does not check and hangs or corrupts on.
    for (Collective const& call : calls) {
      if (!call.agrees(calls.front())) return false;
    }
    execute(calls);
    clique.posted.erase(task.sequence);
    clique.executed.insert(task.sequence);
    return true;
  }

  bool advance_exchange(Task& task) {
    Comm& comm = *task.comm;
    if (!task.posted) {
      task.posted = true;
      comm.exchanges.push_back(&task);
    }
    bool done = true;
    for (Part& part : task.parts) {
      if (part.matched) continue;
      Comm* const peer = comm.clique->members[static_cast<std::size_t>(part.peer)];
      for (Task* const other : peer->exchanges) {
        // First come, first served: the oldest open part between the two ranks is the one.
        auto const found =
            std::find_if(other->parts.begin(), other->parts.end(), [&](Part const& p) {
              return !p.matched && p.peer == comm.rank && p.sends != part.sends && &p != &part;
            });
        if (found == other->parts.end()) continue;
        if (found->count != part.count || found->dtype != part.dtype) break;
        Part const& from = part.sends ? part : *found;
        Part const& to = part.sends ? *found : part;
        std::memmove(to.memory, from.memory, from.count * zero::size_of(from.dtype));
        part.matched = true;
        found->matched = true;
        break;
      }
      done = done && part.matched;
    }
    if (!done) return false;
    std::erase(comm.exchanges, &task);
    ++comm.process->exchanges;
    return true;
  }

  std::atomic<bool> released_{false};
  std::atomic<int> hanging_{0};
  std::mt19937 random_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<Stream*> order_;
  std::mutex violations_mutex_;
  std::vector<std::string> violations_;
};

}  // namespace fake
