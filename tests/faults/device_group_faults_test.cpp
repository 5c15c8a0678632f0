/// One rank of a group over devices goes wrong, or the runtime does: every rank has to hear of it,
/// soon and in words.
#include "cuda/fake_runtime.hpp"
#include "faults/fault_run.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/device_threads/group.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace device_group_faults_test {
namespace {

using faults::contains;
using faults::Fault;
using Group = zero::DeviceGroup<fake::Api>;
using zero::Error;
using zero::Op;

std::vector<Group> group(int ranks, double deadline_s = 600) {
  return Group::group(fake::spaces(ranks, std::make_shared<fake::Machine>()),
                      {.deadline_s = deadline_s});
}

constexpr Fault fault_kinds[] = {Fault::throws,
                                 Fault::leaves,
                                 Fault::abandons,
                                 Fault::count,
                                 Fault::dtype,
                                 Fault::operation,
                                 Fault::bucket,
                                 Fault::order};

faults::Report run_plan(faults::Plan const& plan) {
  faults::Run run(plan);
  std::string rethrown;
  try {
    zero::run_ranks(group(plan.ranks), [&](Group& comm) {
      run.train(comm, [](Group& done) {
        // Whatever a rank has missed so far it meets here.
        zero::run(done, {.op = Op::all_reduce, .bucket = 77});
        done.space().synchronize();
      });
    });
  } catch (std::exception const& error) {
    rethrown = error.what();
  }
  // Rank 0 may have been the last to post: then what was withdrawn is under way already.
  if (plan.fault == Fault::abandons && rethrown.empty()) return {};
  faults::Report report = run.judge([&](int, faults::Outcome const& outcome) {
    return faults::gap_among_threads(plan, outcome);
  });
  if (plan.fault == Fault::throws && rethrown != faults::reason) report.complaints += rethrown;
  return report;
}

TEST_CASE("DeviceGroup: random faults, an error on every rank, never a hang") {
  faults::Tally tally;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    Fault const fault = fault_kinds[seed % std::size(fault_kinds)];
    tally.add(seed, fault, run_plan(faults::make_plan(random, fault, 6)));
  }
  tally.check(3.);
}

TEST_CASE("DeviceGroup: a rank that does not arrive is named after the deadline, and fails later") {
  std::vector<std::string> what(3);
  auto const body = [&](Group& comm) {
    float x = 1;
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    try {
      zero::run(comm, {.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 4});
    } catch (Error const& error) {
      what[static_cast<std::size_t>(comm.rank())] = error.what();
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(group(3, 0.3), body), Error);
  for (std::string const& text : what) {
    CHECK_MESSAGE(contains(text, "rank 1 did not arrive within 0.3"), text);
    CHECK_MESSAGE(contains(text, "bucket 4"), text);
  }
}

/// Three ranks do a few things; the runtime's call number `fail_at` and all later ones fail.
/// Returns the calls made.
std::size_t run_with_failure(std::size_t fail_at, std::vector<std::string>& what) {
  auto const machine = std::make_shared<fake::Machine>();
  machine->fail_at = fail_at;
  try {
    std::vector<float> send(300, 1.f);
    std::vector<std::vector<float>> recv(3, std::vector<float>(100));
    auto const body = [&](Group& comm) {
      auto const rank = static_cast<std::size_t>(comm.rank());
      try {
        for (Op const op : {Op::reduce_scatter, Op::all_reduce}) {
          zero::run(comm,
                    {.op = op,
                     .count = 100,
                     .send = send.data(),
                     .recv = recv[rank].data(),
                     .bucket = 1});
        }
        Group half = comm.split(comm.rank() % 2, 0);
        zero::run(half,
                  {.op = Op::broadcast,
                   .count = 10,
                   .send = recv[rank].data(),
                   .recv = recv[rank].data(),
                   .bucket = 2});
        zero::run(comm, {.op = Op::all_gather, .bucket = 3});
      } catch (Error const& error) {
        what[rank] = error.what();
        throw;
      }
    };
    zero::run_ranks(Group::group(fake::spaces(3, machine)), body);
  } catch (Error const& error) {
    for (std::string& text : what) {
      // The group could not be made: there were no ranks yet.
      if (error.kind() == zero::ErrorKind::resource && text.empty()) text = error.what();
    }
  }
  return machine->calls();
}

TEST_CASE("DeviceGroup: a failure of any one call of the runtime reaches every rank in its words") {
  std::vector<std::string> what(3);
  std::size_t const calls = run_with_failure(~std::size_t{0}, what);
  for (std::string const& text : what) REQUIRE(text.empty());
  std::size_t const opening = 9 + 3 + 65 * 4;
  REQUIRE(calls > opening + 30);
  int silent = 0;
  for (std::size_t n = 0; n < calls; n += n + 10 < opening && n > 20 ? 7 : 1) {
    std::vector<std::string> told(3);
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
  CHECK_THROWS_WITH_AS(static_cast<void>(Group::group({})),
                       "zero: invalid argument: a group over devices has 1 to 64 ranks, not 0",
                       Error);
  CHECK_THROWS_AS(static_cast<void>(group(65)), Error);
  CHECK_THROWS_AS(static_cast<void>(group(2, 0.)), Error);
  std::vector<fake::Space> apart;
  for (int i = 0; i < 2; ++i) apart.emplace_back(std::make_shared<fake::Machine>());
  CHECK_THROWS_WITH_AS(static_cast<void>(Group::group(apart)),
                       "zero: resource: two devices of different machines",
                       Error);
}

}  // namespace
}  // namespace device_group_faults_test
