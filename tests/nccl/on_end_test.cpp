/// A trainer who is told of the end of a group without asking.
#include "nccl/world.hpp"
#include "zero/base/error.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace on_end_test {
namespace {

using Clock = std::chrono::steady_clock;
using fake::contains;
using fake::errors_of;
using zero::Op;
using zero::nccl::Options;
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
  fake::World world(2, 5);
  world.errors_spread = false;
  for (int rank : {0, 1}) world.process(rank).script.abort_hangs = true;
  world.process(1).script.hang_at = 3;
  std::vector<Told> told(2);
  auto const what = errors_of(world, 2, [&](fake::Process& process, fake::Stream* compute) {
    Told& mine = told[static_cast<std::size_t>(process.rank)];
    Options options = fake::quick_stream_options();
    options.deadline_s = 0.2;
    options.grace_s = 0.1;
    options.on_end = mine.hook();
    Comm comm({{1}, process.rank, 2, compute}, options);
    float x = 1;
    for (int bucket = 0; bucket < 3; ++bucket) {
      auto ticket =
          comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = bucket});
      comm.wait(ticket);
    }
    // As a synchronisation does, but for the test's own limit.
    auto const start = Clock::now();
    while (mine.times == 0 && Clock::now() - start < std::chrono::seconds(10)) {
      std::this_thread::yield();
    }
    CHECK(Clock::now() - start < std::chrono::seconds(5));
    CHECK(mine.times == 1);
    CHECK(mine.by != std::this_thread::get_id());
    CHECK(mine.stuck);
    std::lock_guard const lock(world.mutex);
    CHECK_FALSE(compute->tasks.empty());
  });
  for (std::size_t const index : {0u, 1u}) {
    CHECK_MESSAGE(what[index].empty(), what[index]);
    Told const& mine = told[index];
    CHECK(mine.times == 1);
    CHECK_MESSAGE(contains(mine.reason, "waited 0.2"), mine.reason);
    CHECK_MESSAGE(contains(mine.reason, "all_reduce of 1"), mine.reason);
    CHECK_MESSAGE(contains(mine.reason, "bucket 1"), mine.reason);
    CHECK_MESSAGE(contains(mine.reason, "did not return from the abort"), mine.reason);
  }
  world.release_aborts = true;
  while (world.hanging_aborts != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE("Nccl: the end is told once, with the sentence that all calls throw") {
  fake::World world(2, 1);
  std::vector<Told> told(2);
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    Told& mine = told[static_cast<std::size_t>(process.rank)];
    Options options = fake::quick_options();
    options.separate_gathers = true;
    options.on_end = mine.hook();
    Comm comm({{1}, process.rank, 2, compute}, options);
    Comm child = comm.split(0, process.rank);
    if (process.rank == 0) CHECK(child.report_failure("the disk is on fire"));
    CHECK_FALSE((process.rank == 0 && comm.report_failure("and so is the printer")));
    try {
      while (true) fake::all_reduce(comm, 4);
    } catch (zero::Error const& error) {
      CHECK_MESSAGE(contains(error.what(), mine.reason.c_str()), error.what());
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
  fake::check_clean(world);
}

TEST_CASE("Nccl: who is told of the end may ask the communicator, and may throw") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    Comm* group = nullptr;
    std::atomic<int> told{0};
    Options options = fake::quick_stream_options();
    options.deadline_s = 0.1;
    options.on_end = [&](std::string const&, bool) {
      CHECK(group->report().owned);
      ++told;
      throw std::runtime_error("the log is full");
    };
    Comm comm({{1}, 0, 1, compute}, options);
    group = &comm;
    process.script.hang_at = process.launches;
    float x = 1;
    auto ticket = comm.start({.op = Op::all_gather, .count = 1, .send = &x, .recv = &x});
    comm.wait(ticket);
    fake::Library::synchronize(compute);
    while (told == 0) std::this_thread::yield();
    comm.confirm();
  });
  CHECK_MESSAGE(contains(what[0], "waited 0.1"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: a group that ends in order tells nobody") {
  for (bool const closes : {false, true}) {
    fake::World world(1, 1);
    Told told;
    auto const what = errors_of(world, 1, [&](auto&, auto* compute) {
      Options options = fake::quick_options();
      options.on_end = told.hook();
      Comm comm({{1}, 0, 1, compute}, options);
      fake::all_reduce(comm, 0);
      if (closes) comm.close();
    });
    CHECK_MESSAGE(what[0].empty(), what[0]);
    CHECK(told.times == 0);
    fake::check_clean(world);
  }
}

}  // namespace
}  // namespace on_end_test
