/// One rank of a group of threads goes wrong, or the runtime of their devices does: every rank has
/// to hear of it, soon and in words.
#include "cuda/fake_runtime.hpp"
#include "faults/fault_run.hpp"
#include "support/test.hpp"
#include "zero/comm/device_threads/device_group.hpp"
#include "zero/comm/in_process.hpp"

namespace threads_test {
namespace {

using faults::Clock;
using faults::contains;
using faults::Fault;
using faults::hear;
using faults::Outcome;
using faults::Told;
using Device = zero::DeviceGroup<fake::Api>;
using zero::Error;
using zero::InProcess;
using zero::Op;

constexpr double usual_s = 0.05;
#if defined(__SANITIZE_THREAD__)
constexpr unsigned fault_runs = 300;
#else
constexpr unsigned fault_runs = 1000;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double allowed_s = 2;
#else
constexpr double allowed_s = 0.5;
#endif

std::vector<InProcess> on_host(int ranks, double deadline_s = 600) {
  return InProcess::group(ranks, {.deadline_s = deadline_s});
}
std::vector<Device> on_devices(int ranks, double deadline_s = 600) {
  return Device::group(fake::spaces(ranks, std::make_shared<fake::Machine>()),
                       {.deadline_s = deadline_s});
}

template <class C>
faults::Report run_plan(faults::Plan const& plan, std::vector<C> group) {
  faults::Run run(plan);
  std::string rethrown;
  try {
    zero::run_ranks(std::move(group), [&](C& comm) {
      run.train(comm, [](C& done) {
        if constexpr (std::is_same_v<C, Device>) {
          // Whatever a rank has missed so far it meets here.
          zero::run(done, {.op = Op::all_reduce, .bucket = 77});
          done.space().synchronize();
        }
      });
    });
  } catch (std::exception const& error) {
    rethrown = error.what();
  }
  // Rank 0 may have been the last to post: then what was withdrawn is under way already.
  if (plan.fault == Fault::abandons && rethrown.empty()) return {};
  faults::Report report = run.judge(
      [&](int, Outcome const& outcome) { return faults::gap_among_threads(plan, outcome); });
  if (plan.fault == Fault::throws ? rethrown != faults::reason : rethrown.empty()) {
    report.complaints += "run_ranks threw: " + rethrown;
  }
  return report;
}

/// Runs of those kinds in turn, of at most so many ranks.
template <class Group>
void check_random_faults(std::vector<Fault> const& kinds,
                         unsigned runs,
                         std::size_t most,
                         double soon_s,
                         Group const& group) {
  faults::Tally tally;
  for (unsigned seed = 0; seed < runs; ++seed) {
    std::mt19937 random(seed);
    Fault const fault = kinds[seed % kinds.size()];
    faults::Plan const plan = faults::make_plan(random, fault, most);
    tally.add(seed, fault, run_plan(plan, group(plan.ranks)));
  }
  tally.check(usual_s, soon_s);
}

TEST_CASE("InProcess: random faults, an error on every rank, never a hang") {
  check_random_faults({Fault::throws,
                       Fault::leaves,
                       Fault::operation,
                       Fault::count,
                       Fault::dtype,
                       Fault::accumulate,
                       Fault::root,
                       Fault::bucket,
                       Fault::order},
                      fault_runs,
                      8,
                      allowed_s,
                      [](int ranks) { return on_host(ranks); });
}

TEST_CASE("DeviceGroup: random faults, an error on every rank, never a hang") {
  check_random_faults({Fault::throws,
                       Fault::leaves,
                       Fault::abandons,
                       Fault::count,
                       Fault::dtype,
                       Fault::operation,
                       Fault::bucket,
                       Fault::order},
                      400,
                      6,
                      3.,
                      [](int ranks) { return on_devices(ranks); });
}

/// Rank 1 of 3 arrives so much later than the deadline of 0.3 s.
/// @return  the longest that another rank has waited
template <class C>
double check_late(std::vector<C> group, int late_ms) {
  auto const start = Clock::now();
  Told const told = hear(std::move(group), [&](C& comm) {
    float x = 1;
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
    zero::run(comm, {.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 4});
  });
  CHECK(!told.thrown.empty());
  double longest = 0;
  for (Outcome const& one : told.ranks) {
    CHECK_MESSAGE(contains(one.what, "rank 1 did not arrive within 0.3 s"), one.what);
    CHECK_MESSAGE(contains(one.what, "bucket 4"), one.what);
    CHECK_MESSAGE(contains(one.what, "all_reduce"), one.what);
    if (&one == &told.ranks[1]) continue;
    double const waited = std::chrono::duration<double>(one.when - start).count();
    CHECK(waited >= 0.3);
    longest = std::max(longest, waited);
  }
  return longest;
}

TEST_CASE("a rank that does not arrive is named after the deadline, and fails later") {
  // Long before it comes.
  CHECK(check_late(on_host(3, 0.3), 2500) <= 0.3 + allowed_s);
  check_late(on_devices(3, 0.3), 900);
}

TEST_CASE("InProcess: buffers may be freed as soon as wait has thrown, before the ticket") {
  for (int repeat = 0; repeat < 30; ++repeat) {
    auto const body = [](InProcess& comm) {
      InProcess::Ticket ticket;
      std::vector<float> x(600'000, 1.0f);
      ticket = comm.start({.op = Op::all_reduce,
                           .count = x.size(),
                           .send = x.data(),
                           .recv = x.data(),
                           .bucket = 1});
      if (comm.rank() == 0) comm.report_failure(faults::reason);
      comm.wait(ticket);
      // Ranks that were through before the failure meet it here.
      zero::run(comm, {.op = Op::all_gather, .bucket = 2});
    };
    CHECK_THROWS_AS(zero::run_ranks(4, body), Error);
  }
}

/// Three ranks do a few things; the runtime's call number `fail_at` and all later ones fail.
/// Returns the calls made, and what the ranks were told.
std::size_t run_with_failure(std::size_t fail_at, std::vector<std::string>& what) {
  auto const machine = std::make_shared<fake::Machine>();
  machine->fail_at = fail_at;
  what.assign(3, "");
  std::vector<Device> group;
  try {
    group = Device::group(fake::spaces(3, machine));
  } catch (Error const& error) {
    CHECK(error.kind() == zero::ErrorKind::resource);
    what.assign(3, error.what());
    return machine->calls();
  }
  std::vector<float> send(300, 1.f);
  std::vector<std::vector<float>> recv(3, std::vector<float>(100));
  Told const told = hear(std::move(group), [&](Device& comm) {
    float* const own = recv[static_cast<std::size_t>(comm.rank())].data();
    for (Op const op : {Op::reduce_scatter, Op::all_reduce}) {
      zero::run(comm, {.op = op, .count = 100, .send = send.data(), .recv = own, .bucket = 1});
    }
    Device half = comm.split(comm.rank() % 2, 0);
    zero::run(half, {.op = Op::broadcast, .count = 10, .send = own, .recv = own, .bucket = 2});
    zero::run(comm, {.op = Op::all_gather, .bucket = 3});
  });
  for (std::size_t rank = 0; rank < 3; ++rank) what[rank] = told.ranks[rank].what;
  return machine->calls();
}

TEST_CASE("DeviceGroup: a failure of any one call of the runtime reaches every rank in its words") {
  std::vector<std::string> told;
  std::size_t const calls = run_with_failure(~std::size_t{0}, told);
  for (std::string const& text : told) REQUIRE(text.empty());
  std::size_t const opening = 9 + 2 + 65 * 4;
  REQUIRE(calls > opening + 30);
  int silent = 0;
  for (std::size_t n = 0; n < calls; n += n + 10 < opening && n > 20 ? 7 : 1) {
    run_with_failure(n, told);
    int heard = 0;
    for (std::string const& text : told) heard += contains(text, "the device is on fire") ? 1 : 0;
    // Of the very last waits each rank makes its own, with no collective after them.
    if (heard == 0 && n + 3 < calls) ++silent;
    if (n + 12 < calls && heard != 3) {
      FAIL_CHECK("call ", n, " of ", calls, ": ", told[0], " | ", told[1], " | ", told[2]);
    }
  }
  CHECK(silent == 0);
}

TEST_CASE("DeviceGroup: what a group cannot be") {
  CHECK_THROWS_WITH_AS(static_cast<void>(Device::group({})),
                       "zero: invalid argument: a group over devices has 1 to 64 ranks, not 0",
                       Error);
  CHECK_THROWS_AS(static_cast<void>(on_devices(65)), Error);
  CHECK_THROWS_AS(static_cast<void>(on_devices(2, 0.)), Error);
  std::vector<fake::Space> apart;
  for (int i = 0; i < 2; ++i) apart.emplace_back(std::make_shared<fake::Machine>());
  CHECK_THROWS_WITH_AS(static_cast<void>(Device::group(apart)),
                       "zero: resource: two devices of different machines",
                       Error);
}

}  // namespace
}  // namespace threads_test
