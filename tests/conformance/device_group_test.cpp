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

std::vector<Group> group(int ranks, fake::Transfers transfers) {
  return Group::group(fake::spaces(ranks, std::make_shared<fake::Machine>(transfers)));
}

template <fake::Transfers Transfers>
struct StagedWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(group(world_size, Transfers), [&](Group& comm) {
      Staged<Group, zero::HostAllocator> staged(std::move(comm), {});
      body(staged);
    });
  }
};

struct PlainWorld {
  static constexpr int ranks[] = {3};
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(group(world_size, fake::Transfers::late), body);
  }
};

using Late = StagedWorld<fake::Transfers::late>;
using Early = StagedWorld<fake::Transfers::early>;

TEST_CASE("DeviceGroup: operations") { conformance::check_operations<Late>(); }
TEST_CASE("DeviceGroup: operations, early") { conformance::check_operations<Early>(); }
TEST_CASE_TEMPLATE("DeviceGroup: outstanding, groups", World, Late, Early) {
  conformance::check_outstanding<World>();
  conformance::check_groups<World>();
}
TEST_CASE("DeviceGroup: arguments") { conformance::check_arguments<PlainWorld>(); }

/// Calls of the runtime that one collective of `ranks` ranks takes.
std::size_t calls(zero::Op op, int ranks) {
  auto const machine = std::make_shared<fake::Machine>();
  auto const block = static_cast<std::size_t>(ranks);
  std::vector<float> send(block * block);
  std::vector<float> recv(block * block * block);
  auto comms = Group::group(fake::spaces(ranks, machine));
  std::size_t const before = machine->calls();
  zero::run_ranks(std::move(comms), [&](Group& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    zero::run(comm,
              {.op = op,
               .dtype = zero::DType::f32,
               .count = 1,
               .send = send.data() + rank * block,
               .recv = recv.data() + rank * block * block});
  });
  return machine->calls() - before;
}

TEST_CASE("DeviceGroup: a collective takes so many calls for each rank, not for each pair") {
  for (zero::Op const op : {zero::Op::all_gather,
                            zero::Op::all_to_all,
                            zero::Op::reduce_scatter,
                            zero::Op::all_reduce,
                            zero::Op::broadcast}) {
    CHECK(calls(op, 32) - calls(op, 16) == 2 * (calls(op, 16) - calls(op, 8)));
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
