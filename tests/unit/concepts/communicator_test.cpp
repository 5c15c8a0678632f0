#include "archetypes.hpp"
#include <zero/comm/decorators/counting.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/concepts/communicator.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using zero::Collective;
using zero::Communicator;
using zero::elements_sent;
using zero::Op;
using zero::SplittableCommunicator;

struct Splittable : archetype::Communicator {
  Splittable() = default;
  Splittable(Splittable&&) noexcept {}
  Splittable split(int, int) { return {}; }
};

struct Throwing : archetype::Communicator {
  [[nodiscard]] int rank() const { return 0; }
};

struct Spaceless {
  using Ticket = int;
  using Space = int;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  Ticket start(Collective const&) { return 0; }
  void wait(Ticket&) {}
};

/// Its space cannot be made up, and it does not say which it is.
struct Silent {
  using Ticket = int;
  using Space = archetype::Space;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  Ticket start(Collective const&) { return 0; }
  void wait(Ticket&) {}
};

struct TicketCannotMove {
  struct Ticket {
    Ticket() = default;
    Ticket(Ticket const&) = delete;
  };
  using Space = zero::space::Host;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  Ticket start(Collective const&) { return {}; }
  void wait(Ticket&) {}
};

}  // namespace

namespace {

struct Progressing : archetype::Communicator {
  int calls = 0;
  void progress() noexcept { ++calls; }
};

/// An optimizer's loop must not stop because a transfer failed; the next wait tells.
struct ProgressThrows : archetype::Communicator {
  void progress() {}
};

}  // namespace

TEST_CASE("progress is passed on to communicators that need it, and costs others nothing") {
  static_assert(zero::ProgressingCommunicator<Progressing>);
  static_assert(!zero::ProgressingCommunicator<ProgressThrows>);
  static_assert(!zero::ProgressingCommunicator<archetype::Communicator>);
  Progressing comm;
  zero::progress(comm);
  zero::progress(comm);
  CHECK(comm.calls == 2);
  archetype::Communicator other;
  zero::progress(other);
}

TEST_CASE("a communicator has a rank, a size, a memory space, and starts and waits") {
  static_assert(Communicator<archetype::Communicator>);
  static_assert(Communicator<zero::Self> && Communicator<zero::InProcess>);
  static_assert(!Communicator<Throwing>);
  static_assert(!Communicator<Spaceless>);
  static_assert(!Communicator<Silent>);
  static_assert(!Communicator<TicketCannotMove>);
  static_assert(!Communicator<int>);
  CHECK(Communicator<archetype::Communicator>);
}

TEST_CASE("splitting is asked for where it is needed only") {
  static_assert(!SplittableCommunicator<archetype::Communicator>);
  static_assert(SplittableCommunicator<Splittable>);
  static_assert(SplittableCommunicator<zero::InProcess>);
  CHECK(SplittableCommunicator<Splittable>);
}

TEST_CASE("elements sent are those of the paper's algorithms") {
  static_assert(elements_sent(Op::reduce_scatter, 100, 4) == 300);
  static_assert(elements_sent(Op::all_gather, 100, 4) == 300);
  static_assert(elements_sent(Op::all_to_all, 100, 4) == 300);
  static_assert(elements_sent(Op::all_reduce, 100, 4) == 150);
  static_assert(elements_sent(Op::all_reduce, 101, 4) == 156);
  static_assert(elements_sent(Op::broadcast, 100, 4) == 100);
  for (int op = 0; op < zero::op_count; ++op) {
    CHECK(elements_sent(static_cast<Op>(op), 100, 1) == 0);
    CHECK(elements_sent(static_cast<Op>(op), 0, 8) == 0);
  }
}

TEST_CASE("operations have names, and a block has bytes") {
  std::string names;
  for (int op = 0; op < zero::op_count; ++op) names += std::string(name(static_cast<Op>(op))) + " ";
  CHECK(names == "reduce_scatter all_gather all_to_all all_reduce broadcast ");
  CHECK(name(static_cast<Op>(77)) == "unknown");
  CHECK(Collective{.dtype = zero::DType::bf16, .count = 3}.block_bytes() == 6);
  CHECK(Collective{}.bucket == -1);
}

TEST_CASE("run() starts a collective and waits for it") {
  archetype::Communicator comm;
  float from = 3.f;
  float to = 0.f;
  zero::run(comm, {.count = 1, .send = &from, .recv = &to});
  CHECK(to == 3.f);
}

TEST_CASE("sum: a value of every rank in one line, wide enough and the same on all of them") {
  struct Seen {
    double tenths = 0., wide = 0.;
    std::int64_t large = 0, negative = 0, votes = 0;
    std::uint64_t calls = 0;
    bool operator==(Seen const&) const = default;
  };
  std::vector<Seen> seen(3);
  zero::run_ranks(3, [&](zero::InProcess& ranks) {
    zero::Counting comm{ranks};
    int const rank = comm.rank();
    Seen& own = seen[static_cast<std::size_t>(rank)];
    own.tenths = zero::sum(comm, 0.1 + rank);
    own.wide = zero::sum(comm, rank == 0 ? 16777216.f : 1.f);  // in float, the first one's
    own.large = zero::sum(comm, std::uint32_t{4000000000U});
    own.negative = zero::sum(comm, -rank);
    own.votes = zero::sum(comm, rank == 1);
    own.calls = comm.counts().control_total().calls;
  });
  Seen const expected{.tenths = 0.1 + 1.1 + 2.1,
                      .wide = 16777218.,
                      .large = 12000000000,
                      .negative = -3,
                      .votes = 1,
                      .calls = 5};
  for (Seen const& rank : seen) CHECK(rank == expected);
}
