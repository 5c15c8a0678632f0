#include "zero/comm/device_threads/device_group.hpp"

#include "conformance/communicator.hpp"
#include "cuda/fake_runtime.hpp"
#include "cuda/staged.hpp"
#include "support/standard.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/concepts/allocator.hpp"

namespace device_group_test {
namespace {

using Group = zero::DeviceGroup<fake::Api>;

std::vector<Group> group(int ranks, fake::Transfers transfers, int devices) {
  return Group::group(fake::spaces(ranks, std::make_shared<fake::Machine>(transfers), devices));
}

/// Ranks that take turns on so many devices.
template <fake::Transfers Transfers, int Devices>
struct StagedWorld {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  static constexpr int ranks[] = {1, 2, 5};
#else
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
#endif
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(group(world_size, Transfers, Devices), [&](Group& comm) {
      Staged<Group, zero::HostAllocator> staged(std::move(comm), {});
      body(staged);
    });
  }
};

struct PlainWorld {
  static constexpr int ranks[] = {3};
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(group(world_size, fake::Transfers::late, 2), body);
  }
};

// One device for all, one for each, and several with several ranks.
using Late = StagedWorld<fake::Transfers::late, 8>;
using Early = StagedWorld<fake::Transfers::early, 8>;
using LateTogether = StagedWorld<fake::Transfers::late, 1>;
using EarlyTogether = StagedWorld<fake::Transfers::early, 1>;
using LateInGroups = StagedWorld<fake::Transfers::late, 3>;
using EarlyInGroups = StagedWorld<fake::Transfers::early, 3>;

TEST_CASE_TEMPLATE("DeviceGroup: operations",
                   World,
                   Late,
                   Early,
                   LateTogether,
                   EarlyTogether,
                   LateInGroups,
                   EarlyInGroups) {
  conformance::check_operations<World>();
}
TEST_CASE_TEMPLATE("DeviceGroup: outstanding, groups", World, Late, Early, EarlyTogether) {
  conformance::check_outstanding<World>();
  conformance::check_groups<World>();
}
TEST_CASE("DeviceGroup: arguments") { conformance::check_arguments<PlainWorld>(); }

/// Calls of the runtime that a collective of `ranks` ranks on `devices` devices takes.
std::size_t calls(zero::Op op, int ranks, int devices) {
  auto const machine = std::make_shared<fake::Machine>();
  auto const size = static_cast<std::size_t>(ranks);
  std::size_t const count = 64 * static_cast<std::size_t>(devices);  // every device has a share
  std::vector<float> send(size * size * count);
  std::vector<float> recv(size * size * count);
  auto group = Group::group(fake::spaces(ranks, machine, devices));
  // One thread plays all ranks: none of them waits before the last has started.
  auto const collective = [&] {
    std::vector<Group::Ticket> tickets;
    for (Group& comm : group) {
      std::size_t const own = static_cast<std::size_t>(comm.rank()) * size * count;
      tickets.push_back(
          comm.start({.op = op, .count = count, .send = &send[own], .recv = &recv[own]}));
    }
    for (std::size_t rank = 0; rank < size; ++rank) group[rank].wait(tickets[rank]);
  };
  collective();  // the first also has loaded what any collective takes
  std::size_t const before = machine->calls();
  collective();
  return machine->calls() - before;
}

TEST_CASE("DeviceGroup: a collective takes so many calls for each rank, not for each pair") {
  for (zero::Op const op : {zero::Op::all_gather,
                            zero::Op::all_to_all,
                            zero::Op::reduce_scatter,
                            zero::Op::all_reduce,
                            zero::Op::broadcast}) {
    for (int const ranks : {2, 8, 32}) {
      auto const n = static_cast<std::size_t>(ranks);
      CHECK(calls(op, ranks, 1) == 3 * n + 2);
      CHECK(calls(op, ranks, 2) == 3 * n + 7);
      CHECK(calls(op, ranks, ranks) == 7 * n - 1);
    }
  }
}

TEST_CASE("DeviceGroup: a buffer may be overwritten in the queue as soon as wait has returned") {
  // Nothing is done until the very end, and then rank 0's queue first: its overwriting must come
  // after what its peers read.
  constexpr int ranks = 3;
  constexpr std::size_t count = 1000;
  auto const machine = std::make_shared<fake::Machine>();
  std::vector<std::vector<float>> send;
  std::vector<std::vector<float>> recv(ranks, std::vector<float>(count));
  for (int rank = 0; rank < ranks; ++rank) {
    send.push_back(conformance::elements<float>(rank, count * ranks));
  }
  std::vector<fake::Space> const spaces = fake::spaces(ranks, machine);
  zero::run_ranks(Group::group(spaces), [&](Group& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto ticket = comm.start({.op = zero::Op::reduce_scatter,
                              .count = count,
                              .send = send[rank].data(),
                              .recv = recv[rank].data()});
    comm.wait(ticket);
    comm.space().zero(send[rank].data(), count * ranks * sizeof(float));
  });
  for (fake::Space const& space : spaces) space.synchronize();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; i += 17) {
      float const expected = conformance::naive_sum<float, float>(ranks, rank * count + i);
      REQUIRE(recv[rank][i] == expected);
    }
  }
}

TEST_CASE("DeviceGroup: one rank uses its trainer's queue and nothing else") {
  auto const machine = std::make_shared<fake::Machine>();
  zero::run_ranks(Group::group(fake::spaces(1, machine)), [&](Group& comm) {
    float const from[] = {1, 2, 3};
    float to[3] = {};
    // The first also has loaded what any collective takes.
    for (std::size_t const more : {2u, 1u, 1u}) {
      std::size_t const before = machine->calls();
      zero::run(comm, {.op = zero::Op::all_gather, .count = 3, .send = from, .recv = to});
      CHECK(machine->calls() == before + more);
    }
    CHECK(to[2] == 0.f);
    comm.space().synchronize();
    CHECK(to[2] == 3.f);
  });
}

}  // namespace
}  // namespace device_group_test
