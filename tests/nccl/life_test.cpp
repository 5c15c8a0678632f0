/// How NCCL groups are built, how they end, and what they say about themselves.
#include "nccl/world.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/memory.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace life_test {
namespace {

using Clock = std::chrono::steady_clock;
using fake::all_reduce;
using fake::contains;
using fake::errors_of;
using fake::Library;
using zero::Error;
using zero::ErrorKind;
using zero::Op;
using zero::nccl::Options;
using zero::nccl::Registration;
using zero::nccl::Result;
using Comm = fake::Nccl<>;

// current_device, capture, event_record, stream_wait
constexpr long calls_before_all_reduce = 4;

/// The first NCCL that has windows at all.
struct OldLibrary : Library {
  static constexpr int header_version = 22703;
};

TEST_CASE("Nccl: windows are refused before any memory where NCCL does not make symmetric ones") {
  fake::World world(1, 1);
  world.process(0).script.version = 22703;
  for (bool const windows : {false, true}) {
    auto const what = errors_of(world, 1, [&](auto&, auto* compute) {
      Options options = fake::quick_options();
      if (windows) options.registration = Registration::windows;
      zero::BasicNccl<OldLibrary> comm({{1}, 0, 1, compute}, options);
      comm.close();
    });
    CHECK(contains(what[0], "windows need NCCL 2.28") == windows);
    CHECK(what[0].empty() != windows);
  }
  fake::check_clean(world);
}

TEST_CASE("Nccl: a library older than its header is refused, with both versions") {
  fake::World world(1, 1);
  world.process(0).script.version = 22703;
  auto const what = errors_of(world, 1, [&](auto&, auto* compute) {
    Comm comm({{1}, 0, 1, compute}, fake::quick_options());
  });
  CHECK(contains(what[0], "NCCL 2.27.3 runs, but this program was compiled for 2.28.9"));
  fake::check_clean(world);
}

TEST_CASE("Nccl: ranks with different versions or options refuse on all ranks alike") {
  struct Difference {
    std::function<void(fake::Process&, Options&)> make;
    char const* words;
  };
  Difference const differences[] = {
      {[](auto& process, auto&) { process.script.version = 23000; }, "NCCL version 23000"},
      {[](auto&, auto& options) { options.staging_bytes *= 2; }, "staging_bytes 131072"},
      {[](auto&, auto& options) { options.registration = Registration::buffers; },
       "registration 1"},
      {[](auto&, auto& options) { options.separate_gathers = true; }, "separate_gathers 1"},
  };
  for (auto const& difference : differences) {
    fake::World world(3, 1);
    auto const what = errors_of(world, 3, [&](fake::Process& process, auto* compute) {
      Options options = fake::quick_options();
      if (process.rank == 2) difference.make(process, options);
      Comm comm({{1}, process.rank, 3, compute}, options);
    });
    for (std::string const& text : what) {
      CHECK_MESSAGE(contains(text, "rank 2 has "), text);
      CHECK_MESSAGE(contains(text, difference.words), text);
    }
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: a rank that does not come is waited for until the deadline") {
  fake::World world(2, 1);
  auto const start = Clock::now();
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    if (process.rank == 1) return;
    Options options = fake::quick_options();
    options.deadline_s = 0.2;
    Comm comm({{1}, 0, 2, compute}, options);
  });
  double const seconds = std::chrono::duration<double>(Clock::now() - start).count();
  CHECK_MESSAGE(contains(what[0], "rank 0 waited 0.2"), what[0]);
  CHECK(contains(what[0], "[init]"));
  CHECK(seconds > 0.2);
  CHECK(seconds < 5);
  fake::check_clean(world);
}

