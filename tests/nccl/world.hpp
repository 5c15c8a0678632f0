/// @file
/// Runs a test's body on every rank of a fake NCCL group.
#pragma once

#include "nccl/fake_nccl.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/communicator.hpp"

#include <doctest/doctest.h>

#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fake {

template <class Reduction = zero::nccl::Ordered>
using Nccl = zero::BasicNccl<Library, Reduction>;

/// Options of tests: results can be read when `wait` returns, and nothing takes long.
inline zero::nccl::Options quick_options() {
  zero::nccl::Options options;
  options.deadline_s = 60;
  options.grace_s = 5;
  options.watch_s = 0;
  options.waiting = zero::nccl::Waiting::host;
  options.staging_bytes = 64 << 10;
  return options;
}

/// The same, but only streams wait: for that a thread has to look.
inline zero::nccl::Options quick_stream_options() {
  zero::nccl::Options options = quick_options();
  options.watch_s = 0.02;
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

/// Calls `body(process)` on one thread per rank; rethrows what a rank throws.
template <class Body>
void run_processes(World& world, int ranks, Body const& body) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr first;
  for (int rank = 0; rank < ranks; ++rank) {
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

/// What each rank was told, empty where it went through.
inline std::vector<std::string> errors_of(World& world,
                                          int ranks,
                                          std::function<void(Process&, Stream*)> const& body) {
  std::vector<std::string> what(static_cast<std::size_t>(ranks));
  run_processes(world, ranks, [&](Process& process) {
    Stream* const compute = world_stream(world, process);
    try {
      body(process, compute);
    } catch (zero::Error const& error) {
      what[static_cast<std::size_t>(process.rank)] = error.what();
    }
  });
  return what;
}

inline bool contains(std::string const& text, char const* part) {
  return text.find(part) != std::string::npos;
}

template <class C>
void all_reduce(C& comm, int bucket) {
  float x = 1;
  zero::run(comm,
            {.op = zero::Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = bucket});
}

/// Calls `body(comm)` on every rank of a new group of a new world.
template <class Reduction, class Body>
void run_group(World& world, int ranks, zero::nccl::Options const& options, Body const& body) {
  run_processes(world, ranks, [&](Process& process) {
    Stream* const compute = world_stream(world, process);
    Nccl<Reduction> comm(zero::nccl::NewGroup<Library>{{1}, process.rank, ranks, compute}, options);
    body(comm);
    comm.close();
  });
}

/// Nothing illegal was done and nothing is left.
inline void check_clean(World& world) {
  CHECK_MESSAGE(world.violations().empty(), world.violations());
  CHECK(world.live_memory == 0);
  CHECK(world.live_events == 0);
  CHECK(world.live_streams == 0);
}

}  // namespace fake
