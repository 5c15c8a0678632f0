/// What a rank that leaves waits for, and what it leaves alone from then on: the trainer's streams.
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"

namespace leaving_test {
namespace {

using fake::Library;
using fake::Process;
using fake::quick_stream_options;
using fake::Stream;
using fake::World;
using zero::Op;
using Comm = fake::Nccl<>;
using Existing = zero::nccl::Existing<Library>;
using NewGroup = zero::nccl::NewGroup<Library>;

/// Gathers as a replay of a graph does: nothing but the compute stream knows when it is over.
void replay(Process& process, Comm& comm, std::vector<float>& data) {
  process.capturing = true;
  zero::run(
      comm,
      {.op = Op::all_gather, .count = 1, .send = data.data() + comm.rank(), .recv = data.data()});
  process.capturing = false;
}

/// What runs on the compute streams when ranks begin to close, one much later than the others.
void check_order(unsigned seed, bool child) {
  constexpr int ranks = 3;
  INFO("seed " << seed << ", child " << child);
  World world(ranks, seed);
  std::atomic<int> over{0};
  fake::run_clean(world, [&](Process& process, Stream* compute) {
    Comm comm({{1}, process.rank, ranks, compute}, quick_stream_options());
    std::optional<Comm> part;
    if (child) part = comm.split(0, process.rank);
    Comm& closed = child ? *part : comm;
    std::vector<float> data(ranks, 1);
    int const work = process.rank == 1 ? 300 : 0;
    for (int i = 0; i < work; ++i) REQUIRE(Library::enqueue(compute, "compute", [] {}).ok());
    replay(process, closed, data);
    for (int i = 0; i < work; ++i) REQUIRE(Library::enqueue(compute, "compute", [] {}).ok());
    REQUIRE(Library::enqueue(compute, "the end", [&] { ++over; }).ok());
    closed.close();
    CHECK(over.load() == ranks);
    comm.close();
  });
}

TEST_CASE("Nccl: close comes after what all ranks' compute streams have, replays among it") {
  for (unsigned seed = 0; seed < 8; ++seed) {
    for (bool const child : {false, true}) check_order(seed, child);
  }
}

/// How a trainer leaves.
enum class Exit { closes, destroys, fails };

/// Everything that outlives the communicator goes when the trainer's streams have gone.
/// @param own  the trainer's communicator, on a stream of the trainer's
void check_streams(Exit exit, bool own, bool child) {
  INFO("exit " << static_cast<int>(exit) << ", own " << own << ", child " << child);
  World world(1, 3);
  fake::run_clean(world, [&](Process& process, Stream* compute) {
    Stream* const communication = fake::world_stream(world, process);
    std::optional<Comm> comm;
    if (own) {
      comm.emplace(Existing{fake::own_comm(0, 1), compute, communication}, quick_stream_options());
    } else {
      comm.emplace(NewGroup{{1}, 0, 1, compute}, quick_stream_options());
    }
    std::optional<Comm> part;
    if (child) part = comm->split(0, 0);
    auto allocator = (child ? *part : *comm).allocator();
    auto* const memory = static_cast<float*>(allocator.allocate(4096, 4096));
    std::vector<float> data(1, 1);
    replay(process, child ? *part : *comm, data);
    zero::run(*comm, {.op = Op::all_gather, .count = 1, .send = memory, .recv = memory});
    part.reset();
    // What runs on would keep what it uses.
    if (own) Library::synchronize(communication);
    if (own || exit == Exit::fails) Library::synchronize(compute);
    if (exit == Exit::closes) comm->close();
    if (exit == Exit::fails) comm->report_failure("the disk is on fire");
    if (exit != Exit::closes) comm.reset();
    for (Stream* const stream : {compute, communication}) {
      Library::synchronize(stream);
      fake::end_world_stream(world, stream);
    }
    if (comm) comm->confirm();
    allocator.deallocate(memory, 4096, 4096);
    allocator = {};
    comm.reset();
  });
}

TEST_CASE("Nccl: nobody asks the trainer's streams once the trainer has left") {
  for (Exit const exit : {Exit::closes, Exit::destroys, Exit::fails}) {
    for (bool const own : {false, true}) {
      for (bool const child : {false, true}) check_streams(exit, own, child);
    }
  }
}

TEST_CASE("Nccl: nor after a close that NCCL did not return from, of sub-groups that were kept") {
  World world(1, 3);
  world.process(0).script.destroy_hangs = true;
  auto const what = fake::errors_of(world, [&](Process& process, Stream* compute) {
    std::optional<Comm> comm;
    comm.emplace(NewGroup{{1}, 0, 1, compute}, quick_stream_options({.grace_s = 0.2}));
    std::optional<Comm> part = comm->split(0, 0);
    std::vector<float> data(1, 1);
    replay(process, *part, data);
    part.reset();
    CHECK_THROWS_WITH_AS(comm->close(), doctest::Contains("ncclCommDestroy"), zero::Error);
    Library::synchronize(compute);
    fake::end_world_stream(world, compute);
    comm.reset();
  });
  CHECK_MESSAGE(what[0].empty(), what[0]);
  CHECK_MESSAGE(world.violations().empty(), world.violations());
  world.release();
}

TEST_CASE("Nccl: nor where NCCL could not stop what was in them") {
  World world(1, 3);
  world.process(0).script.revokes = false;
  auto const what = fake::errors_of(world, [&](Process& process, Stream* compute) {
    Stream* const communication = fake::world_stream(world, process);
    std::optional<Comm> comm;
    comm.emplace(Existing{fake::own_comm(0, 1), compute, communication},
                 quick_stream_options({.deadline_s = 0.1, .grace_s = 0.1}));
    auto allocator = comm->allocator();
    void* const memory = allocator.allocate(4096, 4096);
    process.script.hang_at = process.launches;
    float x = 1;
    zero::run(*comm, {.op = Op::all_gather, .count = 1, .send = &x, .recv = &x});
    auto const poll = [&] {
      while (true) static_cast<void>(comm->poll());
    };
    CHECK_THROWS_WITH_AS(
        poll(), doctest::Contains("cannot stop the trainer's own communicator"), zero::Error);
    comm.reset();
    fake::end_world_stream(world, compute);
    fake::end_world_stream(world, communication);
    allocator.deallocate(memory, 4096, 4096);
    allocator = {};
  });
  CHECK_MESSAGE(what[0].empty(), what[0]);
  CHECK_MESSAGE(world.violations().empty(), world.violations());
  // What hangs may use them for ever.
  CHECK(world.live_memory > 0);
}

}  // namespace
}  // namespace leaving_test