TEST_CASE("Nccl: options that no group can have are refused before NCCL is called") {
  fake::World world(1, 1);
  std::function<void(Options&)> const mistakes[] = {
      [](Options& options) { options.deadline_s = 0; },
      [](Options& options) { options.grace_s = -1; },
      [](Options& options) { options.watch_s = -1; },
      [](Options& options) { options.waiting = zero::nccl::Waiting::stream; },
      [](Options& options) { options.max_ctas = -1; },
      [](Options& options) { options.staging_bytes = 100; },
      [](Options& options) { options.copy_engine_gathers = true; },
  };
  for (auto const& mistake : mistakes) {
    auto const what = errors_of(world, 1, [&](auto&, auto* compute) {
      Options options = fake::quick_options();
      mistake(options);
      Comm comm({{1}, 0, 1, compute}, options);
    });
    CHECK_MESSAGE(contains(what[0], "NCCL options: "), what[0]);
  }
  CHECK(world.process(0).calls == 0);
}

TEST_CASE("Nccl: the trainer's own communicator is never destroyed, and revoked when it fails") {
  for (bool const fails : {false, true}) {
    fake::World world(2, 1);
    std::vector<Library::Comm> own(2);
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      auto& comm = own[static_cast<std::size_t>(process.rank)];
      REQUIRE(Library::init(&comm, 2, {1}, process.rank, {}).pending());
      auto state = Result::in_progress;
      while (state == Result::in_progress) REQUIRE(Library::async_error(comm, &state).ok());
      Options options = fake::quick_options();
      options.deadline_s = fails ? 0.3 : 60;
      Comm wrapped(zero::nccl::Existing<Library>{comm, compute, compute}, options);
      CHECK(wrapped.rank() == process.rank);
      CHECK(wrapped.size() == 2);
      CHECK_FALSE(wrapped.report().owned);
      all_reduce(wrapped, 1);
      if (fails) wrapped.report_failure("the disk is on fire");
      all_reduce(wrapped, 2);
      wrapped.close();
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CHECK_FALSE(own[rank]->dead);
      CHECK_FALSE(own[rank]->finalized);
      CHECK(own[rank]->revoked == fails);
      if (fails) CHECK_FALSE(contains(what[rank], "cannot stop"));
      // Whoever is late to report has already heard of it from NCCL.
      bool const told =
          contains(what[rank], "the disk is on fire") || contains(what[rank], "remote error");
      CHECK_MESSAGE(told == fails, what[rank]);
    }
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: what a new communicator is configured with cannot be asked of an old one") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](fake::Process&, auto* compute) {
    Library::Comm comm = nullptr;
    REQUIRE(Library::init(&comm, 1, {1}, 0, {}).pending());
    auto state = Result::in_progress;
    while (state == Result::in_progress) REQUIRE(Library::async_error(comm, &state).ok());
    Options options = fake::quick_options();
    options.separate_gathers = true;
    Comm wrapped(zero::nccl::Existing<Library>{comm, compute, nullptr}, options);
  });
  CHECK(contains(what[0], "properties of a new communicator"));
}

TEST_CASE("Nccl: calls from another device are refused and change nothing") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    Comm comm({{1}, 0, 1, compute}, fake::quick_options());
    process.device = 3;
    try {
      all_reduce(comm, 0);
      FAIL("no error");
    } catch (Error const& error) {
      CHECK(error.kind() == ErrorKind::invalid_argument);
      CHECK(contains(error.what(),
                     "the current CUDA device is 3, but the NCCL communicator is on "
                     "device 0"));
    }
    process.device = 0;
    all_reduce(comm, 0);
    comm.close();
    comm.close();
    CHECK_THROWS_WITH_AS(all_reduce(comm, 0), doctest::Contains("closed"), Error);
  });
  CHECK_MESSAGE(what[0].empty(), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: a rank that is through with a sub-group does not disturb those that are not") {
  fake::World world(2, 1);
  std::atomic<bool> gone{false};
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    Comm comm({{1}, process.rank, 2, compute}, fake::quick_options());
    {
      Comm child = comm.split(0, process.rank);
      all_reduce(child, 1);
      while (process.rank == 1 && !gone) std::this_thread::yield();
      CHECK(child.poll());
    }
    gone = true;
    all_reduce(comm, 2);
    comm.close();
  });
  for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
  fake::check_clean(world);
}

