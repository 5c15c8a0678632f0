/// Memory from NCCL: what it is registered as, and what cannot be had is an error.
#include "nccl/world.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/allocator.hpp"

namespace memory_test {
namespace {

using Clock = std::chrono::steady_clock;
using fake::all_reduce;
using fake::contains;
using fake::Process;
using fake::quick_options;
using fake::World;
using zero::Error;
using zero::ErrorKind;
using zero::Op;
using zero::nccl::Registration;
using Comm = fake::Nccl<>;

TEST_CASE("Nccl: memory is registered as asked") {
  for (Registration const registration :
       {Registration::none, Registration::buffers, Registration::windows}) {
    World world(2, 3);
    fake::run_clean(world, [&](Process& process, auto* compute) {
      Comm comm({{1}, process.rank, 2, compute},
                quick_options({.registration = registration, .max_ctas = 3}));
      auto allocator = comm.allocator();
      static_assert(zero::Allocator<Comm::Allocator>);
      auto* const memory = static_cast<float*>(allocator.allocate(5000, 4096));
      auto const report = comm.report();
      bool const registered = registration != Registration::none;
      CHECK(report.registration == registration);
      CHECK(report.registered_bytes == (registered ? 8192u : 0u));
      CHECK(report.owned);
      CHECK(report.library_version == 22809);
      CHECK(report.reduction == "ordered");
      CHECK(report.unaligned == 0);
      CHECK(process.max_ctas == std::vector{3});
      memory[process.rank] = static_cast<float>(process.rank);
      zero::Collective const gather{
          .op = Op::all_gather, .count = 1, .send = memory + process.rank, .recv = memory};
      zero::run(comm, gather);
      CHECK(memory[1] == 1);
      // An odd element of fp32 is where rank 1 sends from.
      CHECK(comm.report().unaligned == static_cast<std::uint64_t>(process.rank));
      allocator.deallocate(memory, 5000, 4096);
      CHECK(comm.report().registered_bytes == 0);
      comm.close();
    });
  }
}

/// Work on the compute stream that does not end before `let_go`.
void block(World& world, fake::Stream* stream) {
  std::lock_guard const lock(world.mutex);
  stream->tasks.push_back({.work = [] {}, .hangs = true});
}
void let_go(World& world, fake::Stream* stream) {
  std::lock_guard const lock(world.mutex);
  stream->tasks.front().hangs = false;
}

/// What a group holds beside a few words for counters, as the fake device has given it out.
template <class C>
void check_held() {
  for (int const ranks : {1, 3}) {
    World world(ranks, 3);
    fake::run_clean(world, [&](Process& process, auto* compute) {
      auto const options = quick_options({.staging_bytes = 777'216});
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
  }
}

TEST_CASE("Nccl: what a group holds is what was planned, and what the device has given out") {
  check_held<fake::Nccl<>>();
  check_held<fake::Nccl<zero::nccl::Native>>();
}

TEST_CASE("Nccl: memory in use when it is given back keeps its registration until the group ends") {
  for (Registration const registration : {Registration::buffers, Registration::windows}) {
    World world(1, 1);
    auto const what = fake::errors_of(world, [&](Process&, auto* compute) {
      Comm comm({{1}, 0, 1, compute},
                quick_options({.grace_s = 0.05, .registration = registration}));
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
  World world(1, 1);
  auto const what = fake::errors_of(world, [&](Process&, auto* compute) {
    constexpr double grace_s = 0.5;
    Comm comm({{1}, 0, 1, compute}, quick_options({.grace_s = grace_s}));
    auto allocator = comm.allocator();
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(allocator.allocate(4096, 4096));
    void* const later = allocator.allocate(4096, 4096);
    long const before = world.live_memory;
    block(world, compute);
    auto const start = Clock::now();
    for (void* const memory : blocks) allocator.deallocate(memory, 4096, 4096);
    std::chrono::duration<double> const took = Clock::now() - start;
    CHECK(took.count() >= grace_s);
    CHECK(took.count() < 3 * grace_s);
    CHECK(world.live_memory == before);
    // Once there has been more memory, there is time again: work that ends within it keeps nothing.
    void* const latest = allocator.allocate(4096, 4096);
    std::thread ends([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      let_go(world, compute);
    });
    allocator.deallocate(later, 4096, 4096);
    ends.join();
    CHECK(world.live_memory == before);
    allocator.deallocate(latest, 4096, 4096);
    CHECK(world.live_memory == before - 1);
    comm.close();
  });
  CHECK_MESSAGE(what[0].empty(), what[0]);
  CHECK_MESSAGE(world.violations().empty(), world.violations());
}

TEST_CASE("Nccl: memory that begins within a page is used from the next one on, and given back") {
  for (Registration const registration : {Registration::buffers, Registration::windows}) {
    World world(2, 2);
    auto const what = fake::errors_of(world, [&](Process& process, auto* compute) {
      process.script.aligned = false;
      Comm comm({{1}, process.rank, 2, compute}, quick_options({.registration = registration}));
      auto allocator = comm.allocator();
      auto* const memory = static_cast<float*>(allocator.allocate(5000, 4096));
      CHECK(reinterpret_cast<std::uintptr_t>(memory) % 4096 == 0);
      memory[2047] = 1.f;  // the last of its pages
      allocator.deallocate(memory, 5000, 4096);
      all_reduce(comm, 0);
      comm.close();
    });
    CHECK(world.live_memory == 0);
    for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
    CHECK_MESSAGE(world.violations().empty(), world.violations());
  }
}

TEST_CASE("Nccl: memory that cannot be had is refused") {
  CHECK_THROWS_WITH_AS(static_cast<void>(Comm::Allocator{}.allocate(8, 8)),
                       doctest::Contains("no communicator made"),
                       Error);
  World world(1, 1);
  fake::run_clean(world, [&](Process& process, auto* compute) {
    Comm comm({{1}, 0, 1, compute}, quick_options());
    CHECK(comm.allocator().allocate(0, 4096) == nullptr);
    CHECK_THROWS_WITH_AS(static_cast<void>(comm.allocator().allocate(8, 8192)),
                         doctest::Contains("not aligned to 8192"),
                         Error);
    // current_device, mem_alloc
    process.script.fail_call = process.calls + 1;
    std::string const text =
        refusal([&] { static_cast<void>(comm.allocator().allocate(8, 8)); }, ErrorKind::resource);
    CHECK_MESSAGE(contains(text, "scripted"), text);
    all_reduce(comm, 0);
    comm.close();
  });
}

TEST_CASE("Nccl: what NCCL cannot do is an error, not a fallback") {
  struct {
    char const* what;
    void (*lacks)(fake::Script&);
    fake::Choice choice;
    char const* words;
  } const rows[] = {
      {"a registration of buffers that NCCL leaves out",
       [](fake::Script& script) { script.registers = false; },
       {.registration = Registration::buffers},
       "skipped the registration"},
      {"windows of which NCCL makes none",
       [](fake::Script& script) { script.registers = false; },
       {.registration = Registration::windows},
       "made none"},
  };
  for (auto const& row : rows) {
    CAPTURE(row.what);
    World world(2, 1);
    for (int const rank : {0, 1}) row.lacks(world.process(rank).script);
    auto const what = fake::errors_of(world, [&](Process& process, auto* compute) {
      Comm comm({{1}, process.rank, 2, compute}, quick_options(row.choice));
      static_cast<void>(comm.allocator().allocate(5000, 4096));
    });
    // The first to notice ends the group, which the other may notice first.
    for (std::string const& text : what) CHECK_FALSE(text.empty());
    CHECK_MESSAGE((contains(what[0], row.words) || contains(what[1], row.words)), what[0]);
  }
}

}  // namespace
}  // namespace memory_test
