/// What a trainer who never blocks relies on: the order of streams, and a thread that watches.
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"

namespace streams_test {
namespace {

using fake::all_reduce;
using fake::Library;
using fake::Process;
using fake::quick_stream_options;
using fake::Stream;
using fake::World;
using zero::Error;
using zero::Op;
using Comm = fake::Nccl<>;

/// Writes, reduces, gathers and reads on the compute stream without ever waiting on the host;
/// returns how many elements were wrong.
int steps_without_waiting(Comm& comm, Stream* compute, bool capturing) {
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
    zero::run(
        comm,
        {.op = Op::reduce_scatter, .count = count, .send = data.data(), .recv = shard.data()});
    REQUIRE(Library::enqueue(compute, "update", update).ok());
    zero::run(comm,
              {.op = Op::all_gather, .count = count, .send = shard.data(), .recv = whole.data()});
    REQUIRE(Library::enqueue(compute, "read", read).ok());
  }
  compute->process->capturing = false;
  Library::synchronize(compute);
  return wrong;
}

TEST_CASE("Nccl: the compute stream and the communicator's wait for each other, never the host") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    World world(3, seed);
    fake::run_clean(world, [&](Process& process, Stream* compute) {
      process.script.in_progress = static_cast<int>(seed % 2);
      Comm comm({{1}, process.rank, 3, compute}, quick_stream_options());
      CHECK(steps_without_waiting(comm, compute, seed % 3 == 2) == 0);
      comm.close();
    });
  }
}

