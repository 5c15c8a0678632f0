/// @file
/// Runs a test's body on every rank of a fake NCCL group.
#pragma once

#include "nccl/fake_nccl.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/communicator.hpp"

namespace fake {

template <class Reduction = zero::nccl::Ordered>
using Nccl = zero::BasicNccl<Library, Reduction>;

/// What tests choose about a group; the rest is as below.
struct Choice {
  double deadline_s = 60;
  double grace_s = 5;
  double watch_s = 0;
  zero::nccl::Registration registration = zero::nccl::Registration::none;
  int max_ctas = 0;
  std::size_t staging_bytes = 64 << 10;
  std::function<void(std::string const&, bool)> on_end{};
};

/// Options of tests: results can be read when `wait` returns, and nothing takes long.
inline zero::nccl::Options quick_options(Choice const& choice = {}) {
  return {.deadline_s = choice.deadline_s,
          .grace_s = choice.grace_s,
          .watch_s = choice.watch_s,
          .waiting = zero::nccl::Waiting::host,
          .registration = choice.registration,
          .max_ctas = choice.max_ctas,
          .staging_bytes = choice.staging_bytes,
          .on_end = choice.on_end};
}

/// The same, but only streams wait: for that a thread has to look.
inline zero::nccl::Options quick_stream_options(Choice const& choice = {}) {
  zero::nccl::Options options = quick_options(choice);
  if (options.watch_s == 0) options.watch_s = 0.02;
  options.waiting = zero::nccl::Waiting::stream;
  return options;
}

/// A stream that belongs to the trainer.
inline Stream* world_stream(World& world, Process& process) {
  std::lock_guard const lock(world.mutex);
  return world.make_stream(&process);
}

/// The trainer destroys a stream of its own; what is in it goes on.
inline void end_world_stream(World& world, Stream* stream) {
  std::lock_guard const lock(world.mutex);
  stream->dead = true;
}

/// Begins a communicator of the trainer's own. NCCL writes to `comm` once more when it is ready.
inline void begin_own(Library::Comm& comm, int rank, int ranks) {
  REQUIRE(Library::init(&comm, ranks, {1}, rank, {}).pending());
}

/// One that is ready.
inline Library::Comm own_comm(int rank, int ranks) {
  Library::Comm comm = nullptr;
  begin_own(comm, rank, ranks);
  auto state = Result::in_progress;
  while (state == Result::in_progress) REQUIRE(Library::async_error(comm, &state).ok());
  return comm;
}

/// Calls `body(process)` on one thread per rank; rethrows what a rank throws.
template <class Body>
void run_processes(World& world, Body const& body) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr first;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      current = &world.process(rank);
      try {
        body(world.process(rank));
      } catch (...) {
        std::lock_guard const lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

using Body = std::function<void(Process&, Stream*)>;

/// What each rank was told, empty where it went through. `body` is given the trainer's stream.
inline std::vector<std::string> errors_of(World& world, Body const& body) {
  std::vector<std::string> what(static_cast<std::size_t>(world.size()));
  run_processes(world, [&](Process& process) {
    Stream* const compute = world_stream(world, process);
    try {
      body(process, compute);
    } catch (zero::Error const& error) {
      what[static_cast<std::size_t>(process.rank)] = error.what();
    }
  });
  return what;
}

inline bool contains(std::string const& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Every rank was told each of `parts`.
inline void check_told(std::vector<std::string> const& what,
                       std::vector<std::string_view> const& parts) {
  for (std::string const& text : what) {
    for (std::string_view const part : parts) CHECK_MESSAGE(contains(text, part), text);
  }
}

/// `x` has to live until streams have run dry, unless the host waits.
template <class C>
void all_reduce(C& comm, int bucket, float& x) {
  zero::run(comm,
            {.op = zero::Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = bucket});
}
template <class C>
void all_reduce(C& comm, int bucket) {
  float x = 1;
  all_reduce(comm, bucket, x);
}

/// Nothing illegal was done and nothing is left.
inline void check_clean(World& world) {
  CHECK_MESSAGE(world.violations().empty(), world.violations());
  CHECK(world.live_memory == 0);
  CHECK(world.live_events == 0);
  CHECK(world.live_streams == 0);
}

/// A run in which no rank is told anything, and none leaves anything behind.
inline void run_clean(World& world, Body const& body) {
  for (std::string const& text : errors_of(world, body)) CHECK_MESSAGE(text.empty(), text);
  check_clean(world);
}

/// Calls `body(comm)` on every rank of a new group of a new world.
template <class Reduction, class Use>
void run_group(World& world, int ranks, zero::nccl::Options const& options, Use const& use) {
  run_processes(world, [&](Process& process) {
    Stream* const compute = world_stream(world, process);
    Nccl<Reduction> comm(zero::nccl::NewGroup<Library>{{1}, process.rank, ranks, compute}, options);
    use(comm);
    comm.close();
  });
}

}  // namespace fake
