/// Groups of threads, and functions that run as one.
#include "zero/comm/in_process.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/concepts/communicator.hpp"

namespace in_process_test {
namespace {

using zero::Collective;
using zero::Error;
using zero::ErrorKind;
using zero::InProcess;
using zero::Op;

Collective sum(std::vector<float>& x, int bucket = 0) {
  return {.op = Op::all_reduce,
          .count = x.size(),
          .send = x.data(),
          .recv = x.data(),
          .bucket = bucket};
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("looking ends with the answer, and after a while without one") {
  int asked = 0;
  CHECK(zero::detail::look([&] { return ++asked == 10; }));
  CHECK(asked == 10);
  auto const start = std::chrono::steady_clock::now();
  CHECK_FALSE(zero::detail::look([] { return false; }));
  CHECK(std::chrono::steady_clock::now() - start >= zero::detail::looking);
}

TEST_CASE("InProcess: a group is as large as asked for, or refused") {
  auto const handles = InProcess::group(3);
  REQUIRE(handles.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(handles[static_cast<std::size_t>(rank)].rank() == rank);
    CHECK(handles[static_cast<std::size_t>(rank)].size() == 3);
  }
  for (int const ranks : {0, -1, 1'000'000}) {
    std::string const what = message_of([&] { static_cast<void>(InProcess::group(ranks)); });
    CHECK_MESSAGE(contains(what, "invalid argument"), what);
    CHECK_MESSAGE(contains(what, std::to_string(ranks)), what);
  }
  CHECK_THROWS_AS(static_cast<void>(InProcess::group(2, {.deadline_s = 0})), Error);
  CHECK_THROWS_AS(static_cast<void>(InProcess::group(2, {.deadline_s = 1e300})), Error);
}

TEST_CASE("InProcess: a collective needs its ranks to start it, not to wait for it") {
  std::mutex mutex;
  std::condition_variable changed;
  bool rank_0_is_done = false;
  bool done_without_peer = false;
  zero::run_ranks(2, [&](InProcess& comm) {
    std::vector<float> x(3'000'000, 1.0f);
    auto ticket = comm.start(sum(x));
    if (comm.rank() == 0) {
      comm.wait(ticket);
      std::lock_guard const lock(mutex);
      rank_0_is_done = true;
      changed.notify_all();
    } else {
      std::unique_lock lock(mutex);
      done_without_peer =
          changed.wait_for(lock, std::chrono::seconds(30), [&] { return rank_0_is_done; });
      lock.unlock();
      comm.wait(ticket);
    }
    if (x != std::vector<float>(x.size(), 2.0f)) throw std::runtime_error("wrong sum");
  });
  CHECK(done_without_peer);
}

/// Two ranks of one thread, which works only if neither start blocks.
struct Pair {
  std::vector<InProcess> handles = InProcess::group(2);
  std::vector<float> x = std::vector<float>(100, 1.0f);
  std::vector<float> y = std::vector<float>(100, 2.0f);
  InProcess::Ticket first = handles[0].start(sum(x));
  InProcess::Ticket second = handles[1].start(sum(y));
};

TEST_CASE("InProcess: start does not wait for peers, of whom one that leaves later does no harm") {
  Pair pair;
  pair.handles[1].wait(pair.second);
  pair.handles.pop_back();
  pair.handles[0].wait(pair.first);
  CHECK(pair.x == pair.y);
  CHECK(pair.x[99] == 3.0f);
  std::string const what = message_of([&] { zero::run(pair.handles[0], sum(pair.x, 8)); });
  CHECK_MESSAGE(contains(what, "rank 1 left after 1 collectives"), what);
  CHECK_MESSAGE(contains(what, "in all_reduce, bucket 8"), what);
}

TEST_CASE("InProcess: a finished collective's result stands after a failure, nothing new starts") {
  Pair pair;
  pair.handles[1].wait(pair.second);
  pair.handles[1].report_failure("the disk is on fire");
  pair.handles[0].wait(pair.first);
  CHECK(pair.x[0] == 3.0f);
  for (InProcess& each : pair.handles) CHECK_THROWS_AS(zero::run(each, sum(pair.x)), Error);
}

TEST_CASE("InProcess: a ticket that is dropped ends the group and frees the buffers") {
  auto handles = InProcess::group(2);
  std::vector<float> y(5, 2.0f);
  {
    std::vector<float> x(5, 1.0f);
    InProcess::Ticket const dropped = handles[0].start(sum(x, 3));
  }
  std::string const what = message_of([&] { zero::run(handles[1], sum(y, 3)); });
  CHECK_MESSAGE(contains(what, "rank 0 abandoned [all_reduce of 5 fp32"), what);
  CHECK_MESSAGE(contains(what, "bucket 3"), what);
}

TEST_CASE("InProcess: a finished collective's ticket may be dropped, moved and waited for again") {
  auto handles = InProcess::group(1);
  std::vector<float> x(5, 1.0f);
  { InProcess::Ticket const dropped = handles[0].start(sum(x)); }
  InProcess::Ticket ticket = handles[0].start(sum(x));
  InProcess::Ticket moved = std::move(ticket);
  handles[0].wait(moved);
  handles[0].wait(moved);
  InProcess::Ticket none;
  handles[0].wait(none);
  CHECK(x[0] == 1.0f);
}

TEST_CASE("InProcess: a reported failure is every peer's, in the words of the reporter") {
  auto handles = InProcess::group(3);
  std::vector<float> x(5, 1.0f);
  InProcess::Ticket ticket = handles[0].start(sum(x, 6));
  CHECK(handles[1].report_failure("the disk is on fire"));
  CHECK_FALSE(handles[2].report_failure("so is mine"));
  for (std::size_t const rank : {0u, 2u}) {
    std::string const what = message_of([&] {
      if (rank == 0) handles[0].wait(ticket);
      zero::run(handles[rank], sum(x, 6));
    });
    CHECK_MESSAGE(contains(what, "rank 1 failed: the disk is on fire"), what);
    CHECK_MESSAGE(contains(what, "all_reduce, bucket 6"), what);
  }
}

TEST_CASE("InProcess: groups that were not split from each other do not share their fate") {
  auto broken = InProcess::group(2);
  auto sound = InProcess::group(1);
  broken[0].report_failure("broken");
  std::vector<float> x(5, 1.0f);
  zero::run(sound[0], sum(x));
  CHECK_THROWS_AS(zero::run(broken[1], sum(x)), Error);
}

TEST_CASE("InProcess: a rank that splits where another gathers as much is a disagreement") {
  std::vector<std::string> what(2);
  zero::run_ranks(2, [&](InProcess& comm) {
    what[static_cast<std::size_t>(comm.rank())] = message_of([&] {
      if (comm.rank() == 0) {
        static_cast<void>(comm.split(0, 0));
      } else {
        std::int32_t const send[2] = {};
        std::int32_t recv[4] = {};
        zero::run(comm,
                  {.op = Op::all_gather,
                   .dtype = zero::DType::i32,
                   .count = 2,
                   .send = send,
                   .recv = recv});
      }
    });
  });
  for (std::string const& text : what) {
    CHECK_MESSAGE(contains(text, "[split]"), text);
    CHECK_MESSAGE(contains(text, "[all_gather of 2 int32"), text);
  }
}

TEST_CASE("run_ranks: returns after all ranks, and rethrows the exception that came first") {
  int visits[4] = {};
  zero::run_ranks(4, [&](InProcess& comm) { visits[comm.rank()] += 1; });
  for (int const visit : visits) CHECK(visit == 1);

  struct Odd {};
  auto const odd = [](InProcess& comm) {
    std::vector<float> x(5, 1.0f);
    if (comm.rank() == 1) throw Odd{};
    zero::run(comm, sum(x));
  };
  CHECK_THROWS_AS(zero::run_ranks(3, odd), Odd);
  CHECK_THROWS_AS(zero::run_ranks(0, odd), Error);
  CHECK_THROWS_AS(zero::run_ranks(-3, odd), Error);
  CHECK_THROWS_AS(zero::run_ranks(1'000'000, odd), Error);

  auto const refused = [](InProcess& comm) {
    std::vector<float> x(5, 1.0f);
    Collective op = sum(x);
    if (comm.rank() == 2) op.recv = nullptr;
    zero::run(comm, op);
  };
  std::string const what = message_of([&] { zero::run_ranks(4, refused); });
  CHECK_MESSAGE(contains(what, "a buffer is null"), what);
  CHECK_MESSAGE(contains(what, "rank 2, in all_reduce"), what);
}

}  // namespace
}  // namespace in_process_test
