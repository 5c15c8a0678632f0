/// Memory from NCCL: what it is registered as, and what cannot be had is an error.
#include "zero/concepts/memory.hpp"

#include "nccl/world.hpp"
#include "zero/base/error.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace memory_test {
namespace {

using Clock = std::chrono::steady_clock;
using fake::all_reduce;
using fake::contains;
using fake::errors_of;
using zero::Error;
using zero::ErrorKind;
using zero::Op;
using zero::nccl::Options;
using zero::nccl::Registration;
using Comm = fake::Nccl<>;

TEST_CASE("Nccl: memory is registered as asked, gathers by copy engine demand it") {
  for (Registration const registration :
       {Registration::none, Registration::buffers, Registration::windows}) {
    fake::World world(2, 3);
    bool const windows = registration == Registration::windows;
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      Options options = fake::quick_options();
      options.registration = registration;
      options.separate_gathers = true;
      options.copy_engine_gathers = windows;
      options.max_ctas = 3;
      Comm comm({{1}, process.rank, 2, compute}, options);
      auto allocator = comm.allocator();
      static_assert(zero::Allocator<Comm::Allocator>);
      auto* const memory = static_cast<float*>(allocator.allocate(5000, 4096));
      auto const report = comm.report();
      bool const registered = registration != Registration::none;
      CHECK(report.registration == registration);
      CHECK(report.registered_bytes == (registered ? 8192u : 0u));
      CHECK(report.copy_engine_gathers == windows);
      CHECK(report.communicators == 2);
      // Sums are left to NCCL's kernels.
      REQUIRE(process.configs.size() == 2);
      CHECK_FALSE(process.configs[0].copy_engine);
      CHECK(process.configs[1].copy_engine == windows);
      CHECK(process.configs[0].max_ctas == 3);
      CHECK(process.configs[1].max_ctas == 3);
      CHECK(report.owned);
      CHECK(report.library_version == 22809);
      CHECK(report.reduction == "ordered");
      CHECK(report.unaligned == 0);
      memory[process.rank] = static_cast<float>(process.rank);
      zero::Collective gather{
          .op = Op::all_gather, .count = 1, .send = memory + process.rank, .recv = memory};
      zero::run(comm, gather);
      CHECK(memory[1] == 1);
      // An odd element of fp32 is where rank 1 sends from.
      CHECK(comm.report().unaligned == static_cast<std::uint64_t>(process.rank));
      float elsewhere[2] = {};
      gather.send = elsewhere + process.rank;
      gather.recv = elsewhere;
      if (windows) {
        CHECK_THROWS_WITH_AS(comm.start(gather), doctest::Contains("copy engine"), Error);
      } else {
        zero::run(comm, gather);
      }
      allocator.deallocate(memory, 5000, 4096);
      CHECK(comm.report().registered_bytes == 0);
      comm.close();
    });
    for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
    fake::check_clean(world);
  }
}

/// Work on the compute stream that does not end before `let_go`.
void block(fake::World& world, fake::Stream* stream) {
  std::lock_guard const lock(world.mutex);
  stream->tasks.push_back({.work = [] {}, .hangs = true});
}
void let_go(fake::World& world, fake::Stream* stream) {
  std::lock_guard const lock(world.mutex);
  stream->tasks.front().hangs = false;
}

