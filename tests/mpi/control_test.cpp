/// What ranks tell each other to compare their calls: how much, to whom, and that it suffices.
#include "mpi/world.hpp"
#include "support/test.hpp"
#include "zero/comm/mpi/summary.hpp"

#include <mpi.h>

namespace control_test {
namespace {

using mpi_tests::contains;
using mpi_tests::error_of;
using mpi_tests::sleep_ms;
using mpi_tests::Stopwatch;
using zero::Op;
using Comm = zero::Mpi<>;

enum class Layout { alone, pairs, one_and_all, thirds, one_pair };
constexpr Layout layouts[] = {Layout::alone, Layout::pairs, Layout::one_and_all, Layout::thirds};

int node_of(Layout layout, int rank) {
  switch (layout) {
    case Layout::alone: return rank;
    case Layout::pairs: return rank / 2;
    case Layout::one_and_all: return rank == 0 ? 1 : 0;
    case Layout::thirds: return rank % 3;
    case Layout::one_pair: return rank < 2 ? 0 : rank;
  }
  return 0;
}

zero::mpi::Options options(Layout layout, double deadline_s = 60) {
  return {.deadline_s = deadline_s,
          .node = node_of(layout, mpi_tests::world_rank()),
          .shared_bytes = zero::MiB};
}

/// How many nodes there are, and whether this rank is the first of its own.
std::pair<std::size_t, bool> nodes(Layout layout) {
  std::vector<int> labels;
  for (int rank = 0; rank < mpi_tests::world_size(); ++rank)
    labels.push_back(node_of(layout, rank));
  auto const me = labels.begin() + mpi_tests::world_rank();
  return {std::set<int>(labels.begin(), labels.end()).size(),
          std::find(labels.begin(), me, *me) == me};
}

/// A collective of any operation.
struct Work {
  Work(int ranks, std::size_t most, float value = 1.f)
      : send(most * static_cast<std::size_t>(ranks), value), recv(send.size()) {}
  [[nodiscard]] zero::Collective op(Op what, std::size_t count, int root = 0) {
    auto op = mpi_tests::collective(what, count, send.data(), recv.data());
    op.root = root;
    return op;
  }
  std::vector<float> send;
  std::vector<float> recv;
};

/// Before tests that leave families unclosed, whose last messages MPI keeps for ranks that do not
/// look: then it may deliver no more to those. Starts two broadcasts on all ranks, of which
/// `sleeper` comes first and then computes; ranks on other nodes must not have to wait for it.
void check_sleeper(Layout layout, int sleeper, int root) {
  Comm comm(MPI_COMM_WORLD, options(layout, 10));
  Work first(comm.size(), 20, static_cast<float>(comm.rank() + 1));
  Work second = first;
  bool const computes = comm.rank() == sleeper;
  MPI_Barrier(MPI_COMM_WORLD);
  // Others' calls come when it does not look.
  if (!computes) sleep_ms(200);
  Stopwatch const watch;
  auto one = comm.start(first.op(Op::broadcast, 20, root));
  auto other = comm.start(second.op(Op::broadcast, 20, root));
  if (computes) sleep_ms(3000);
  comm.wait(one);
  comm.wait(other);
  // Ranks of its node wait until it does not read their memory any more.
  if (node_of(layout, comm.rank()) != node_of(layout, sleeper)) CHECK(watch.seconds() < 2.5);
  CHECK(first.recv.front() == static_cast<float>(root + 1));
  CHECK(second.recv.front() == static_cast<float>(root + 1));
  comm.close();
}

TEST_CASE("a rank that computes right after it has started holds up nobody on another node") {
  if (mpi_tests::world_size() < 3) return;
  check_sleeper(Layout::alone, 1, 0);
  check_sleeper(Layout::pairs, 0, 2);
}

TEST_CASE("a rank that learns all calls by notices leaves nothing untold when it computes next") {
  if (mpi_tests::world_size() < 4) return;
  // Without data, so that a wait ends as soon as all calls are known.
  Comm comm(MPI_COMM_WORLD, options(Layout::one_pair, 4));
  Work work(comm.size(), 20);
  bool const in_pair = comm.rank() < 2;
  MPI_Barrier(MPI_COMM_WORLD);
  // Others ask for both calls before the pair makes them.
  if (in_pair) sleep_ms(700);
  auto one = comm.start(work.op(Op::all_gather, 0));
  if (!in_pair) {
    auto other = comm.start(work.op(Op::all_gather, 0));
    comm.wait(one);
    comm.wait(other);
    sleep_ms(2500);
  } else {
    comm.wait(one);
    // The leader makes the second and computes; its neighbour tells others of it.
    if (comm.rank() == 1) sleep_ms(150);
    auto other = comm.start(work.op(Op::all_gather, 0));
    if (comm.rank() == 0) sleep_ms(1300);
    Stopwatch const watch;
    comm.wait(other);
    if (comm.rank() == 0) CHECK(watch.seconds() < 1);
  }
  comm.close();
}

TEST_CASE("control messages: ceil(log2 nodes) from the first rank of a node, none from others") {
  for (Layout const layout : layouts) {
    Comm comm(MPI_COMM_WORLD, options(layout));
    auto const [count, first] = nodes(layout);
    auto const each = static_cast<std::uint64_t>(first ? std::bit_width(count - 1) : 0);
    CHECK(each <= std::bit_width(static_cast<unsigned>(comm.size() - 1)));
    CHECK(comm.transport().control_messages == 0);
    Work work(comm.size(), 4000);
    std::uint64_t calls = 0;
    for (std::size_t const elements : {0u, 16u, 4000u}) {
      for (Op const op :
           {Op::all_reduce, Op::all_gather, Op::reduce_scatter, Op::broadcast, Op::all_to_all}) {
        zero::run(comm, work.op(op, elements));
        CHECK(comm.transport().control_messages == ++calls * each);
      }
    }
    // Many under way, more than there are slots.
    std::vector<Work> others(100, Work(comm.size(), 10));
    std::vector<Comm::Ticket> tickets;
    for (Work& other : others) tickets.push_back(comm.start(other.op(Op::all_reduce, 10)));
    for (Comm::Ticket& ticket : tickets) comm.wait(ticket);
    calls += others.size();
    CHECK(comm.transport().control_messages == calls * each);
    CHECK(others.back().recv.front() == static_cast<float>(comm.size()));
    comm.close();
  }
}

TEST_CASE("chunks are held for the peers that data was exchanged with, each way") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  auto const settings = options(Layout::alone);
  Comm comm(MPI_COMM_WORLD, settings);
  std::uint64_t const bare = comm.held();
  std::uint64_t const two = 2 * comm.transport().chunk_bytes;
  std::uint64_t const planned = Comm::planned_bytes(settings, ranks, ranks);
  auto const others = static_cast<std::uint64_t>(ranks - 1);
  CHECK(bare + others * 2 * two <= planned);
  Work work(ranks, 4000);
  zero::run(comm, work.op(Op::broadcast, 4000));
  CHECK(comm.held() == bare + (comm.rank() == 0 ? others : 1) * two);
  CHECK(comm.transport().data_messages == (comm.rank() == 0 ? others : 0));
  zero::run(comm, work.op(Op::all_gather, 4000));
  CHECK(comm.held() == bare + others * 2 * two);
  zero::run(comm, work.op(Op::all_to_all, 4000));
  CHECK(comm.held() == bare + others * 2 * two);
  comm.close();
}

TEST_CASE("who differs is named on every rank: the lowest that differs from rank 0") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  for (Layout const layout : layouts) {
    for (int const guilty : {0, 1, ranks / 2, ranks - 1}) {
      Comm comm(MPI_COMM_WORLD, options(layout));
      Work work(ranks, 20);
      zero::run(comm, work.op(Op::all_gather, 20));
      // The last differs, too, in another way.
      bool const last = comm.rank() == ranks - 1;
      std::size_t const count = comm.rank() == guilty ? 7 : last ? 8 : 9;
      std::string const text = error_of([&] { zero::run(comm, work.op(Op::all_gather, count)); });
      int const named = guilty == 0 ? 1 : guilty;
      INFO(text);
      CHECK(contains(text, "rank " + std::to_string(named) + " called [all_gather of "));
      CHECK(contains(text, "where rank 0 called [all_gather of "));
      CHECK(contains(text, "they differ in count"));
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
}

TEST_CASE("a rank that leaves is named at once, wherever it is") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  for (Layout const layout : layouts) {
    for (int const leaver : {0, ranks - 1}) {
      Stopwatch const watch;
      std::string const wanted =
          "rank " + std::to_string(leaver) + " left after 3 collectives, without [all_reduce of 20";
      {
        Comm comm(MPI_COMM_WORLD, options(layout));
        Work work(ranks, 20);
        for (int i = 0; i < 3; ++i) zero::run(comm, work.op(Op::all_gather, 20));
        // Or a failure would meet a rank that still waits for the third.
        MPI_Barrier(MPI_COMM_WORLD);
        if (comm.rank() != leaver) {
          auto const text = error_of([&] { zero::run(comm, work.op(Op::all_reduce, 20)); });
          CHECK_MESSAGE(contains(text, wanted), text);
        }
      }
      CHECK(watch.seconds() < 30);
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
}

TEST_CASE("who comes late, but before the deadline, is not blamed with the rank that does not") {
  if (mpi_tests::world_size() < 4) return;
  Comm comm(MPI_COMM_WORLD, options(Layout::alone, 2));
  Work work(comm.size(), 20);
  zero::run(comm, work.op(Op::all_gather, 20));
  if (comm.rank() == 2) sleep_ms(1200);
  if (comm.rank() == 1) sleep_ms(4000);
  std::string const text = error_of([&] { zero::run(comm, work.op(Op::all_reduce, 20)); });
  INFO(text);
  CHECK(contains(text, "rank 1 did not arrive within 2"));
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace control_test
