#include "support/test.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/make_tables.hpp"
#include "zero/space/host.hpp"

namespace long_work_test {
namespace {

using zero::detail::LongWork;

/// What each rank hears of `work(long_work, rank)`.
template <class Work>
std::vector<std::string> heard(int ranks, Work const& work) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    zero::HostAllocator allocator;
    zero::space::Host const space;
    zero::detail::Arena arena(zero::detail::ref(allocator),
                              {zero::detail::space_calls<zero::space::Host>, &space});
    zero::detail::Ranks group(zero::detail::ref(comm));
    zero::detail::RankWords const control(group, arena);
    LongWork long_work(control, "work");
    try {
      long_work.run([&] { work(long_work, comm.rank()); });
    } catch (zero::Error const& error) {
      texts[static_cast<std::size_t>(comm.rank())] = error.message();
    }
  });
  return texts;
}

TEST_CASE("what one rank throws all throw: of several the first rank's") {
  auto const all = [](std::string const& text) { return std::vector<std::string>(3, text); };
  CHECK(heard(3, [](LongWork&, int) {}) == all(""));
  CHECK(heard(3, [](LongWork&, int rank) {
          if (rank > 0) zero::fail(zero::ErrorKind::data, {"nine letters and ", rank});
        }) == all("on rank 1: nine letters and 1"));
  CHECK(heard(3, [](LongWork&, int rank) {
          if (rank == 2) throw std::runtime_error("");
        }) == all("on rank 2: "));
  CHECK(heard(3, [](LongWork&, int rank) {
          if (rank == 0) throw std::bad_alloc();
        }) == all("on rank 0: std::bad_alloc"));
}

TEST_CASE("a failed rank ends the work of the others") {
  std::vector<int> pieces(3);
  auto const work = [&](LongWork& long_work, int rank) {
    if (rank == 1) zero::fail(zero::ErrorKind::resource, "no");
    for (int& piece = pieces[static_cast<std::size_t>(rank)]; piece < 1000; ++piece) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      long_work.alive();
    }
  };
  CHECK(heard(3, work)[2] == "on rank 1: no");
  CHECK(pieces[0] < 100);
  CHECK(pieces[2] < 100);
}

TEST_CASE("work that goes on with collectives ends before them, and its errors stay its own") {
  CHECK(heard(2, [](LongWork& long_work, int) {
          long_work.end();
          zero::fail(zero::ErrorKind::communication, "all say so");
        })[1] == "all say so");
}

}  // namespace
}  // namespace long_work_test