/// What a group holds beside a few words for counters, as the fake device has given it out.
template <class C>
void check_held(std::size_t staging_bytes) {
  for (int const ranks : {1, 3}) {
    fake::World world(ranks, 3);
    auto const what = errors_of(world, ranks, [&](fake::Process& process, auto* compute) {
      Options options = fake::quick_options();
      options.staging_bytes = staging_bytes;
      C comm({{1}, process.rank, ranks, compute}, options);
      std::uint64_t const held = comm.held();
      CHECK(held == C::planned_bytes(options, ranks, 1));
      all_reduce(comm, 0);
      CHECK(comm.held() == held);
      // All ranks have constructed theirs, and none has closed it.
      {
        std::lock_guard const lock(world.mutex);
        auto const of_a_rank = [&](auto const& entry) { return entry.second == held; };
        CHECK(std::ranges::count_if(world.allocations, of_a_rank) == ranks);
      }
      all_reduce(comm, 1);
      comm.close();
    });
    for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: what a group holds is what was planned, and what the device has given out") {
  check_held<fake::Nccl<>>(777'216);
  check_held<fake::Nccl<zero::nccl::Native>>(777'216);
}

TEST_CASE("Nccl: memory in use when it is given back keeps its registration until the group ends") {
  for (Registration const registration : {Registration::buffers, Registration::windows}) {
    fake::World world(1, 1);
    auto const what = errors_of(world, 1, [&](fake::Process&, auto* compute) {
      Options options = fake::quick_options();
      options.grace_s = 0.05;
      options.registration = registration;
      Comm comm({{1}, 0, 1, compute}, options);
      auto allocator = comm.allocator();
      void* const memory = allocator.allocate(5000, 4096);
      block(world, compute);
      std::size_t seen = 0;
      auto const replay = [&] { seen = world.registered.count(memory); };
      REQUIRE(fake::Library::enqueue(compute, "replay", replay).ok());
      allocator.deallocate(memory, 5000, 4096);
      CHECK(comm.report().registered_bytes == 8192);
      let_go(world, compute);
      fake::Library::synchronize(compute);
      CHECK(seen == 1);
      comm.close();
      CHECK(world.registered.empty());
    });
    CHECK(world.live_memory == 1);
    CHECK_MESSAGE(what[0].empty(), what[0]);
    CHECK_MESSAGE(world.violations().empty(), world.violations());
  }
}

TEST_CASE("Nccl: all blocks that are given back together wait for one grace time") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](fake::Process&, auto* compute) {
    Options options = fake::quick_options();
    options.grace_s = 0.5;
    Comm comm({{1}, 0, 1, compute}, options);
    auto allocator = comm.allocator();
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(allocator.allocate(4096, 4096));
    void* const later = allocator.allocate(4096, 4096);
    long const before = world.live_memory;
    block(world, compute);
    auto const start = Clock::now();
    for (void* const memory : blocks) allocator.deallocate(memory, 4096, 4096);
    std::chrono::duration<double> const took = Clock::now() - start;
    CHECK(took.count() >= options.grace_s);
    CHECK(took.count() < 3 * options.grace_s);
    CHECK(world.live_memory == before);
    // Another time, there is time again: work that ends within it keeps nothing.
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    std::thread ends([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      let_go(world, compute);
    });
    allocator.deallocate(later, 4096, 4096);
    ends.join();
    CHECK(world.live_memory == before - 1);
    comm.close();
  });
  CHECK_MESSAGE(what[0].empty(), what[0]);
  CHECK_MESSAGE(world.violations().empty(), world.violations());
}

TEST_CASE("Nccl: memory that cannot be had is refused") {
  CHECK_THROWS_WITH_AS(static_cast<void>(Comm::Allocator{}.allocate(8, 8)),
                       doctest::Contains("no communicator made"),
                       Error);
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    Comm comm({{1}, 0, 1, compute}, fake::quick_options());
    CHECK(comm.allocator().allocate(0, 4096) == nullptr);
    CHECK_THROWS_WITH_AS(static_cast<void>(comm.allocator().allocate(8, 8192)),
                         doctest::Contains("not aligned to 8192"),
                         Error);
    // current_device, mem_alloc
    process.script.fail_call = process.calls + 1;
    try {
      static_cast<void>(comm.allocator().allocate(8, 8));
      FAIL("no error");
    } catch (Error const& error) {
      CHECK(error.kind() == ErrorKind::resource);
    }
    all_reduce(comm, 0);
    comm.close();
  });
  CHECK_MESSAGE(what[0].empty(), what[0]);
  fake::check_clean(world);
}

TEST_CASE(
    "Nccl: gathers by copy engine are an error, not a fallback, where the driver is too old") {
  fake::World world(1, 1);
  world.process(0).script.driver = false;
  auto const what = errors_of(world, 1, [&](auto&, auto* compute) {
    Options options = fake::quick_options();
    options.registration = Registration::windows;
    options.copy_engine_gathers = true;
    Comm comm({{1}, 0, 1, compute}, options);
  });
  CHECK_MESSAGE(contains(what[0], "copy_engine_gathers needs"), what[0]);
}

TEST_CASE("Nccl: gathers by copy engine are an error where ranks are on several nodes") {
  fake::World world(2, 1);
  for (int rank : {0, 1}) world.process(rank).script.near_ranks = 1;
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    Options options = fake::quick_options();
    options.registration = Registration::windows;
    options.copy_engine_gathers = true;
    Comm comm({{1}, process.rank, 2, compute}, options);
  });
  for (std::string const& text : what) {
    CHECK_MESSAGE(contains(text, "needs all 2 ranks on one node, not 1"), text);
  }
}

TEST_CASE("Nccl: a registration that NCCL leaves out is an error, not a fallback") {
  for (Registration const registration : {Registration::buffers, Registration::windows}) {
    fake::World world(2, 1);
    for (int rank : {0, 1}) world.process(rank).script.registers = false;
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      Options options = fake::quick_options();
      options.registration = registration;
      Comm comm({{1}, process.rank, 2, compute}, options);
      static_cast<void>(comm.allocator().allocate(5000, 4096));
    });
    // The first to notice ends the group, which the other may notice first.
    bool const windows = registration == Registration::windows;
    char const* const reason = windows ? "made none" : "skipped the registration";
    CHECK_FALSE(what[0].empty());
    CHECK_FALSE(what[1].empty());
    CHECK_MESSAGE((contains(what[0], reason) || contains(what[1], reason)), what[0]);
  }
}

}  // namespace
}  // namespace memory_test
