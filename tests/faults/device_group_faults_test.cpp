/// One rank of a group over devices goes wrong, or the runtime does: every rank has to hear of it,
/// soon and in words.
#include "cuda/fake_runtime.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/device_group.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace device_group_faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using Group = zero::DeviceGroup<fake::Api>;
using zero::Collective;
using zero::Error;
using zero::Op;

std::vector<Group> group(int ranks, double deadline_s = 600) {
  return Group::group(fake::spaces(ranks, std::make_shared<fake::Machine>()),
                      {.deadline_s = deadline_s});
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

enum class Fault { throws, leaves, abandons, count, dtype, operation, bucket, order };
constexpr unsigned fault_count = 8;

Collective tampered(std::vector<Collective> const& schedule, std::size_t at, Fault fault) {
  Collective op = schedule[at];
  switch (fault) {
    case Fault::count: op.count += 1; break;
    case Fault::dtype:
      op.dtype = op.dtype == zero::DType::f32 ? zero::DType::bf16 : zero::DType::f32;
      break;
    case Fault::operation: op.op = op.op == Op::all_gather ? Op::all_reduce : Op::all_gather; break;
    case Fault::bucket: op.bucket += 100; break;
    case Fault::order: op = schedule[at + 1]; break;
    case Fault::throws:
    case Fault::leaves:
    case Fault::abandons: break;
  }
  return op;
}

/// Runs one plan; returns complaints, and the seconds from the fault to the last error.
std::string run_plan(unsigned seed, double& seconds) {
  std::mt19937 random(seed);
  auto const fault = static_cast<Fault>(seed % fault_count);
  int const ranks = 2 + static_cast<int>(random() % 5);
  int const culprit = static_cast<int>(random() % static_cast<unsigned>(ranks));
  std::vector<Collective> schedule;
  for (int i = 0; i < 6; ++i) {
    schedule.push_back({.op = static_cast<Op>(random() % 4),
                        .dtype = random() % 2 == 0 ? zero::DType::f32 : zero::DType::bf16,
                        .count = 1 + random() % 300,
                        .bucket = i});
  }
  std::size_t const at = random() % 5;
  std::size_t const window = 1 + random() % 3;
  std::vector<std::string> what(static_cast<std::size_t>(ranks));
  Clock::time_point fault_time{};
  Clock::time_point last{};
  std::mutex mutex;
  auto const work = [&](Group& comm) {
    std::vector<std::vector<float>> memory;
    std::vector<Group::Ticket> tickets;
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      Collective op = schedule[i];
      if (comm.rank() == culprit && i == at) {
        fault_time = Clock::now();
        if (fault == Fault::throws) throw std::runtime_error("the disk is on fire");
        if (fault == Fault::leaves) return;
        op = tampered(schedule, i, fault);
      }
      memory.emplace_back(op.count * static_cast<std::size_t>(ranks) + 8, 1.f);
      op.send = memory.back().data();
      memory.emplace_back(op.count * static_cast<std::size_t>(ranks) + 8);
      op.recv = memory.back().data();
      tickets.push_back(comm.start(op));
      if (comm.rank() == culprit && i == at && fault == Fault::abandons) tickets.pop_back();
      if (tickets.size() < window) continue;
      comm.wait(tickets.front());
      tickets.erase(tickets.begin());
    }
    for (auto& ticket : tickets) comm.wait(ticket);
    // Whatever a rank has missed so far it meets here.
    Collective const end{.op = Op::all_reduce, .bucket = 77};
    zero::run(comm, end);
    comm.space().synchronize();
  };
  std::string rethrown;
  try {
    zero::run_ranks(group(ranks), [&](Group& comm) {
      try {
        work(comm);
      } catch (Error const& error) {
        // The fake device still has the buffers in its queue; they are gone by now.
        std::lock_guard const lock(mutex);
        what[static_cast<std::size_t>(comm.rank())] = error.what();
        last = Clock::now();
        throw;
      }
    });
  } catch (std::exception const& error) {
    rethrown = error.what();
  }
  seconds = std::chrono::duration<double>(last - fault_time).count();
  std::string complaints;
  // Rank 0 may have been the last to post: then what was withdrawn is under way already.
  if (fault == Fault::abandons && rethrown.empty()) return complaints;
  std::string const name = "rank " + std::to_string(culprit);
  for (int rank = 0; rank < ranks; ++rank) {
    std::string const& text = what[static_cast<std::size_t>(rank)];
    if (rank == culprit && (fault == Fault::throws || fault == Fault::leaves)) continue;
    if (text.empty()) complaints += std::to_string(rank) + " was told nothing; ";
    if (!text.empty() && !contains(text, name)) complaints += "not told who: " + text + "; ";
    if (!text.empty() && !contains(text, "bucket")) complaints += "not told where: " + text + "; ";
    if (fault == Fault::throws && !contains(text, "the disk is on fire")) {
      complaints += "not told why: " + text + "; ";
    }
    if (fault > Fault::abandons && !contains(text, "they differ in")) {
      complaints += "not told the difference: " + text + "; ";
    }
  }
  if (fault == Fault::throws && rethrown != "the disk is on fire") complaints += rethrown;
  return complaints;
}

TEST_CASE("DeviceGroup: random faults, an error on every rank, never a hang") {
  double slowest = 0;
  int bad = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    double seconds = 0;
    std::string const complaints = run_plan(seed, seconds);
    slowest = std::max(slowest, seconds);
    if (!complaints.empty() && ++bad <= 5) FAIL_CHECK("seed ", seed, ": ", complaints);
  }
  CHECK(bad == 0);
  CHECK(slowest < 3.);
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
