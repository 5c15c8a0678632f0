/// Random collectives over several groups of one family, started and waited for in each rank's own
/// order: are all results right, and does every run end?
///
/// usage: mpirun -np N random_job [--runs COUNT] [--seed SEED]
#include "mpi/world.hpp"
#include "support/standard.hpp"
#include "zero/comm/mpi.hpp"

#include <mpi.h>

namespace {

using zero::Op;

/// One collective of a group and its buffers. Sums are of integers, which are exact in any order.
struct Work {
  int group = 0;
  Op op{};
  std::size_t count = 0;
  int root = 0;
  bool pooled = false;  // in the window, where there is one
  bool in_place = false;
  int progress = 0;  // calls before it is waited for
  std::int32_t* send = nullptr;
  std::int32_t* recv = nullptr;
};

std::int32_t value(int work, int rank, std::size_t i) {
  return static_cast<std::int32_t>(
      (static_cast<std::size_t>(work) * 7919 + static_cast<std::size_t>(rank) * 104'729 + i * 31) %
      100'003);
}

/// What a rank's result must have at a place.
std::int64_t expected(Work const& work, int number, int rank, int size, std::size_t i) {
  std::size_t const block = i / std::max<std::size_t>(work.count, 1);
  std::size_t const own = static_cast<std::size_t>(rank) * work.count;
  std::int64_t sum = 0;
  switch (work.op) {
    case Op::reduce_scatter:
    case Op::all_reduce:
      for (int r = 0; r < size; ++r) {
        sum += value(number, r, work.op == Op::all_reduce ? i : own + i);
      }
      return sum;
    case Op::all_gather: return value(number, static_cast<int>(block), i % work.count);
    case Op::all_to_all: return value(number, static_cast<int>(block), own + i % work.count);
    case Op::broadcast: return value(number, work.root, i);
  }
  return 0;
}

/// Memory of both kinds, given back at the end.
struct Memory {
  zero::mpi::SharedAllocator allocator;
  bool shared;
  std::vector<std::pair<void*, std::size_t>> taken{};
  std::deque<std::vector<std::int32_t>> own{};

  std::int32_t* get(std::size_t count, bool pooled) {
    if (!pooled || !shared) return own.emplace_back(count).data();
    std::size_t const bytes = (count + 1) * sizeof(std::int32_t);
    taken.emplace_back(allocator.allocate(bytes, 64), bytes);
    return static_cast<std::int32_t*>(taken.back().first);
  }
  ~Memory() {
    for (auto const& [at, bytes] : taken) allocator.deallocate(at, bytes, 64);
  }
};

template <class Comm>
std::size_t run_case(Comm& world, std::mt19937_64& alike, std::mt19937_64& apart) {
  auto const pick = [&](std::size_t below) { return static_cast<std::size_t>(alike() % below); };
  std::deque<Comm> parts;
  int const colors = 1 + static_cast<int>(pick(2));
  int const key = pick(2) == 0 ? world.rank() : -world.rank();
  parts.push_back(world.split(world.rank() % colors, key));
  parts.push_back(world.split(0, -world.rank()));
  std::vector<Comm*> const groups{&world, &parts[0], &parts[1]};
  std::size_t wrong = 0;
  {
    Memory memory{world.allocator(), world.transport().window};
    std::vector<Work> works(5 + pick(60));
    constexpr std::size_t counts[] = {0, 1, 3, 17, 500, 4001, 60'000};
    std::vector<std::deque<int>> left(groups.size());
    for (std::size_t n = 0; n < works.size(); ++n) {
      Work& work = works[n];
      work.group = static_cast<int>(pick(groups.size()));
      work.op = static_cast<Op>(pick(zero::op_count));
      work.count = counts[pick(std::size(counts))];
      work.root = static_cast<int>(pick(static_cast<std::size_t>(world.size())));
      work.pooled = pick(2) == 0;
      Comm const& comm = *groups[static_cast<std::size_t>(work.group)];
      work.root %= comm.size();
      // Groups of one number may have other sizes on other ranks.
      auto const ranks = static_cast<std::size_t>(comm.size());
      bool const gives_all = work.op == Op::reduce_scatter || work.op == Op::all_to_all;
      bool const gets_all = work.op == Op::all_gather || work.op == Op::all_to_all;
      std::size_t const sent = gives_all ? ranks * work.count : work.count;
      std::size_t const got = gets_all ? ranks * work.count : work.count;
      work.in_place = work.op != Op::all_to_all && apart() % 2 == 0;
      work.send = memory.get(std::max(sent, got), work.pooled);
      auto const own = static_cast<std::size_t>(comm.rank()) * work.count;
      work.recv = work.send;
      if (!work.in_place) work.recv = memory.get(got, apart() % 2 == 0);
      if (work.in_place && work.op == Op::reduce_scatter) work.recv += own;
      if (work.in_place && work.op == Op::all_gather) work.send += own;
      for (std::size_t i = 0; i < sent; ++i) {
        work.send[i] = value(static_cast<int>(n), comm.rank(), i);
      }
      work.progress = static_cast<int>(apart() % 3);
      left[static_cast<std::size_t>(work.group)].push_back(static_cast<int>(n));
    }
    // Every rank goes through the groups in an order of its own, and waits in another.
    std::vector<std::pair<int, typename Comm::Ticket>> tickets;
    auto const finish = [&](std::size_t which) {
      auto const number = tickets[which].first;
      Work const& work = works[static_cast<std::size_t>(number)];
      Comm& comm = *groups[static_cast<std::size_t>(work.group)];
      for (int i = 0; i < work.progress; ++i) comm.progress();
      comm.wait(tickets[which].second);
      tickets.erase(tickets.begin() + static_cast<std::ptrdiff_t>(which));
      bool const gets_all = work.op == Op::all_gather || work.op == Op::all_to_all;
      std::size_t const got =
          gets_all ? static_cast<std::size_t>(comm.size()) * work.count : work.count;
      for (std::size_t i = 0; i < got; ++i) {
        std::int64_t const right = expected(work, number, comm.rank(), comm.size(), i);
        if (work.recv[i] != static_cast<std::int32_t>(right)) ++wrong;
      }
    };
    for (std::size_t started = 0; started < works.size();) {
      std::size_t const group = apart() % groups.size();
      if (left[group].empty()) continue;
      int const number = left[group].front();
      left[group].pop_front();
      Work const& work = works[static_cast<std::size_t>(number)];
      auto op = mpi_tests::collective(work.op, work.count, work.send, work.recv);
      op.root = work.root;
      op.bucket = number;
      tickets.emplace_back(number, groups[group]->start(op));
      ++started;
      // What was started may be waited for only if all ranks are sure to come to it.
      if (apart() % 8 == 0) world.progress();
    }
    while (!tickets.empty()) finish(apart() % tickets.size());
  }
  for (Comm& part : parts) part.close();
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  std::uint64_t runs = 20;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    (std::string(argv[i]) == "--runs" ? runs : seed) = std::strtoull(argv[i + 1], nullptr, 10);
  }
  int failures = 0;
  for (std::uint64_t run = 0; run < runs; ++run) {
    std::mt19937_64 alike(seed * 1'000'003 + run);
    std::mt19937_64 apart(alike() + static_cast<std::uint64_t>(mpi_tests::world_rank()));
    auto const route = mpi_tests::routes[run % std::size(mpi_tests::routes)];
    int const ranks =
        1 + static_cast<int>(alike() % static_cast<std::uint64_t>(mpi_tests::world_size()));
    auto const body = [&](auto& comm) {
      std::size_t const wrong = run_case(comm, alike, apart);
      if (wrong == 0) return;
      std::printf("run %llu of seed %llu: %zu elements are wrong on rank %d of %d, %s\n",
                  static_cast<unsigned long long>(run),
                  static_cast<unsigned long long>(seed),
                  wrong,
                  comm.rank(),
                  comm.size(),
                  mpi_tests::name(route));
      ++failures;
    };
    try {
      mpi_tests::with_group(ranks, route, body);
    } catch (zero::Error const& error) {
      std::printf("run %llu of seed %llu: %s\n",
                  static_cast<unsigned long long>(run),
                  static_cast<unsigned long long>(seed),
                  error.what());
      std::fflush(nullptr);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  if (mpi_tests::world_rank() == 0 && failures == 0) {
    std::printf("%llu runs are right\n", static_cast<unsigned long long>(runs));
  }
  std::fflush(nullptr);
  MPI_Finalize();
  return failures == 0 ? 0 : 1;
}
