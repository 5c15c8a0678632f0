/// What a trainer who never blocks relies on: the order of streams, and a thread that watches.
#include "nccl/world.hpp"
#include "zero/base/error.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace streams_test {
namespace {

using fake::Library;
using zero::Error;
using zero::Op;
using zero::nccl::Options;
using Comm = fake::Nccl<>;

Options stream_options(bool separate) {
  Options options = fake::quick_stream_options();
  options.separate_gathers = separate;
  return options;
}

/// Writes, reduces, gathers and reads on the compute stream without ever waiting on the host;
/// returns how many elements were wrong.
int steps_without_waiting(Comm& comm, fake::Stream* compute, bool capturing) {
  constexpr std::size_t count = 50;
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::vector<float> data(count * ranks);
  std::vector<float> shard(count);
  std::vector<float> whole(count * ranks);
  int wrong = 0;
  compute->process->capturing = capturing;
  for (int step = 1; step <= 20; ++step) {
    auto const write = [&data, step] {
      for (float& x : data) x = static_cast<float>(step);
    };
    auto const update = [&shard] {
      for (float& x : shard) x *= 2;
    };
    float const expected = static_cast<float>(2 * step) * static_cast<float>(ranks);
    auto const read = [&whole, &wrong, expected] {
      for (float const x : whole) wrong += x == expected ? 0 : 1;
    };
    REQUIRE(Library::enqueue(compute, "write", write).ok());
    auto reduction = comm.start(
        {.op = Op::reduce_scatter, .count = count, .send = data.data(), .recv = shard.data()});
    comm.wait(reduction);
    REQUIRE(Library::enqueue(compute, "update", update).ok());
    auto gather = comm.start(
        {.op = Op::all_gather, .count = count, .send = shard.data(), .recv = whole.data()});
    comm.wait(gather);
    REQUIRE(Library::enqueue(compute, "read", read).ok());
  }
  compute->process->capturing = false;
  Library::synchronize(compute);
  return wrong;
}

TEST_CASE("Nccl: the compute stream and the communicator's wait for each other, never the host") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    fake::World world(3, seed);
    std::atomic<int> wrong{0};
    bool const capturing = seed % 3 == 2;
    fake::run_processes(world, 3, [&](fake::Process& process) {
      process.script.in_progress = static_cast<int>(seed % 2);
      fake::Stream* const compute = fake::world_stream(world, process);
      Comm comm({{1}, process.rank, 3, compute}, stream_options(seed % 2 == 1));
      wrong += steps_without_waiting(comm, compute, capturing);
      comm.close();
    });
    CHECK(wrong == 0);
    fake::check_clean(world);
  }
}

/// A trainer who waits for nothing but its stream, on which a peer's collective hangs.
void check_freed(bool capturing) {
  INFO("capturing " << capturing);
  fake::World world(2, 5);
  world.errors_spread = false;
  world.process(1).script.hang_at = 3;
  std::vector<std::string> what(2);
  fake::run_processes(world, 2, [&](fake::Process& process) {
    fake::Stream* const compute = fake::world_stream(world, process);
    Options options = stream_options(false);
    options.deadline_s = 0.2;
    options.watch_s = 0.01;
    Comm comm({{1}, process.rank, 2, compute}, options);
    std::vector<float> x(4, 1);
    process.capturing = capturing;
    for (int bucket = 0; bucket < 6; ++bucket) {
      auto ticket = comm.start({.op = Op::all_reduce,
                                .count = x.size(),
                                .send = x.data(),
                                .recv = x.data(),
                                .bucket = bucket});
      comm.wait(ticket);
    }
    process.capturing = false;
    // Returns only because somebody else looks after the communicator.
    Library::synchronize(compute);
    try {
      static_cast<void>(comm.poll());
    } catch (Error const& error) {
      what[static_cast<std::size_t>(process.rank)] = error.what();
    }
  });
  for (std::string const& text : what) {
    CHECK_MESSAGE(text.find("waited 0.2") != std::string::npos, text);
    // Launch 0 is the constructor's, and an ordered all-reduce makes two.
    std::string const number = capturing ? "replay 1]" : "call 2]";
    CHECK_MESSAGE(
        text.find("[all_reduce of 4 fp32 summed in fp32, bucket 1, " + number) != std::string::npos,
        text);
  }
  fake::check_clean(world);
}

TEST_CASE("Nccl: a trainer blocked on its stream is freed by the watching thread") {
  check_freed(false);
  check_freed(true);
}

TEST_CASE("Nccl: a trainer blocked by a stream that is full is freed by the watching thread") {
  fake::World world(2, 5);
  world.errors_spread = false;
  world.process(1).script.hang_at = 3;
  auto const what = fake::errors_of(world, 2, [&](fake::Process& process, fake::Stream* compute) {
    Options options = stream_options(false);
    options.deadline_s = 0.2;
    options.watch_s = 0.01;
    float x = 1;
    Comm comm({{1}, process.rank, 2, compute}, options);
    process.script.room = 12;
    for (int bucket = 0; bucket < 100; ++bucket) {
      auto ticket =
          comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = bucket});
      comm.wait(ticket);
    }
  });
  for (std::string const& text : what) {
    CHECK_MESSAGE(fake::contains(text, "waited 0.2"), text);
    CHECK_MESSAGE(fake::contains(text, "bucket 1"), text);
  }
  fake::check_clean(world);
}

