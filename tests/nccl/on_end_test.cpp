/// A trainer who is told of the end of a group without asking.
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"

namespace on_end_test {
namespace {

using Clock = std::chrono::steady_clock;
using fake::contains;
using fake::Process;
using fake::quick_options;
using fake::quick_stream_options;
using fake::Stream;
using fake::World;
using Comm = fake::Nccl<>;

/// What one rank was told.
struct Told {
  std::atomic<int> times{0};
  std::string reason{};
  bool stuck = false;
  std::thread::id by{};

  [[nodiscard]] auto hook() {
    return [this](std::string const& text, bool is_stuck) {
      reason = text;
      stuck = is_stuck;
      by = std::this_thread::get_id();
      ++times;
    };
  }
};

TEST_CASE("Nccl: a trainer who never comes back from CUDA is told of the end") {
  World world(2, 5);
  world.errors_spread = false;
  for (int rank : {0, 1}) world.process(rank).script.abort_hangs = true;
  world.process(1).script.hang_at = 3;
  std::vector<Told> told(2);
  auto const what = fake::errors_of(world, [&](Process& process, Stream* compute) {
    Told& mine = told[static_cast<std::size_t>(process.rank)];
    Comm comm({{1}, process.rank, 2, compute},
              quick_stream_options({.deadline_s = 0.2, .grace_s = 0.1, .on_end = mine.hook()}));
    float x = 1;
    for (int bucket = 0; bucket < 3; ++bucket) fake::all_reduce(comm, bucket, x);
    // As a synchronisation does, but for the test's own limit.
    auto const start = Clock::now();
    while (mine.times == 0 && Clock::now() - start < std::chrono::seconds(10)) {
      std::this_thread::yield();
    }
    CHECK(Clock::now() - start < std::chrono::seconds(5));
    CHECK(mine.by != std::this_thread::get_id());
    CHECK(mine.stuck);
    std::lock_guard const lock(world.mutex);
    CHECK_FALSE(compute->tasks.empty());
  });
  for (std::size_t const index : {0u, 1u}) {
    CHECK_MESSAGE(what[index].empty(), what[index]);
    CHECK(told[index].times == 1);
    fake::check_told(
        {told[index].reason},
        {"waited 0.2", "all_reduce of 1", "bucket 1", "did not return from the abort"});
  }
  world.release();
}

TEST_CASE("Nccl: the end is told once, with the sentence that all calls throw") {
  World world(2, 1);
  std::barrier split(2);
  std::vector<Told> told(2);
  fake::run_clean(world, [&](Process& process, auto* compute) {
    Told& mine = told[static_cast<std::size_t>(process.rank)];
    Comm comm({{1}, process.rank, 2, compute}, quick_options({.on_end = mine.hook()}));
    Comm child = comm.split(0, process.rank);
    split.arrive_and_wait();
    if (process.rank == 0) CHECK(child.report_failure("the disk is on fire"));
    CHECK_FALSE((process.rank == 0 && comm.report_failure("and so is the printer")));
    try {
      while (true) fake::all_reduce(comm, 4);
    } catch (zero::Error const& error) {
      CHECK_MESSAGE(contains(error.what(), mine.reason), error.what());
      CHECK_THROWS_WITH_AS(
          fake::all_reduce(child, 5), doctest::Contains(mine.reason.c_str()), zero::Error);
    }
  });
  for (Told const& mine : told) {
    CHECK(mine.times == 1);
    CHECK_FALSE(mine.stuck);
    CHECK_FALSE(mine.reason.empty());
  }
  CHECK(contains(told[0].reason, "the disk is on fire"));
}

TEST_CASE("Nccl: who is told of the end may ask the communicator, and may throw") {
  World world(1, 1);
  auto const what = fake::errors_of(world, [&](Process& process, auto* compute) {
    Comm* group = nullptr;
    std::atomic<int> told{0};
    auto const hook = [&](std::string const&, bool) {
      CHECK(group->report().owned);
      ++told;
      throw std::runtime_error("the log is full");
    };
    Comm comm({{1}, 0, 1, compute}, quick_stream_options({.deadline_s = 0.1, .on_end = hook}));
    group = &comm;
    process.script.hang_at = process.launches;
    float x = 1;
    zero::run(comm, {.op = zero::Op::all_gather, .count = 1, .send = &x, .recv = &x});
    fake::Library::synchronize(compute);
    while (told == 0) std::this_thread::yield();
    comm.confirm();
  });
  CHECK_MESSAGE(contains(what[0], "waited 0.1"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: a group that ends in order tells nobody") {
  for (bool const closes : {false, true}) {
    World world(1, 1);
    Told told;
    fake::run_clean(world, [&](auto&, auto* compute) {
      Comm comm({{1}, 0, 1, compute}, quick_options({.on_end = told.hook()}));
      fake::all_reduce(comm, 0);
      if (closes) comm.close();
    });
    CHECK(told.times == 0);
  }
}

}  // namespace
}  // namespace on_end_test
