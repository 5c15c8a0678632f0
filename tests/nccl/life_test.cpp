/// How NCCL groups are built, how they end, and what they say about themselves.
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/allocator.hpp"

#include <future>

namespace life_test {
namespace {

using Clock = std::chrono::steady_clock;
using fake::all_reduce;
using fake::contains;
using fake::errors_of;
using fake::Library;
using fake::Process;
using fake::quick_options;
using fake::Stream;
using fake::World;
using zero::Error;
using zero::ErrorKind;
using zero::Op;
using zero::nccl::Options;
using zero::nccl::Registration;
using zero::nccl::Result;
using Comm = fake::Nccl<>;
using Native = fake::Nccl<zero::nccl::Native>;
using Existing = zero::nccl::Existing<Library>;

/// The first NCCL that has windows at all.
struct OldLibrary : Library {
  static constexpr int header_version = 22703;
};

TEST_CASE("Nccl: windows are refused before any memory where NCCL does not make symmetric ones") {
  for (Registration const registration : {Registration::none, Registration::windows}) {
    World world(1, 1);
    world.process(0).script.version = 22703;
    auto const what = errors_of(world, [&](auto&, auto* compute) {
      zero::BasicNccl<OldLibrary> comm({{1}, 0, 1, compute},
                                       quick_options({.registration = registration}));
      comm.close();
    });
    bool const windows = registration == Registration::windows;
    CHECK(contains(what[0], "windows need NCCL 2.28") == windows);
    CHECK(what[0].empty() != windows);
    fake::check_clean(world);
  }
}

/// The next call that starts an all-reduce is refused as invalid; before it come current_device,
/// capture, event_record and stream_wait.
void refuse_all_reduce(Process& process) {
  process.script.fail_with = Result::invalid_argument;
  process.script.fail_call = process.calls + 4;
}

TEST_CASE("Nccl: what a group of one rank is refused, or ended by, is said in words") {
  struct {
    char const* what;
    std::function<void(Process&, Stream*)> run;
    std::vector<std::string_view> words;
  } const rows[] = {
      {"a library older than its header",
       [](Process& process, Stream* compute) {
         process.script.version = 22703;
         Comm comm({{1}, 0, 1, compute}, quick_options());
       },
       {"NCCL 2.27.3 runs, but this program was compiled for 2.28.9"}},
      {"a negative color",
       [](Process&, Stream* compute) {
         Comm comm({{1}, 0, 1, compute}, quick_options());
         static_cast<void>(comm.split(-1, 0));
       },
       {"no color -1"}},
      {"an argument that NCCL refuses and remembers",
       [](Process& process, Stream* compute) {
         Native comm({{1}, 0, 1, compute}, quick_options());
         process.script.remembers = true;
         refuse_all_reduce(process);
         all_reduce(comm, 6);
       },
       {"communication", "bucket 6", "call 1]: invalid argument (scripted)"}},
      {"the trainer's own communicator, configured as only a new one can be",
       [](Process&, Stream* compute) {
         Comm comm(Existing{fake::own_comm(0, 1), compute, nullptr},
                   quick_options({.max_ctas = 3}));
       },
       {"max_ctas is a property of a new communicator"}},
      {"a stream that is another one in each thread",
       [](Process&, Stream* compute) {
         Comm comm(Existing{fake::own_comm(0, 1), compute, &fake::stream_per_thread},
                   quick_options());
       },
       {"invalid argument", "cudaStreamPerThread is another stream in each thread"}},
      {"one that could not be built",
       [](Process&, Stream* compute) {
         Library::Comm own = nullptr;
         fake::begin_own(own, 0, 1);
         own->error = Result::remote_error;
         Comm comm(Existing{own, compute, compute}, quick_options());
       },
       {"communication", "remote error: a peer has closed its socket"}},
      {"one that NCCL cannot stop",
       [](Process& process, Stream* compute) {
         process.script.revokes = false;
         Comm comm(Existing{fake::own_comm(0, 1), compute, compute}, quick_options());
         comm.report_failure("the disk is on fire");
         all_reduce(comm, 2);
       },
       {"cannot stop the trainer's own communicator"}},
  };
  for (auto const& row : rows) {
    CAPTURE(row.what);
    World world(1, 1);
    fake::check_told(errors_of(world, row.run), row.words);
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: ranks with different versions or options refuse on all ranks alike") {
  struct {
    int version;
    fake::Choice choice;
    char const* words;
  } const rows[] = {
      {23000, {}, "NCCL version: 22809 on rank 0 1; 23000 on rank 2"},
      {22809, {.staging_bytes = 128 << 10}, "staging_bytes: 65536 on rank 0 1; 131072 on rank 2"},
      {22809, {.registration = Registration::buffers}, "registration: 0 on rank 0 1; 1 on rank 2"},
  };
  for (auto const& row : rows) {
    World world(3, 1);
    world.process(2).script.version = row.version;
    auto const what = errors_of(world, [&](Process& process, auto* compute) {
      Comm comm({{1}, process.rank, 3, compute},
                quick_options(process.rank == 2 ? row.choice : fake::Choice{}));
    });
    fake::check_told(what, {"NCCL: ranks disagree on ", row.words});
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: a rank that does not come is waited for until the deadline") {
  World world(2, 1);
  auto const start = Clock::now();
  auto const what = errors_of(world, [&](Process& process, auto* compute) {
    if (process.rank == 1) return;
    Comm comm({{1}, 0, 2, compute}, quick_options({.deadline_s = 0.2}));
  });
  double const seconds = std::chrono::duration<double>(Clock::now() - start).count();
  CHECK_MESSAGE(contains(what[0], "rank 0 waited 0.2 s"), what[0]);
  CHECK(contains(what[0], "[init]"));
  CHECK(seconds > 0.2);
  CHECK(seconds < 5);
  fake::check_clean(world);
}

TEST_CASE("Nccl: options that no group can have are refused before NCCL is called") {
  World world(1, 1);
  Options stream = quick_options();
  stream.waiting = zero::nccl::Waiting::stream;
  for (Options const& options : {quick_options({.deadline_s = 0}),
                                 quick_options({.grace_s = -1}),
                                 quick_options({.watch_s = -1}),
                                 stream,
                                 quick_options({.max_ctas = -1}),
                                 quick_options({.staging_bytes = 100})}) {
    auto const what = errors_of(world, [&](auto&, auto* compute) {
      Comm comm({{1}, 0, 1, compute}, options);
    });
    fake::check_told(what, {"NCCL options: "});
  }
  CHECK(world.process(0).calls == 0);
}

TEST_CASE("Nccl: the trainer's own communicator is never destroyed, and revoked when it fails") {
  for (bool const fails : {false, true}) {
    World world(2, 1);
    std::vector<Library::Comm> own(2);
    auto const what = errors_of(world, [&](Process& process, auto* compute) {
      auto& comm = own[static_cast<std::size_t>(process.rank)];
      comm = fake::own_comm(process.rank, 2);
      Comm wrapped(Existing{comm, compute, compute},
                   quick_options({.deadline_s = fails ? 0.3 : 60}));
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

TEST_CASE("Nccl: the trainer's own communicator may still be in progress") {
  for (int const polls : {0, 20}) {
    World world(2, 1);
    fake::run_clean(world, [&](Process& process, auto* compute) {
      process.script.in_progress = polls;
      Library::Comm own = nullptr;
      fake::begin_own(own, process.rank, 2);
      Comm comm(Existing{own, compute, compute}, quick_options());
      CHECK(comm.rank() == process.rank);
      CHECK(comm.size() == 2);
      all_reduce(comm, 0);
      comm.close();
    });
  }
}

TEST_CASE("Nccl: the trainer's own communicator that is never ready is given up, and left alone") {
  // Options that no group can have are refused before any wait.
  for (bool const legal : {false, true}) {
    World world(2, 1);
    Library::Comm own = nullptr;
    auto const what = errors_of(world, [&](Process& process, auto* compute) {
      if (process.rank == 1) return;
      fake::begin_own(own, 0, 2);
      Comm comm(Existing{own, compute, compute}, quick_options({.deadline_s = legal ? 0.1 : 0}));
    });
    CHECK_MESSAGE(contains(what[0], legal ? "communication" : "deadline_s is not in"), what[0]);
    CHECK_MESSAGE(contains(what[0], "not ready after 0.1 s") == legal, what[0]);
    CHECK_FALSE(own->dead);
    CHECK_FALSE(own->revoked);
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: calls from another device are refused and change nothing") {
  World world(1, 1);
  fake::run_clean(world, [&](Process& process, auto* compute) {
    Comm comm({{1}, 0, 1, compute}, quick_options());
    process.device = 3;
    try {
      all_reduce(comm, 0);
      FAIL("no error");
    } catch (Error const& error) {
      CHECK(error.kind() == ErrorKind::invalid_argument);
      CHECK(contains(error.what(),
                     "the current CUDA device is 3, but the NCCL communicator is on device 0"));
    }
    process.device = 0;
    all_reduce(comm, 0);
    comm.close();
    comm.close();
    CHECK_THROWS_WITH_AS(all_reduce(comm, 0), doctest::Contains("closed"), Error);
  });
}

TEST_CASE("Nccl: an argument NCCL refuses leaves the group usable where it forgets that") {
  World world(1, 1);
  fake::run_clean(world, [&](Process& process, auto* compute) {
    Native comm({{1}, 0, 1, compute}, quick_options());
    refuse_all_reduce(process);
    try {
      all_reduce(comm, 0);
      FAIL("no error");
    } catch (Error const& error) {
      CHECK(error.kind() == ErrorKind::invalid_argument);
      CHECK_MESSAGE(contains(error.what(), "invalid argument (scripted)"), error.what());
    }
    float x = 1;
    all_reduce(comm, 0, x);
    CHECK(x == 1);
    comm.close();
  });
}

TEST_CASE("Nccl: a rank that is through with a sub-group does not disturb those that are not") {
  World world(2, 1);
  std::atomic<bool> gone{false};
  fake::run_clean(world, [&](Process& process, auto* compute) {
    Comm comm({{1}, process.rank, 2, compute}, quick_options());
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
}

TEST_CASE("Nccl: who closes last is not disturbed by the end of sub-groups that all have left") {
  World world(2, 1);
  std::atomic<bool> closed{false};
  fake::run_clean(world, [&](Process& process, auto* compute) {
    Comm comm({{1}, process.rank, 2, compute}, fake::quick_stream_options({.watch_s = 0.005}));
    for (int i = 0; i < 2; ++i) static_cast<void>(comm.split(0, process.rank));
    long const launches = process.launches;
    process.script.before_enqueue = [&, launches](std::string_view) {
      // The other goes on once this rank has enqueued its part of the last exchange.
      if (process.rank == 0 || process.launches == launches || closed) return;
      while (!closed) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    };
    comm.close();
    closed = true;
  });
}

TEST_CASE("Nccl: a sub-group may be closed before its parent, and destroyed after it") {
  for (bool const closes : {false, true}) {
    World world(2, 1);
    fake::run_clean(world, [&](Process& process, auto* compute) {
      std::optional<Comm> child;
      {
        Comm comm({{1}, process.rank, 2, compute}, quick_options());
        child = comm.split(0, process.rank);
        all_reduce(*child, 1);
        if (closes) child->close();
        comm.close();
      }
      child.reset();
    });
  }
}

/// Starts a sum, and drops its ticket. What is done by then is no loss, so that peers must not come
/// before.
void abandon(Comm& comm, int bucket) {
  float x = 1;
  static_cast<void>(
      comm.start({.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = bucket}));
}

TEST_CASE("Nccl: what goes wrong in a sub-group names it") {
  for (bool const late : {false, true}) {
    World world(2, 1);
    std::atomic<bool> gone{false};
    auto const what = errors_of(world, [&](Process& process, auto* compute) {
      Comm comm({{1}, process.rank, 2, compute}, quick_options({.deadline_s = late ? 0.3 : 60}));
      Comm child = comm.split(0, process.rank, "model axis");
      if (process.rank == 0 && !late) {
        abandon(child, 1);
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
    fake::check_told(what, {", on the model axis"});
    CHECK_MESSAGE(contains(what[0], late ? "or calls something else" : "without waiting"), what[0]);
  }
}

TEST_CASE("Nccl: a ticket that nobody waits for ends the group") {
  World world(2, 1);
  std::atomic<bool> gone{false};
  auto const what = errors_of(world, [&](Process& process, auto* compute) {
    Comm comm({{1}, process.rank, 2, compute}, quick_options());
    if (process.rank == 0) abandon(comm, 4);
    gone = gone || process.rank == 0;
    while (!gone) std::this_thread::yield();
    all_reduce(comm, 4);
    all_reduce(comm, 5);
  });
  CHECK_MESSAGE(contains(what[0], "rank 0 abandoned [all_reduce of 1"), what[0]);
  CHECK_MESSAGE(contains(what[1], "remote error"), what[1]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: an abort or a destruction that does not return is reported, and one goes on") {
  for (bool const aborts : {true, false}) {
    World world(aborts ? 2 : 1, 1);
    fake::Script& script = world.process(0).script;
    script.abort_hangs = aborts;
    script.destroy_hangs = !aborts;
    if (aborts) script.hang_at = 1;
    auto const what = errors_of(world, [&](Process& process, auto* compute) {
      Comm comm({{1}, process.rank, world.size(), compute},
                quick_options({.deadline_s = aborts ? 0.2 : 60, .grace_s = 0.1}));
      if (aborts) all_reduce(comm, 7);
      comm.close();
    });
    CHECK_MESSAGE(contains(what[0],
                           aborts ? "did not return from the abort within 0.1 s"
                                  : "does not return from ncclCommDestroy"),
                  what[0]);
    if (aborts) fake::check_told(what, {"bucket 7"});
    // Staging memory and counters that a stuck call may still use are left alone, on purpose.
    CHECK(world.live_memory == 2);
    world.release();
  }
}

TEST_CASE("Nccl: a rank that closes first takes nothing from those that are slower") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    World world(3, seed);
    fake::run_clean(world, [&](Process& process, auto* compute) {
      Comm comm({{1}, process.rank, 3, compute}, fake::quick_stream_options());
      float x = process.rank == 0 ? 5.f : 0.f;
      {
        Comm part = comm.split(0, 0);
        if (process.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        zero::run(part, {.op = Op::broadcast, .count = 1, .send = &x, .recv = &x});
      }
      comm.close();
      Library::synchronize(compute);
      CHECK(x == 5);
    });
  }
}

TEST_CASE("Nccl: what NCCL writes after an abort that does not return has its place") {
  for (Registration const registration : {Registration::none, Registration::windows}) {
    World world(2, 1);
    world.process(0).script.abort_hangs = true;
    std::promise<void> over;
    std::shared_future<void> const rank_0_is_over = over.get_future().share();
    auto const what = errors_of(world, [&](Process& process, auto* compute) {
      auto const tell = [&](void*) {
        if (process.rank == 0) over.set_value();
      };
      std::unique_ptr<void, decltype(tell)> const at_the_end(&over, tell);
      Comm comm({{1}, process.rank, 2, compute},
                quick_options({.deadline_s = 0.2, .grace_s = 0.1, .registration = registration}));
      if (process.rank != 0) return rank_0_is_over.wait();
      if (registration == Registration::windows) {
        static_cast<void>(comm.allocator().allocate(4096, 4096));
      } else {
        static_cast<void>(comm.split(0, 0));
      }
    });
    CHECK_MESSAGE(contains(what[0], "did not return from the abort within 0.1 s"), what[0]);
    world.release();
  }
}

}  // namespace
}  // namespace life_test
