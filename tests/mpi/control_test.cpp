/// What ranks tell each other beside data: how much, to whom, and that it suffices.
#include "mpi/world.hpp"
#include "support/test.hpp"
#include "zero/comm/mpi/schedule.hpp"

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
/// Links are open: the first data for a rank waits until it looks.
void check_sleeper(Layout layout, int sleeper, int root) {
  Comm comm(MPI_COMM_WORLD, options(layout, 10));
  Work first(comm.size(), 20, static_cast<float>(comm.rank() + 1));
  Work second = first;
  zero::run(comm, second.op(Op::all_gather, 20));
  second = first;
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

/// Starts a collective on three ranks, each a node, whose links are open. Rank `sleeper` starts and
/// computes. What goes between the two others must be there long before it looks again.
void check_delay(Op what, std::size_t count, int sleeper) {
  mpi_tests::with_first(3, [&](MPI_Comm three) {
    Comm comm(three, options(Layout::alone));
    Work work(3, count, static_cast<float>(comm.rank() + 1));
    for (int round = 0; round < 2; ++round) zero::run(comm, work.op(Op::all_to_all, 4));
    std::fill(work.recv.begin(), work.recv.end(), 0.f);
    int const rank = comm.rank();
    int const other = 3 - sleeper - rank;
    bool const computes = rank == sleeper;
    MPI_Barrier(three);
    Stopwatch const watch;
    auto ticket = comm.start(work.op(what, count));
    if (computes) {
      mpi_tests::sleep_ms(2000);
    } else {
      // The other's block, or, of a sum, all that was sent for it.
      std::size_t const at = what == Op::all_gather ? static_cast<std::size_t>(other) * count : 0;
      float const wanted = what == Op::all_gather ? static_cast<float>(other + 1) : 6.f;
      std::atomic_ref<float> const last(work.recv[at + count - 1]);
      while (last != wanted && watch.seconds() < 1.9) comm.progress();
      CHECK(last == wanted);
      CHECK(watch.seconds() < 1.5);
    }
    comm.wait(ticket);
    comm.close();
  });
}

TEST_CASE("a rank that sleeps after its start delays no transfer between two others") {
  // In one job of those with three ranks and more: it is three ranks that matter.
  if (mpi_tests::world_size() != 5) return;
  for (int const sleeper : {0, 1, 2}) {
    CAPTURE(sleeper);
    check_delay(Op::all_gather, 100, sleeper);
    check_delay(Op::all_gather, 3'000'000, sleeper);
    // Blocks that MPI sends at once. Larger ones take a look of the sleeper's, which MPI asks for.
    check_delay(Op::reduce_scatter, 900, sleeper);
  }
}

TEST_CASE("what a group holds is true while a rank sleeps and others send ahead") {
  if (mpi_tests::world_size() < 2) return;
  auto settings = options(Layout::alone);
  settings.exchange_bytes = 256 * zero::KiB;
  Comm comm(MPI_COMM_WORLD, settings);
  std::uint64_t const planned = Comm::planned_bytes(settings, comm.size(), comm.transport().nodes);
  // Blocks of 400 KB, of which a rank has room for a part only, and many small ones.
  std::vector<Work> works(60, Work(comm.size(), 100));
  Work large(comm.size(), 100'000);
  MPI_Barrier(MPI_COMM_WORLD);
  std::vector<Comm::Ticket> tickets;
  if (comm.rank() == 0) mpi_tests::sleep_ms(500);
  tickets.push_back(comm.start(large.op(Op::all_gather, 100'000)));
  for (Work& work : works) tickets.push_back(comm.start(work.op(Op::all_gather, 100)));
  if (comm.rank() != 0) {
    for (Stopwatch const watch; watch.seconds() < 0.3;) comm.progress();
    // A head, and no data, has gone to the rank that sleeps.
    if (comm.size() == 2) CHECK(comm.transport().data_messages == 1);
    CHECK(comm.held() <= planned);
  }
  for (Comm::Ticket& ticket : tickets) comm.wait(ticket);
  CHECK(comm.held() <= planned);
  comm.close();
}

/// What a rank must have sent for the calls that it has made.
struct Sent {
  void add(zero::Collective const& op, Layout layout, Comm const& comm) {
    namespace detail = zero::mpi::detail;
    std::vector<int> labels;
    for (int rank = 0; rank < comm.size(); ++rank) labels.push_back(node_of(layout, rank));
    detail::Topology const topology(labels);
    detail::Schedule schedule;
    std::size_t const chunk = comm.transport().chunk_bytes - detail::head_bytes;
    schedule.build(op, detail::Routing{&topology}.of(op), topology, comm.rank(), chunk);
    for (detail::Task const& task : schedule.tasks()) {
      bool const remote = !topology.share_node(task.to, comm.rank());
      if (remote) bytes += task.count * size_of(task.rounded ? op.dtype : op.accumulate);
    }
    for (int peer = 0; peer < comm.size(); ++peer) {
      chunks_in += schedule.with(peer).chunks_in;
      if (schedule.with(peer).chunks_in > 0) links_in.insert(peer);
      messages += schedule.with(peer).chunks_out;
      if (schedule.with(peer).chunks_out == 0) continue;
      bytes += detail::head_bytes;
      // A head without data opens a link, unless no data follow.
      if (links_out.insert(peer).second && op.count > 0) ++messages;
    }
  }
  std::uint64_t bytes = 0, messages = 0, chunks_in = 0;
  std::set<int> links_in, links_out;
};

TEST_CASE("messages and bytes are those of the schedule, heads included; credits are few") {
  for (Layout const layout : layouts) {
    Comm comm(MPI_COMM_WORLD, options(layout));
    Work work(comm.size(), 400'000);
    Sent sent;
    for (std::size_t const elements : {0u, 16u, 4000u, 400'000u}) {
      for (Op const op :
           {Op::all_reduce, Op::all_gather, Op::reduce_scatter, Op::broadcast, Op::all_to_all}) {
        zero::run(comm, work.op(op, elements));
        sent.add(work.op(op, elements), layout, comm);
        CHECK(comm.transport().data_messages == sent.messages);
        CHECK(comm.transport().sent_bytes == sent.bytes);
      }
    }
    // Many under way, more than there are slots.
    std::vector<Work> others(100, Work(comm.size(), 10));
    std::vector<Comm::Ticket> tickets;
    for (Work& other : others) tickets.push_back(comm.start(other.op(Op::all_reduce, 10)));
    for (Comm::Ticket& ticket : tickets) comm.wait(ticket);
    for (Work& other : others) sent.add(other.op(Op::all_reduce, 10), layout, comm);
    CHECK(comm.transport().data_messages == sent.messages);
    CHECK(comm.transport().sent_bytes == sent.bytes);
    CHECK(others.back().recv.front() == static_cast<float>(comm.size()));
    constexpr std::uint64_t each = zero::mpi::detail::chunks_in / 2;
    CHECK(comm.transport().control_messages <= sent.chunks_in / each + sent.links_in.size());
    comm.close();
  }
}

TEST_CASE("chunks are held for the peers that data was exchanged with, each way") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  auto const settings = options(Layout::alone);
  Comm comm(MPI_COMM_WORLD, settings);
  std::uint64_t const bare = comm.held();
  std::uint64_t const in = zero::mpi::detail::chunks_in * comm.transport().chunk_bytes;
  std::uint64_t const out = zero::mpi::detail::chunks_out * comm.transport().chunk_bytes;
  std::uint64_t const planned = Comm::planned_bytes(settings, ranks, ranks);
  auto const others = static_cast<std::uint64_t>(ranks - 1);
  CHECK(bare + others * (in + out) <= planned);
  Work work(ranks, 4000);
  zero::run(comm, work.op(Op::broadcast, 4000));
  CHECK(comm.held() == bare + (comm.rank() == 0 ? others * out : in));
  CHECK(comm.transport().data_messages == (comm.rank() == 0 ? 2 * others : 0));
  // Or a peer would open its link before.
  MPI_Barrier(MPI_COMM_WORLD);
  zero::run(comm, work.op(Op::all_gather, 4000));
  CHECK(comm.held() == bare + others * (in + out));
  zero::run(comm, work.op(Op::all_to_all, 4000));
  CHECK(comm.held() == bare + others * (in + out));
  comm.close();
}

TEST_CASE("who differs is named on every rank: the lowest that differs from most") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  for (Layout const layout : layouts) {
    for (int const guilty : {0, 1, ranks / 2, ranks - 1}) {
      Comm comm(MPI_COMM_WORLD, options(layout));
      Work work(ranks, 20);
      zero::run(comm, work.op(Op::all_gather, 20));
      // Or the failure would meet a rank that still waits for the first.
      MPI_Barrier(MPI_COMM_WORLD);
      // The last differs, too, in another way.
      bool const last = comm.rank() == ranks - 1;
      std::size_t const count = comm.rank() == guilty ? 7 : last ? 8 : 9;
      std::string const text = error_of([&] { zero::run(comm, work.op(Op::all_gather, count)); });
      // Where no call is made by more ranks than the others, that of rank 0 is right.
      int const most = guilty == 0 && ranks > 3 ? 1 : 0;
      int const named = guilty == 0 && most == 0 ? 1 : guilty;
      INFO(text);
      CHECK(contains(text, "rank " + std::to_string(named) + " called [all_gather of "));
      CHECK(contains(text, "where rank " + std::to_string(most) + " called [all_gather of "));
      CHECK(contains(text, "they differ in count"));
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
}

TEST_CASE(
    "another call is found wherever it is: with data, without, from another root, at the end") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  struct Row {
    char const* what;
    Op op;
    std::size_t count;
    int root;
    Op other;
    std::size_t other_count;
    int other_root;
  };
  Row const rows[] = {
      {"sums and copies", Op::reduce_scatter, 20, 0, Op::all_gather, 20, 0},
      {"more than there is room for", Op::all_gather, 300'000, 0, Op::all_gather, 299'999, 0},
      {"data and none", Op::all_gather, 20, 0, Op::all_gather, 0, 0},
      {"what only the root sends", Op::broadcast, 20, 0, Op::broadcast, 21, 0},
      {"two roots", Op::broadcast, 20, 0, Op::broadcast, 20, ranks - 1},
      {"a sum where others receive nothing", Op::broadcast, 0, 0, Op::all_reduce, 9, 0},
  };
  int const guilty = ranks - 1;
  for (Layout const layout : layouts) {
    for (Row const& row : rows) {
      CAPTURE(row.what);
      auto settings = options(layout);
      settings.exchange_bytes = 256 * zero::KiB;
      Comm comm(MPI_COMM_WORLD, settings);
      Work work(ranks, 300'000);
      bool const differs = comm.rank() == guilty;
      std::string const text = error_of([&] {
        zero::run(comm,
                  differs ? work.op(row.other, row.other_count, row.other_root)
                          : work.op(row.op, row.count, row.root));
        // Who gives all, and needs nothing, learns of it in the next call.
        zero::run(comm, work.op(Op::all_gather, 5));
        comm.close();
      });
      INFO(text);
      CHECK(contains(text, "rank " + std::to_string(guilty) + " called ["));
      CHECK(contains(text, "where rank 0 called ["));
      MPI_Barrier(MPI_COMM_WORLD);
    }
    // A rank that calls something where the others close.
    Comm comm(MPI_COMM_WORLD, options(layout));
    Work work(ranks, 20);
    zero::run(comm, work.op(Op::all_gather, 20));
    MPI_Barrier(MPI_COMM_WORLD);
    std::string const text = error_of([&] {
      if (comm.rank() != guilty) return comm.close();
      zero::run(comm, work.op(Op::broadcast, 20));
      comm.close();
    });
    INFO(text);
    CHECK(contains(text, "rank " + std::to_string(guilty) + " called [broadcast"));
    CHECK(contains(text, "where rank 0 called [close]"));
    MPI_Barrier(MPI_COMM_WORLD);
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
  // When it wakes up, all that it needs is there: it learns of the end in this call, or in the
  // next.
  bool const has_all = comm.rank() == 1 && text == "no error";
  if (!has_all) CHECK(contains(text, "rank 1 fell silent for 2"));
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace control_test
