/// Communicators that nobody closes: what all ranks have left is freed, and nothing else.
#include "mpi/world.hpp"
#include "support/test.hpp"

#include <mpi.h>

#include <deque>
#include <fstream>

namespace left_test {
namespace {

using mpi_tests::collective;
using mpi_tests::contains;
using mpi_tests::Route;
using zero::Op;
using Comm = zero::Mpi<>;

zero::mpi::Options small(Route route) {
  zero::mpi::Options options = mpi_tests::options(route);
  options.deadline_s = 20;
  options.shared_bytes = 4096;
  options.exchange_bytes = 16 * 1024;
  return options;
}

/// Every rank's number arrives at every rank.
void use(Comm& comm, std::size_t count = 1) {
  std::vector<float> const mine(count, static_cast<float>(comm.rank()));
  std::vector<float> all(count * static_cast<std::size_t>(comm.size()), -1.f);
  zero::run(comm, collective(Op::all_gather, count, mine.data(), all.data()));
  CHECK(mpi_tests::wrong_of(all.size(), [&](std::size_t i) {
          return all[i] == static_cast<float>(i / count);
        }) == 0);
}

/// MPICH has 2,048 communicators for a process; a family takes four of them. On more ranks than
/// machines for tests have processors it takes long.
int rounds() { return mpi_tests::world_size() <= 2 ? 600 : 12; }

/// Of this process, shared ones too.
double resident_mb() {
  std::ifstream file("/proc/self/statm");
  double all = 0;
  double resident = 0;
  file >> all >> resident;
  return resident * 4096 / 1e6;
}

/// Makes groups with `make(round)`, uses each and destroys it, but on one rank only after the next
/// three were made.
template <class Make>
void make_many(int count, Make const& make) {
  std::deque<Comm> kept;
  double before = 0;
  for (int i = 0; i < count; ++i) {
    if (i == count / 2) before = resident_mb();
    kept.push_back(make(i));
    use(kept.back());
    bool const keeps = mpi_tests::world_rank() == 1 && i % 5 < 3;
    while (!keeps && !kept.empty()) kept.pop_front();
  }
  // Each of them that stayed would take 0.1 MB or more.
  CHECK(resident_mb() - before < 3 + 0.01 * count);
}

TEST_CASE("600 communicators in a row that nobody closes take the memory of a few") {
  make_many(rounds(), [](int) { return Comm(MPI_COMM_WORLD, small(Route::window)); });
}

TEST_CASE("600 groups in a row that are split off and never closed take the memory of a few") {
  Comm comm(MPI_COMM_WORLD, small(Route::window));
  make_many(rounds(), [&](int i) { return comm.split(i % 2 * comm.rank(), i % 3 * -comm.rank()); });
  use(comm);
  // They are no hindrance.
  comm.close();
}

TEST_CASE("over every route, what is left is closed in order") {
  for (Route const route : mpi_tests::routes) {
    CAPTURE(mpi_tests::name(route));
    for (int i = 0; i < 3; ++i) {
      Comm comm(MPI_COMM_WORLD, small(route));
      use(comm, 3000);
      Comm part = comm.split(comm.rank() % 2, comm.rank());
      Comm nested = part.split(0, part.rank());
      use(nested, 3000);
      use(part, 3000);
      std::vector<float> from_root(3000, comm.rank() == 0 ? 7.f : 0.f);
      zero::run(comm, collective(Op::broadcast, 3000, from_root.data(), from_root.data()));
      CHECK(from_root.back() == 7.f);
      // In every order.
      if (i % 3 == 0) Comm const gone = std::move(comm);
      if (i % 3 == 1) Comm const gone = std::move(part);
    }
  }
}

TEST_CASE("what a rank still uses stays as it is") {
  std::optional<Comm> old(std::in_place, MPI_COMM_WORLD, small(Route::window));
  zero::mpi::SharedAllocator memory = old->allocator();
  auto* const mine = static_cast<float*>(memory.allocate(1024, 64));
  std::fill_n(mine, 256, 3.f);
  use(*old);
  int const owner = mpi_tests::world_size() - 1;
  bool const keeps = mpi_tests::world_rank() == owner;
  if (!keeps) {
    memory.deallocate(mine, 1024, 64);
    memory = {};
    old.reset();
  }
  auto const make_more = [] {
    for (int i = 0; i < 3; ++i) {
      Comm comm(MPI_COMM_WORLD, small(Route::window));
      use(comm);
    }
  };
  make_more();
  if (keeps) {
    CHECK(old->held() > 0);
    old->progress();
    old.reset();
  }
  // Its memory outlives the handle, and so does an allocator that may hand it out.
  make_more();
  if (keeps) {
    CHECK(std::count(mine, mine + 256, 3.f) == 256);
    memory.deallocate(mine, 1024, 64);
  }
  make_more();
  if (keeps) {
    auto* const again = static_cast<float*>(memory.allocate(1024, 64));
    std::fill_n(again, 256, 4.f);
    memory.deallocate(again, 1024, 64);
  }
}

TEST_CASE("a ticket that outlives its communicator keeps it, and is done afterwards") {
  std::vector<float> all(static_cast<std::size_t>(mpi_tests::world_size()), -1.f);
  auto const mine = static_cast<float>(mpi_tests::world_rank());
  Comm::Ticket ticket;
  {
    Comm comm(MPI_COMM_WORLD, small(Route::window));
    ticket = comm.start(collective(Op::all_gather, 1, &mine, all.data()));
    // All have it, so that none leaves another without.
    while (all.back() < 0 || all.front() < 0) comm.progress();
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 100; ++i) comm.progress();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  Comm next(MPI_COMM_WORLD, small(Route::window));
  use(next);
  Comm after(MPI_COMM_WORLD, small(Route::window));
  ticket.wait();
  use(after);
  next.close();
  after.close();
}

TEST_CASE("a rank that leaves earlier, in a broadcast, is no obstacle") {
  for (int i = 0; i < 3; ++i) {
    Comm comm(MPI_COMM_WORLD, small(Route::exchange));
    float value = comm.rank() == 0 ? 7.f : 0.f;
    zero::run(comm, collective(Op::broadcast, 1, &value, &value));
    CHECK(value == 7.f);
  }
}

TEST_CASE("groups and the communicator that they were made over end in any order") {
  for (int i = 0; i < 20; ++i) {
    MPI_Comm over = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &over);
    std::optional<Comm> first(std::in_place, over, small(Route::window));
    std::optional<Comm> second(std::in_place, over, small(Route::two_nodes));
    use(*first);
    use(*second);
    first.reset();
    if (i % 2 == 0) second.reset();
    MPI_Comm_free(&over);
  }
}

TEST_CASE("where MPI has no communicators left, an error says what to do, in every call") {
  // MPICH takes minutes to make so many if ranks have no processors of their own.
  if (mpi_tests::world_size() > 2) return;
  MPI_Comm over = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &over);
  // As most trainers' have it: errors of their own end the program.
  MPI_Comm_set_errhandler(over, MPI_ERRORS_ARE_FATAL);
  Comm group(over, small(Route::window));
  MPI_Comm source = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &source);
  MPI_Comm_set_errhandler(source, MPI_ERRORS_RETURN);
  std::vector<MPI_Comm> taken;
  auto const take_all = [&] {
    MPI_Comm next = MPI_COMM_NULL;
    while (taken.size() < 2100 && MPI_Comm_dup(source, &next) == MPI_SUCCESS) taken.push_back(next);
    return taken.size() < 2100;
  };
  // Open MPI's number has no such bound.
  bool const bounded = take_all();
  for (int left = 0; bounded && left < 7; ++left) {
    for (int i = 0; i < left; ++i) {
      MPI_Comm_free(&taken.back());
      taken.pop_back();
    }
    auto const attempt = [&](auto const& make) {
      try {
        Comm made = make();
        made.close();
        return true;
      } catch (zero::Error const& error) {
        CHECK_MESSAGE(error.kind() == zero::ErrorKind::resource, error.what());
        CHECK_MESSAGE(contains(error.what(), "MPI has no communicators left: call close(), on all"),
                      error.what());
        return false;
      }
    };
    bool const first = left % 2 == 0;
    CHECK(attempt([&] { return first ? Comm(over, small(Route::window)) : group.split(0, 0); }) ==
          (left >= (first ? 4 : 3)));
    take_all();
  }
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(over, &handler);
  CHECK(handler == MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&handler);
  for (MPI_Comm& comm : taken) MPI_Comm_free(&comm);
  Comm after(over, small(Route::window));
  use(after);
  after.close();
  use(group);
  group.close();
  MPI_Comm_free(&source);
  MPI_Comm_free(&over);
}

}  // namespace
}  // namespace left_test