TEST_CASE("Nccl: a trainer blocked on its stream, or by a full one, is freed by who watches") {
  for (bool const full : {false, true}) {
    CAPTURE(full);
    World world(2, 5);
    world.errors_spread = false;
    world.process(1).script.hang_at = 3;
    auto const what = fake::errors_of(world, [&](Process& process, Stream* compute) {
      float x = 1;
      Comm comm({{1}, process.rank, 2, compute},
                quick_stream_options({.deadline_s = 0.2, .watch_s = 0.01}));
      if (full) process.script.room = 12;
      for (int bucket = 0; bucket < (full ? 100 : 6); ++bucket) all_reduce(comm, bucket, x);
      // Returns only because somebody else looks after the communicator.
      Library::synchronize(compute);
      static_cast<void>(comm.poll());
    });
    // Launch 0 is the constructor's, and an ordered all-reduce makes two.
    fake::check_told(what,
                     {"waited 0.2", "[all_reduce of 1 fp32 summed in fp32, bucket 1, call 2]"});
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: a replay that hangs is not watched, but what is started behind it is") {
  World world(2, 5);
  world.errors_spread = false;
  world.process(1).script.hang_at = 3;
  auto const what = fake::errors_of(world, [&](Process& process, Stream* compute) {
    float x = 1;
    Comm comm({{1}, process.rank, 2, compute},
              quick_stream_options({.deadline_s = 0.2, .watch_s = 0.01}));
    process.capturing = true;
    for (int bucket = 0; bucket < 6; ++bucket) all_reduce(comm, bucket, x);
    process.capturing = false;
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    CHECK(comm.poll());
    comm.confirm();
    CHECK(*comm.ended() == 0);
    all_reduce(comm, 6, x);
    Library::synchronize(compute);
    comm.confirm();
  });
  fake::check_told(what, {"waited 0.2", "[all_reduce of 1 fp32 summed in fp32, bucket 6, call 7]"});
  fake::check_clean(world);
}

TEST_CASE("Nccl: nothing uses the buffers of a start that the end of the group has overtaken") {
  World world(2, 5);
  world.errors_spread = false;
  std::atomic<bool> ended{false};
  fake::run_clean(world, [&](Process& process, Stream* compute) {
    fake::Choice choice{.deadline_s = 0.2, .watch_s = 0.01};
    if (process.rank == 0) choice.on_end = [&](std::string const&, bool) { ended = true; };
    Comm comm({{1}, process.rank, 2, compute}, quick_stream_options(choice));
    if (process.rank == 1) {
      while (!ended) std::this_thread::yield();
      comm.report_failure("came too late");
      return;
    }
    std::vector<float> data(2, 1);
    zero::Collective op{.op = Op::all_gather, .count = 1, .send = data.data(), .recv = data.data()};
    auto const late = comm.start(op);
    process.script.before_enqueue = [&](std::string_view call) {
      while (call == "sum_ranks" && !ended) std::this_thread::yield();
    };
    op.op = Op::reduce_scatter;
    CHECK_THROWS_AS(comm.start(op), Error);
    CHECK_FALSE(world.has_kernels(process));
  });
}

TEST_CASE("Nccl: a piece is exchanged while the one before it is added, and none that overtakes") {
  for (unsigned seed = 0; seed < 4; ++seed) {
    World world(2, seed);
    fake::run_clean(world, [&](Process& process, Stream* compute) {
      // Five pieces of 128 elements, the last one shorter.
      constexpr std::size_t count = 600;
      Comm comm({{1}, process.rank, 2, compute}, quick_stream_options({.staging_bytes = 2 << 10}));
      auto const exchanges = [&] {
        std::lock_guard const lock(world.mutex);
        return process.exchanges;
      };
      auto const hold = [&](bool holds) {
        std::lock_guard const lock(world.mutex);
        process.holds_kernels = holds;
      };
      std::vector<float> send(2 * count);
      for (std::size_t i = 0; i < send.size(); ++i) send[i] = static_cast<float>(i);
      std::vector<float> recv(count);
      hold(true);
      long const before = exchanges();
      auto ticket = comm.start(
          {.op = Op::reduce_scatter, .count = count, .send = send.data(), .recv = recv.data()});
      while (exchanges() < before + 2) static_cast<void>(comm.poll());
      // One that found nothing to wait for would be over soon.
      for (int i = 0; i < 300; ++i) static_cast<void>(comm.poll());
      CHECK(exchanges() == before + 2);
      hold(false);
      comm.wait(ticket);
      int wrong = 0;
      auto const read = [&] {
        auto const first = static_cast<std::size_t>(process.rank) * count;
        for (std::size_t i = 0; i < count; ++i) wrong += recv[i] == 2 * send[first + i] ? 0 : 1;
      };
      REQUIRE(Library::enqueue(compute, "read", read).ok());
      Library::synchronize(compute);
      CHECK(wrong == 0);
      CHECK(exchanges() == before + 5);
      comm.close();
    });
  }
}

TEST_CASE("Nccl: a graph waits for each of its collectives, however many there are") {
  World world(1, 7);
  fake::run_clean(world, [&](Process& process, Stream* compute) {
    Comm comm({{1}, 0, 1, compute}, quick_stream_options());
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
}

TEST_CASE("Nccl: in a graph, a result is waited for without what was started later") {
  World world(1, 7);
  fake::run_clean(world, [&](Process& process, Stream* compute) {
    Comm comm({{1}, 0, 1, compute}, quick_stream_options());
    float from[2] = {1, 2};
    float to[3] = {};
    process.capturing = true;
    auto const start = [&](Op op, int i) {
      return comm.start({.op = op,
                         .dtype = zero::DType::i32,
                         .accumulate = zero::DType::i32,
                         .count = 1,
                         .send = from + i % 2,
                         .recv = to + i});
    };
    auto first = start(Op::all_gather, 0);
    auto second = start(Op::all_gather, 1);
    auto other = start(Op::all_reduce, 2);
    auto const collectives_waited_for = [&](Comm::Ticket& ticket) {
      comm.wait(ticket);
      return world.collectives_before(compute->tasks.back().event);
    };
    CHECK(collectives_waited_for(first) == 1);
    CHECK(collectives_waited_for(second) == 2);
    CHECK(collectives_waited_for(other) == 3);
    process.capturing = false;
    Library::synchronize(compute);
    comm.close();
  });
}

TEST_CASE("Nccl: a graph does not wait for what was started before it") {
  World world(1, 7);
  fake::run_clean(world, [&](Process& process, Stream* compute) {
    Comm comm({{1}, 0, 1, compute}, quick_stream_options());
    for (int i = 0; i < 50; ++i) REQUIRE(Library::enqueue(compute, "compute", [] {}).ok());
    float x = 1;
    auto ticket = comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x});
    process.capturing = true;
    comm.wait(ticket);
    process.capturing = false;
    CHECK(comm.poll());
    comm.close();
  });
}

TEST_CASE("Nccl: a rank that has nothing under way says what it would have called next") {
  World world(2, 5);
  auto const what = fake::errors_of(world, [&](Process& process, Stream* compute) {
    Comm comm({{1}, process.rank, 2, compute}, quick_stream_options());
    float x = 1;
    all_reduce(comm, 0, x);
    Library::synchronize(compute);
    if (process.rank == 1) comm.report_failure("the disk is on fire");
    while (process.rank == 0) static_cast<void>(comm.poll());
  });
  CHECK_MESSAGE(fake::contains(what[0], "[watch, before call 2]: remote error"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: poll never blocks and says when all is done") {
  World world(1, 1);
  fake::run_clean(world, [&](Process&, Stream* compute) {
    Comm comm({{1}, 0, 1, compute}, quick_stream_options());
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
}

}  // namespace
}  // namespace streams_test
