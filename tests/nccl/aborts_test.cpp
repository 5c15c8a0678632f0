/// What a group that fails does with NCCL's aborts, which return soon, late or never.
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"

namespace aborts_test {
namespace {

using Clock = std::chrono::steady_clock;
using fake::Process;
using fake::Stream;
using fake::World;
using zero::Error;
using zero::nccl::Registration;
using Comm = fake::Nccl<>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double deadline_s = 0.25;
constexpr double grace_s = 0.1;
constexpr double allowed_s = 5;
#else
constexpr double deadline_s = 0.05;
constexpr double grace_s = 0.03;
constexpr double allowed_s = 1;
#endif

/// A world that threads of NCCL's may come back to, and what they then write to.
struct Failure {
  explicit Failure(unsigned seed) : random(seed), world(2 + static_cast<int>(random() % 2), seed) {}

  std::mt19937 random;
  World world;
  /// What collectives use: NCCL's until the abort is over, whatever the trainer was told.
  std::vector<std::array<float, 4>> buffers{};
  std::atomic<bool> stuck{false};
  std::atomic<int> silent{0};  ///< ranks that were told nothing
  std::mutex mutex{};
  double longest_s = 0;  ///< that a call took, of NCCL's or of the group's end

  void time(Clock::time_point start) {
    std::lock_guard const lock(mutex);
    longest_s = std::max(longest_s, std::chrono::duration<double>(Clock::now() - start).count());
  }
};

/// Sums in a group and in a part of it until that fails, and lets everything go.
void train(Failure& run, Process& process, Stream* compute, Registration registration, bool own) {
  auto& x = run.buffers[static_cast<std::size_t>(process.rank)];
  auto const stuck = [&run](std::string const&, bool is_stuck) {
    if (is_stuck) run.stuck = true;
  };
  auto const options = fake::quick_options({.deadline_s = deadline_s,
                                            .grace_s = grace_s,
                                            .watch_s = 0.003,
                                            .registration = registration,
                                            .on_end = stuck});
  std::optional<Comm> comm;
  Clock::time_point start;
  try {
    start = Clock::now();
    comm.emplace(zero::nccl::NewGroup<fake::Library>{{1}, process.rank, run.world.size(), compute},
                 options);
    auto allocator = comm->allocator();
    void* const memory = allocator.allocate(4096, 4096);
    {
      auto const give_back = [&](void* bytes) {
        start = Clock::now();
        allocator.deallocate(bytes, 4096, 4096);
        run.time(start);
      };
      std::unique_ptr<void, decltype(give_back)> const held(memory, give_back);
      Comm part = comm->split(0, process.rank, "part");
      for (int step = 0; step < 8; ++step) {
        start = Clock::now();
        if (own && step == 4) comm->report_failure("the disk is on fire");
        fake::all_reduce(*comm, step, x[0]);
        start = Clock::now();
        fake::all_reduce(part, step, x[1]);
      }
    }
    ++run.silent;
  } catch (Error const&) {
    run.time(start);
  }
  start = Clock::now();
  comm.reset();
  run.time(start);
}

void fail(Failure& run) {
  auto const below = [&](unsigned limit) { return static_cast<unsigned>(run.random() % limit); };
  run.world.errors_spread = below(2) == 0;
  run.buffers.resize(static_cast<std::size_t>(run.world.size()));
  auto const culprit = static_cast<int>(below(static_cast<unsigned>(run.world.size())));
  unsigned const fault = below(3);
  fake::Script& script = run.world.process(culprit).script;
  // Launches 0 and 1 are the constructors'.
  if (fault == 0) script.hang_at = 2 + static_cast<long>(below(12));
  if (fault == 1) script.remote_error_at = 2 + static_cast<long>(below(12));
  for (int rank = 0; rank < run.world.size(); ++rank) {
    fake::Script& rank_script = run.world.process(rank).script;
    rank_script.in_progress = static_cast<int>(below(3));
    unsigned const abort = below(4);
    rank_script.abort_hangs = abort == 0;
    if (abort == 1) rank_script.abort_s = 2 * grace_s * below(100) / 100;
  }
  constexpr Registration registrations[] = {
      Registration::none, Registration::buffers, Registration::windows};
  Registration const registration = registrations[below(3)];
  fake::run_processes(run.world, [&](Process& process) {
    bool const own = fault == 2 && process.rank == culprit;
    train(run, process, fake::world_stream(run.world, process), registration, own);
  });
}

void check_failures(unsigned count) {
  // Most of a run is waiting, so several go on at once.
  constexpr unsigned workers = 4;
  std::mutex mutex;
  unsigned leaked = 0;
  std::vector<double> longest;
  std::vector<std::jthread> threads;
  for (unsigned worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      for (unsigned seed = worker; seed < count; seed += workers) {
        Failure run(seed);
        fail(run);
        long const left = run.world.live_memory + run.world.live_events + run.world.live_streams;
        // Now that everything is over, aborts that hang come back.
        run.world.release_aborts();
        std::lock_guard const lock(mutex);
        CAPTURE(seed);
        CHECK(run.silent == 0);
        if (!run.stuck) CHECK(left == 0);
        CHECK_MESSAGE(run.world.violations().empty(), run.world.violations());
        leaked += left > 0 ? 1 : 0;
        longest.push_back(run.longest_s);
      }
    });
  }
  threads.clear();
  // Both have been there.
  CHECK(leaked > count / 4);
  CHECK(leaked < count);
  std::ranges::sort(longest);
  // A busy machine may be late, but not most of the time.
  CHECK(longest[count / 2] < deadline_s + grace_s + 0.2);
  CHECK(longest.back() < deadline_s + grace_s + allowed_s);
}

TEST_CASE("Nccl: 1000 failures, none waits beyond the deadline, none frees what is in use [full]") {
  check_failures(1000);
}

TEST_CASE("Nccl: 60 failures, none waits beyond the deadline, none frees what is in use") {
  check_failures(60);
}

}  // namespace
}  // namespace aborts_test