TEST_CASE("Nccl: a sub-group may be closed before its parent, and destroyed after it") {
  for (bool const closes : {false, true}) {
    fake::World world(2, 1);
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      std::optional<Comm> child;
      {
        Comm comm({{1}, process.rank, 2, compute}, fake::quick_options());
        child = comm.split(0, process.rank);
        all_reduce(*child, 1);
        if (closes) child->close();
        comm.close();
      }
      child.reset();
    });
    for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: what goes wrong in a sub-group names it") {
  for (bool const late : {false, true}) {
    fake::World world(2, 1);
    std::atomic<bool> gone{false};
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      Options options = fake::quick_options();
      if (late) options.deadline_s = 0.3;
      Comm comm({{1}, process.rank, 2, compute}, options);
      Comm child = comm.split(0, process.rank, "model axis");
      if (process.rank == 0 && !late) {
        float x = 1;
        static_cast<void>(child.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x}));
        gone = true;
      }
      while (process.rank == 1 && !gone) std::this_thread::yield();
      try {
        all_reduce(child, 1);
      } catch (Error const&) {
        gone = true;
        throw;
      }
    });
    for (std::string const& text : what) CHECK_MESSAGE(contains(text, ", on the model axis"), text);
    CHECK_MESSAGE(contains(what[0], late ? "or calls something else" : "without waiting"), what[0]);
  }
}