TEST_CASE("Nccl: nothing uses the buffers of a start that the end of the group has overtaken") {
  fake::World world(2, 5);
  world.errors_spread = false;
  std::atomic<bool> ended{false};
  auto const what = fake::errors_of(world, 2, [&](fake::Process& process, fake::Stream* compute) {
    Options options = stream_options(false);
    options.deadline_s = 0.2;
    options.watch_s = 0.01;
    if (process.rank == 0) options.on_end = [&](std::string const&, bool) { ended = true; };
    Comm comm({{1}, process.rank, 2, compute}, options);
    if (process.rank == 1) {
      while (!ended) std::this_thread::yield();
      comm.report_failure("came too late");
      return;
    }
    std::vector<float> data(2, 1);
    auto const late =
        comm.start({.op = Op::all_gather, .count = 1, .send = data.data(), .recv = data.data()});
    process.script.before_enqueue = [&](std::string_view call) {
      while (call == "sum_ranks" && !ended) std::this_thread::yield();
    };
    CHECK_THROWS_AS(
        comm.start(
            {.op = Op::reduce_scatter, .count = 1, .send = data.data(), .recv = data.data()}),
        Error);
    CHECK_FALSE(world.has_kernels(process));
  });
  for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
  fake::check_clean(world);
}

TEST_CASE("Nccl: a graph waits for each of its collectives, however many there are") {
  fake::World world(1, 7);
  fake::run_processes(world, 1, [&](fake::Process& process) {
    fake::Stream* const compute = fake::world_stream(world, process);
    Comm comm({{1}, 0, 1, compute}, stream_options(false));
    constexpr std::size_t many = 300;
    std::vector<float> from(many, 1);
    std::vector<float> to(many, 0);
    std::vector<Comm::Ticket> tickets;
    process.capturing = true;
    for (std::size_t i = 0; i < many; ++i) {
      tickets.push_back(comm.start(
          {.op = Op::all_reduce, .count = 1, .send = from.data() + i, .recv = to.data() + i}));
    }
    int wrong = 0;
    for (std::size_t i = 0; i < many; ++i) {
      comm.wait(tickets[i]);
      REQUIRE(Library::enqueue(compute, "read", [&, i] { wrong += to[i] == 1 ? 0 : 1; }).ok());
    }
    process.capturing = false;
    Library::synchronize(compute);
    CHECK(wrong == 0);
    comm.close();
  });
  fake::check_clean(world);
}

TEST_CASE("Nccl: a graph does not wait for what was started before it") {
  fake::World world(1, 7);
  fake::run_processes(world, 1, [&](fake::Process& process) {
    fake::Stream* const compute = fake::world_stream(world, process);
    Comm comm({{1}, 0, 1, compute}, stream_options(false));
    for (int i = 0; i < 50; ++i) REQUIRE(Library::enqueue(compute, "compute", [] {}).ok());
    float x = 1;
    auto ticket = comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x});
    process.capturing = true;
    comm.wait(ticket);
    process.capturing = false;
    CHECK(comm.poll());
    comm.close();
  });
  fake::check_clean(world);
}

TEST_CASE("Nccl: what runs behind a long graph is not late while the graph gets on") {
  fake::World world(1, 3);
  fake::run_processes(world, 1, [&](fake::Process& process) {
    fake::Stream* const compute = fake::world_stream(world, process);
    Options options = stream_options(false);
    options.deadline_s = 0.3;
    options.watch_s = 0.01;
    Comm comm({{1}, 0, 1, compute}, options);
    float x = 1;
    auto const reduce = [&](int bucket) {
      auto ticket =
          comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = bucket});
      comm.wait(ticket);
    };
    auto const start = std::chrono::steady_clock::now();
    process.capturing = true;
    for (int bucket = 0; bucket < 8; ++bucket) {
      auto const compute_for_long = [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(80));
      };
      REQUIRE(Library::enqueue(compute, "backward pass", compute_for_long).ok());
      reduce(bucket);
    }
    process.capturing = false;
    reduce(8);
    Library::synchronize(compute);
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    CHECK(took.count() > 2 * options.deadline_s);
    comm.close();
  });
  fake::check_clean(world);
}

TEST_CASE("Nccl: a rank that has nothing under way says what it would have called next") {
  fake::World world(2, 5);
  auto const what = fake::errors_of(world, 2, [&](fake::Process& process, fake::Stream* compute) {
    Comm comm({{1}, process.rank, 2, compute}, stream_options(false));
    float x = 1;
    auto ticket = comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x});
    comm.wait(ticket);
    Library::synchronize(compute);
    if (process.rank == 1) comm.report_failure("the disk is on fire");
    while (process.rank == 0) static_cast<void>(comm.poll());
  });
  CHECK_MESSAGE(fake::contains(what[0], "[watch, before call 2]: remote error"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: poll never blocks and says when all is done") {
  fake::World world(1, 1);
  fake::run_processes(world, 1, [&](fake::Process& process) {
    fake::Stream* const compute = fake::world_stream(world, process);
    Comm comm({{1}, 0, 1, compute}, stream_options(false));
    CHECK(comm.poll());
    bool open = false;
    REQUIRE(Library::enqueue(compute, "work", [&] { open = true; }).ok());
    float x = 1;
    auto ticket = comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x});
    while (!comm.poll()) {
    }
    CHECK(open);
    comm.wait(ticket);
    comm.close();
  });
  fake::check_clean(world);
}

}  // namespace
}  // namespace streams_test
