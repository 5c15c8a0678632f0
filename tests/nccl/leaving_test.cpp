/// What a rank that leaves waits for, and what it leaves alone from then on: the trainer's streams.
#include "nccl/world.hpp"
#include "zero/base/error.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace leaving_test {
namespace {

using fake::errors_of;
using fake::Library;
using zero::Op;
using zero::nccl::Options;
using Comm = fake::Nccl<>;

/// Gathers as a replay of a graph does: nothing but the compute stream knows when it is over.
void replay(fake::Process& process, Comm& comm, std::vector<float>& data) {
  process.capturing = true;
  auto ticket = comm.start(
      {.op = Op::all_gather, .count = 1, .send = data.data() + comm.rank(), .recv = data.data()});
  comm.wait(ticket);
  process.capturing = false;
}

/// What runs on the compute streams when ranks begin to close, one much later than the others.
void check_order(unsigned seed, bool separate, bool child) {
  constexpr int ranks = 3;
  INFO("seed " << seed << ", separate " << separate << ", child " << child);
  fake::World world(ranks, seed);
  std::atomic<int> over{0};
  auto const what = errors_of(world, ranks, [&](fake::Process& process, auto* compute) {
    Options options = fake::quick_stream_options();
    options.separate_gathers = separate;
    Comm comm({{1}, process.rank, ranks, compute}, options);
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
  for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
  fake::check_clean(world);
}

TEST_CASE("Nccl: close comes after what all ranks' compute streams have, replays among it") {
  for (unsigned seed = 0; seed < 8; ++seed) {
    for (bool const separate : {false, true}) {
      for (bool const child : {false, true}) check_order(seed, separate, child);
    }
  }
}

/// A communicator of the trainer's own.
Library::Comm make_lent() {
  Library::Comm lent = nullptr;
  REQUIRE(Library::init(&lent, 1, {1}, 0, {}).pending());
  auto state = zero::nccl::Result::in_progress;
  while (state == zero::nccl::Result::in_progress) {
    REQUIRE(Library::async_error(lent, &state).ok());
  }
  return lent;
}

/// How a trainer leaves.
enum class Exit { closes, destroys, fails };

/// Everything that outlives the communicator goes when the trainer's streams have gone.
/// @param own  the trainer's communicator, on a stream of the trainer's
void check_streams(Exit exit, bool own, bool child) {
  INFO("exit " << static_cast<int>(exit) << ", own " << own << ", child " << child);
  fake::World world(1, 3);
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    fake::Stream* const communication = fake::world_stream(world, process);
    std::optional<Comm> comm;
    if (own) {
      comm.emplace(zero::nccl::Existing<Library>{make_lent(), compute, communication},
                   fake::quick_stream_options());
    } else {
      comm.emplace(zero::nccl::NewGroup<Library>{{1}, 0, 1, compute}, fake::quick_stream_options());
    }
    std::optional<Comm> part;
    if (child) part = comm->split(0, 0);
    auto allocator = (child ? *part : *comm).allocator();
    auto* const memory = static_cast<float*>(allocator.allocate(4096, 4096));
    std::vector<float> data(1, 1);
    replay(process, child ? *part : *comm, data);
    Comm::Ticket ticket =
        comm->start({.op = Op::all_gather, .count = 1, .send = memory, .recv = memory});
    comm->wait(ticket);
    part.reset();
    // What runs on would keep what it uses.
    if (own) Library::synchronize(communication);
    if (exit == Exit::closes) comm->close();
    if (exit == Exit::fails) comm->report_failure("the disk is on fire");
    if (exit != Exit::closes) comm.reset();
    Library::synchronize(compute);
    Library::synchronize(communication);
    fake::end_world_stream(world, compute);
    fake::end_world_stream(world, communication);
    if (comm) comm->confirm();
    allocator.deallocate(memory, 4096, 4096);
    allocator = {};
    comm.reset();
  });
  for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
  fake::check_clean(world);
}

TEST_CASE("Nccl: nobody asks the trainer's streams once the trainer has left") {
  for (Exit const exit : {Exit::closes, Exit::destroys, Exit::fails}) {
    for (bool const own : {false, true}) {
      for (bool const child : {false, true}) check_streams(exit, own, child);
    }
  }
}

TEST_CASE("Nccl: nor after a close that NCCL did not return from, of sub-groups that were kept") {
  fake::World world(1, 3);
  world.process(0).script.destroy_hangs = true;
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    Options options = fake::quick_stream_options();
    options.grace_s = 0.2;
    std::optional<Comm> comm(
        std::in_place, zero::nccl::NewGroup<Library>{{1}, 0, 1, compute}, options);
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
  world.release_aborts = true;
  while (world.hanging_aborts != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE("Nccl: nor where NCCL could not stop what was in them") {
  fake::World world(1, 3);
  world.process(0).script.revokes = false;
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    fake::Stream* const communication = fake::world_stream(world, process);
    Options options = fake::quick_stream_options();
    options.deadline_s = 0.1;
    options.grace_s = 0.1;
    std::optional<Comm> comm(
        std::in_place, zero::nccl::Existing<Library>{make_lent(), compute, communication}, options);
    auto allocator = comm->allocator();
    void* const memory = allocator.allocate(4096, 4096);
    process.script.hang_at = process.launches;
    float x = 1;
    auto ticket = comm->start({.op = Op::all_gather, .count = 1, .send = &x, .recv = &x});
    comm->wait(ticket);
    CHECK_THROWS_WITH_AS(
        [&] {
          while (true) static_cast<void>(comm->poll());
        }(),
        doctest::Contains("cannot stop the trainer's own communicator"),
        zero::Error);
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