TEST_CASE("Nccl: a negative color is refused") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](auto&, auto* compute) {
    Comm comm({{1}, 0, 1, compute}, fake::quick_options());
    static_cast<void>(comm.split(-1, 0));
  });
  CHECK_MESSAGE(contains(what[0], "no color -1"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: a ticket that nobody waits for ends the group") {
  fake::World world(2, 1);
  std::atomic<bool> gone{false};
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    Comm comm({{1}, process.rank, 2, compute}, fake::quick_options());
    if (process.rank == 0) {
      float x = 1;
      static_cast<void>(
          comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 4}));
      gone = true;
    }
    // What is done when its ticket goes is no loss, so the peer must not come too early.
    while (!gone) std::this_thread::yield();
    all_reduce(comm, 4);
    all_reduce(comm, 5);
  });
  CHECK_MESSAGE(contains(what[0], "rank 0 abandoned [all_reduce of 1"), what[0]);
  CHECK_MESSAGE(contains(what[1], "remote error"), what[1]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: an abort that does not return is reported, and the process goes on") {
  fake::World world(2, 1);
  world.process(0).script.abort_hangs = true;
  world.process(0).script.hang_at = 1;
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    Options options = fake::quick_options();
    options.deadline_s = 0.2;
    options.grace_s = 0.1;
    Comm comm({{1}, process.rank, 2, compute}, options);
    all_reduce(comm, 7);
  });
  CHECK_MESSAGE(contains(what[0], "did not return from the abort within 0.1"), what[0]);
  CHECK(contains(what[0], "bucket 7"));
  CHECK_MESSAGE(contains(what[1], "bucket 7"), what[1]);
  // Staging memory and counters that a stuck abort may still use are left alone, on purpose.
  CHECK(world.live_memory == 2);
  world.release_aborts = true;
  while (world.hanging_aborts != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE("Nccl: a destruction that does not return ends in an error, and the process goes on") {
  fake::World world(1, 1);
  world.process(0).script.destroy_hangs = true;
  auto const what = errors_of(world, 1, [&](fake::Process&, auto* compute) {
    Options options = fake::quick_options();
    options.grace_s = 0.1;
    Comm comm({{1}, 0, 1, compute}, options);
    comm.close();
  });
  CHECK_MESSAGE(contains(what[0], "does not return from ncclCommDestroy"), what[0]);
  CHECK(world.live_memory == 2);
  world.release_aborts = true;
  while (world.hanging_aborts != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE("Nccl: a rank that closes first takes nothing from those that are slower") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    fake::World world(3, seed);
    auto const what = errors_of(world, 3, [&](fake::Process& process, auto* compute) {
      Comm comm({{1}, process.rank, 3, compute}, fake::quick_stream_options());
      float x = process.rank == 0 ? 5.f : 0.f;
      {
        Comm part = comm.split(0, 0);
        if (process.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        auto ticket = part.start({.op = Op::broadcast, .count = 1, .send = &x, .recv = &x});
        part.wait(ticket);
      }
      comm.close();
      Library::synchronize(compute);
      CHECK(x == 5);
    });
    for (auto const& text : what) CHECK_MESSAGE(text.empty(), text);
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: what NCCL writes after an abort that does not return has its place") {
  for (bool const window : {false, true}) {
    fake::World world(2, 1);
    world.process(0).script.abort_hangs = true;
    std::promise<void> over;
    std::shared_future<void> const rank_0_is_over = over.get_future().share();
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      auto const tell = [&](void*) {
        if (process.rank == 0) over.set_value();
      };
      std::unique_ptr<void, decltype(tell)> const at_the_end(&over, tell);
      Options options = fake::quick_options();
      options.deadline_s = 0.2;
      options.grace_s = 0.1;
      if (window) options.registration = Registration::windows;
      Comm comm({{1}, process.rank, 2, compute}, options);
      if (process.rank != 0) return rank_0_is_over.wait();
      if (window) {
        static_cast<void>(comm.allocator().allocate(4096, 4096));
      } else {
        static_cast<void>(comm.split(0, 0));
      }
    });
    CHECK_MESSAGE(contains(what[0], "did not return from the abort within 0.1"), what[0]);
    world.release_aborts = true;
    while (world.hanging_aborts != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("Nccl: where NCCL cannot stop the trainer's own communicator, that is said") {
  fake::World world(1, 1);
  world.process(0).script.revokes = false;
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    Library::Comm own = nullptr;
    REQUIRE(Library::init(&own, 1, {1}, process.rank, {}).pending());
    auto state = Result::in_progress;
    while (state == Result::in_progress) REQUIRE(Library::async_error(own, &state).ok());
    Comm wrapped(zero::nccl::Existing<Library>{own, compute, compute}, fake::quick_options());
    wrapped.report_failure("the disk is on fire");
    all_reduce(wrapped, 2);
  });
  CHECK_MESSAGE(contains(what[0], "cannot stop the trainer's own communicator"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: an argument that NCCL refuses and remembers ends the group, which says so") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    fake::Nccl<zero::nccl::Native> comm({{1}, 0, 1, compute}, fake::quick_options());
    float x = 1;
    process.script.remembers = true;
    process.script.fail_with = Result::invalid_argument;
    process.script.fail_call = process.calls + calls_before_all_reduce;
    static_cast<void>(
        comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 6}));
  });
  CHECK_MESSAGE(contains(what[0], "communication"), what[0]);
  CHECK_MESSAGE(contains(what[0], "bucket 6"), what[0]);
  CHECK_MESSAGE(contains(what[0], "call 1]: invalid argument (scripted)"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: an argument NCCL refuses leaves the group usable where it forgets that") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](fake::Process& process, auto* compute) {
    fake::Nccl<zero::nccl::Native> comm({{1}, 0, 1, compute}, fake::quick_options());
    float x = 1;
    zero::Collective const op{.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x};
    process.script.fail_with = Result::invalid_argument;
    process.script.fail_call = process.calls + calls_before_all_reduce;
    try {
      static_cast<void>(comm.start(op));
      FAIL("no error");
    } catch (Error const& error) {
      CHECK(error.kind() == ErrorKind::invalid_argument);
      CHECK_MESSAGE(contains(error.what(), "invalid argument (scripted)"), error.what());
    }
    zero::run(comm, op);
    CHECK(x == 1);
    comm.close();
  });
  CHECK_MESSAGE(what[0].empty(), what[0]);
  fake::check_clean(world);
}

}  // namespace
}  // namespace life_test
