#include "zero/comm/decorators/traced.hpp"

#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace traced_test {
namespace {

static_assert(zero::SplittableCommunicator<zero::Traced<zero::InProcess>>);
static_assert(zero::SquaringCommunicator<zero::Traced<zero::InProcess>>);

using zero::CallState;
using zero::Collective;
using zero::Error;
using zero::ErrorKind;
using zero::InProcess;
using zero::Op;
using zero::Self;
using zero::Traced;
using zero::TracedCall;

/// An all-reduce of one element, in place.
struct Call : Collective {
  explicit Call(int bucket_number) {
    op = Op::all_reduce;
    count = 1;
    send = recv = &value;
    bucket = bucket_number;
  }
  Call(Call const&) = delete;
  Call& operator=(Call const&) = delete;
  float value = 1.f;
};

/// What `work` throws, which it must.
template <class Work>
Error error_of(Work const& work) {
  try {
    work();
  } catch (Error const& error) {
    return error;
  }
  FAIL("nothing was thrown");
  return {ErrorKind::data, "", {}, {}};
}

TEST_CASE("Traced: a ring of the last calls, oldest first") {
  Self self;
  Traced traced{self, 4};
  CHECK(traced.calls().empty());
  std::vector<float> memory(10);
  for (int i = 0; i < 10; ++i) {
    zero::run(traced,
              {.op = i % 2 == 0 ? Op::all_gather : Op::all_reduce,
               .dtype = zero::DType::bf16,
               .count = static_cast<std::size_t>(i),
               .send = memory.data(),
               .recv = memory.data(),
               .bucket = i - 1});
    auto const calls = traced.calls();
    auto const number = static_cast<std::size_t>(i);
    REQUIRE(calls.size() == (number < 4 ? number + 1 : 4));
    double last = 0.;
    for (std::size_t c = 0; c < calls.size(); ++c) {
      TracedCall const& call = calls[c];
      auto const of = number + 1 - calls.size() + c;
      CHECK(call.number == of);
      CHECK(call.call.op == (of % 2 == 0 ? Op::all_gather : Op::all_reduce));
      CHECK(call.call.dtype == zero::DType::bf16);
      CHECK(call.call.count == of);
      CHECK(call.call.block_bytes() == 2 * of);
      CHECK(call.call.bucket == static_cast<int>(of) - 1);
      CHECK(call.call.send == nullptr);
      CHECK(call.call.recv == nullptr);
      CHECK(call.state == CallState::finished);
      CHECK(call.start_s >= last);
      CHECK(call.wait_s >= call.start_s);
      CHECK(call.finish_s >= call.wait_s);
      last = call.finish_s;
    }
    CHECK(last > 0.);
  }
}

TEST_CASE("Traced: remembers 2048 calls unless told otherwise, and refuses to remember none") {
  Self self;
  Traced traced{self};
  Call const call(0);
  for (int i = 0; i < 2050; ++i) zero::run(traced, call);
  CHECK(traced.calls().size() == 2048);
  CHECK(traced.calls().front().number == 2);
  CHECK(traced.calls().back().number == 2049);
  Error const error = error_of([&] { Traced<Self>(self, 0); });
  CHECK(error.kind() == ErrorKind::invalid_argument);
  CHECK(error.message() == "a trace has room for no call");
}

TEST_CASE("Traced: a call under way is seen, and what is waited for in another order") {
  Self self;
  Traced traced{self};
  Call const calls[] = {Call(0), Call(1), Call(2)};
  auto first = traced.start(calls[0]);
  auto second = traced.start(calls[1]);
  traced.wait(second);
  auto const seen = traced.calls();
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].state == CallState::started);
  CHECK(seen[0].wait_s == 0.);
  CHECK(seen[0].finish_s == 0.);
  CHECK(seen[1].state == CallState::finished);
  CHECK(seen[1].start_s >= seen[0].start_s);

  std::string const text = traced.describe();
  std::string const head =
      "rank 0 of 1: 2 calls started, last finished call 1 "
      "[all_reduce of 1 fp32 summed in fp32, bucket 1]\n"
      "call 0 [all_reduce of 1 fp32 summed in fp32, bucket 0]: start at 0.";
  CHECK_MESSAGE(text.substr(0, head.size()) == head, text);
  auto const lines = std::count(text.begin(), text.end(), '\n');
  CHECK(lines == 3);
  std::string const last = text.substr(text.find("\ncall 1 "));
  CHECK_MESSAGE(last.find(" s, wait at ") != std::string::npos, text);
  CHECK_MESSAGE(last.find(" s, finished at ") != std::string::npos, text);
  CHECK_MESSAGE(text.find("wait at") > text.find("call 1 [", head.size()), text);
  traced.wait(first);
  CHECK(traced.calls()[0].state == CallState::finished);
}

TEST_CASE("Traced: tickets that have nothing to wait for leave the record alone") {
  Self self;
  Traced traced{self};
  Call const calls[] = {Call(0), Call(1)};
  Traced<Self>::Ticket none;
  traced.wait(none);
  auto first = traced.start(calls[0]);
  auto second = std::move(first);
  // What is tested.
  traced.wait(first);
  CHECK(traced.calls()[0].state == CallState::started);
  traced.wait(second);
  double const finish_s = traced.calls()[0].finish_s;
  CHECK(finish_s > 0.);
  std::this_thread::sleep_for(std::chrono::microseconds(10));
  traced.wait(second);
  CHECK(traced.calls()[0].finish_s == finish_s);
  none = traced.start(calls[1]);
  second = std::move(none);
  traced.wait(second);
  CHECK(traced.calls()[1].state == CallState::finished);
  CHECK(traced.calls().size() == 2);
}

TEST_CASE("Traced: a call that is refused is seen until the next takes its number") {
  Self self;
  Traced traced{self, 3};
  Call const call(5);
  Collective const wrong{.op = Op::all_gather, .count = 7, .bucket = 9};
  auto const refuse = [&] { static_cast<void>(traced.start(wrong)); };
  Error const error = error_of(refuse);
  Error const plain = error_of([&] { static_cast<void>(self.start(wrong)); });
  CHECK(error.kind() == ErrorKind::invalid_argument);
  CHECK(error.rank() == plain.rank());
  CHECK(error.operation() == "all_gather");
  CHECK(error.bucket() == 9);
  CHECK(error.where().line == plain.where().line);
  CHECK(error.message() == plain.message() +
                               "; rank 0 of 1 was starting call 0 [all_gather of 7 fp32, bucket "
                               "9], no call finished");
  REQUIRE(traced.calls().size() == 1);
  CHECK(traced.calls()[0].state == CallState::starting);
  CHECK(traced.describe().find("did not succeed") != std::string::npos);
  for (int i = 0; i < 3; ++i) zero::run(traced, call);
  CHECK(traced.calls().front().call.bucket == 5);
  CHECK(traced.calls().back().number == 2);
  CHECK_THROWS_AS(refuse(), Error);
  CHECK_THROWS_AS(refuse(), Error);
  auto const calls = traced.calls();
  REQUIRE(calls.size() == 3);
  CHECK(calls.front().number == 1);
  CHECK(calls.back().number == 3);
  CHECK(calls.back().call.bucket == 9);
}

TEST_CASE("Traced: a call that has left the ring is waited for and named by its number") {
  struct Failing : Self {
    bool fails = false;
    void wait(Ticket& /*ticket*/) const {
      if (fails) zero::fail(ErrorKind::data, "lost");
    }
  };
  Failing inner;
  Traced traced{inner, 1};
  Call const calls[] = {Call(0), Call(1)};
  auto first = traced.start(calls[0]);
  auto second = traced.start(calls[1]);
  inner.fails = true;
  CHECK(error_of([&] { traced.wait(first); }).message() ==
        "lost; rank 0 of 1 was waiting for call 0, no call finished");
  inner.fails = false;
  traced.wait(first);
  CHECK(traced.calls()[0].state == CallState::started);
  inner.fails = true;
  CHECK(error_of([&] { traced.wait(second); }).message() ==
        "lost; rank 0 of 1 was waiting for call 1 [all_reduce of 1 fp32 summed in fp32, bucket 1], "
        "last finished call 0");
  CHECK(traced.calls()[0].state == CallState::waiting);
}

/// A communicator that does what it is told in every function.
class Scripted {
 public:
  using Space = zero::space::Host;
  struct Ticket {};

  enum class Do : std::uint8_t { nothing, fail, throw_other, sleep };
  Do now = Do::nothing;

  [[nodiscard]] int rank() const noexcept { return 2; }
  [[nodiscard]] int size() const noexcept { return 4; }
  Ticket start(Collective const&) {
    act();
    return {};
  }
  void wait(Ticket&) { act(); }
  void progress() noexcept { act(); }
  void confirm() { act(); }
  [[nodiscard]] std::int64_t const* ended() const { return &ended_; }
  [[nodiscard]] Scripted split(int, int) {
    act();
    return {};
  }

 private:
  void act() const {
    if (now == Do::sleep) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    if (now == Do::throw_other) throw std::runtime_error("not ours");
    if (now == Do::fail) {
      zero::fail(ErrorKind::resource,
                 "the cable is out",
                 {.rank = 3, .operation = "broadcast", .bucket = 17},
                 {"cable.c", 12});
    }
  }
  std::int64_t ended_ = 0;
};
static_assert(zero::ConfirmingCommunicator<Traced<Scripted>>);
static_assert(zero::ProgressingCommunicator<Traced<Scripted>>);
static_assert(zero::SplittableCommunicator<Traced<Scripted>>);
static_assert(!zero::ConfirmingCommunicator<Traced<InProcess>>);
static_assert(!zero::ProgressingCommunicator<Traced<InProcess>>);

TEST_CASE("Traced: an error keeps what it says, and says where the rank was") {
  Scripted inner;
  Traced traced{inner};
  CHECK(traced.ended() == inner.ended());
  Call const call(3);
  inner.now = Scripted::Do::fail;
  auto const told = [&](auto const& work) {
    Error const error = error_of(work);
    CHECK(error.kind() == ErrorKind::resource);
    CHECK(error.rank() == 3);
    CHECK(error.operation() == "broadcast");
    CHECK(error.bucket() == 17);
    CHECK(std::string(error.where().file) == "cable.c");
    CHECK(error.where().line == 12);
    CHECK(std::string(error.what()) ==
          "zero: resource: " + error.message() + ", rank 3, in broadcast, bucket 17");
    std::string const begin = "the cable is out; rank 2 of 4 was ";
    CHECK(error.message().substr(0, begin.size()) == begin);
    return error.message().substr(begin.size());
  };
  std::string const name = "[all_reduce of 1 fp32 summed in fp32, bucket 3]";
  CHECK(told([&] { traced.confirm(); }) == "confirming all up to no call, no call finished");
  CHECK(told([&] { static_cast<void>(traced.split(0, 0)); }) ==
        "splitting after no call, no call finished");
  inner.now = Scripted::Do::nothing;
  for (int i = 0; i < 40; ++i) zero::run(traced, call);
  auto ticket = traced.start(call);
  inner.now = Scripted::Do::fail;
  std::string const last = ", last finished call 39 " + name;
  CHECK(told([&] { traced.wait(ticket); }) == "waiting for call 40 " + name + last);
  CHECK(told([&] { traced.confirm(); }) == "confirming all up to call 40 " + name + last);
  CHECK(told([&] { static_cast<void>(traced.split(0, 0)); }) ==
        "splitting after call 40 " + name + last);
  CHECK(told([&] { static_cast<void>(traced.start(call)); }) == "starting call 41 " + name + last);
  CHECK(traced.calls()[40].state == CallState::waiting);
  inner.now = Scripted::Do::nothing;
  traced.wait(ticket);
  CHECK(traced.calls()[40].state == CallState::finished);
}

TEST_CASE("Traced: exceptions that are not the library's go on as they are") {
  Scripted inner;
  Traced traced{inner};
  Call const call(3);
  auto ticket = traced.start(call);
  inner.now = Scripted::Do::throw_other;
  CHECK_THROWS_WITH_AS(static_cast<void>(traced.start(call)), "not ours", std::runtime_error);
  CHECK_THROWS_WITH_AS(traced.wait(ticket), "not ours", std::runtime_error);
  CHECK(traced.calls()[0].state == CallState::waiting);
  CHECK(traced.calls()[1].state == CallState::starting);
}

TEST_CASE("Traced: seconds inside are those of start, wait, progress and confirm") {
  Scripted inner;
  Traced traced{inner};
  Call const call(0);
  CHECK(traced.seconds_inside() == 0.);
  inner.now = Scripted::Do::sleep;
  auto const begin = std::chrono::steady_clock::now();
  double before = 0.;
  auto const grows = [&](char const* what) {
    CHECK_MESSAGE(traced.seconds_inside() >= before + 0.003, what);
    before = traced.seconds_inside();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(traced.seconds_inside() == before);
  };
  auto ticket = traced.start(call);
  grows("start");
  traced.wait(ticket);
  grows("wait");
  traced.progress();
  grows("progress");
  traced.confirm();
  grows("confirm");
  std::chrono::duration<double> const all = std::chrono::steady_clock::now() - begin;
  CHECK(traced.seconds_inside() <= all.count() - 0.012);
  TracedCall const record = traced.calls()[0];
  CHECK(record.wait_s >= record.start_s + 0.006);
  CHECK(record.finish_s >= record.wait_s + 0.003);
  traced.reset_seconds();
  CHECK(traced.seconds_inside() == 0.);
  CHECK(traced.calls().size() == 1);
  // What ends with an error has taken its time as well.
  inner.now = Scripted::Do::fail;
  CHECK_THROWS_AS(static_cast<void>(traced.start(call)), Error);
  CHECK(traced.seconds_inside() > 0.);
}

TEST_CASE("Traced: a rank that fails is named by every survivor, and where each of them was") {
  std::vector<std::string> told(3);
  try {
    zero::run_ranks(3, [&](InProcess& inner) {
      Traced traced{inner};
      for (int bucket = 0; bucket < 5; ++bucket) {
        if (bucket == 4 && traced.rank() == 2) throw std::runtime_error("out of ideas");
        Call const call(bucket);
        try {
          zero::run(traced, call);
        } catch (Error const& error) {
          CHECK(error.kind() == ErrorKind::communication);
          CHECK(error.operation() == "all_reduce");
          CHECK(error.bucket() == 4);
          told[static_cast<std::size_t>(traced.rank())] = error.message();
          throw;
        }
      }
    });
  } catch (std::runtime_error const& error) {
    CHECK(std::string(error.what()) == "out of ideas");
  }
  for (int rank = 0; rank < 2; ++rank) {
    std::string const& text = told[static_cast<std::size_t>(rank)];
    INFO(text);
    CHECK(text.find("rank 2 failed: out of ideas") == 0);
    std::string const where = "; rank " + std::to_string(rank) + " of 3 was ";
    std::size_t const at = text.find(where);
    REQUIRE(at != std::string::npos);
    // It may have failed before they start or while they wait.
    std::string const rest = text.substr(at + where.size());
    std::string const end =
        "call 4 [all_reduce of 1 fp32 summed in fp32, bucket 4], last finished call 3 "
        "[all_reduce of 1 fp32 summed in fp32, bucket 3]";
    CHECK((rest == "starting " + end || rest == "waiting for " + end));
  }
}

TEST_CASE("Traced: ranks that differ are told both calls, and each its own place") {
  std::vector<std::string> told(2);
  zero::run_ranks(2, [&](InProcess& inner) {
    Traced traced{inner};
    Call const call(traced.rank());
    Error const error = error_of([&] { zero::run(traced, call); });
    CHECK(error.kind() == ErrorKind::communication);
    told[static_cast<std::size_t>(traced.rank())] = error.message();
  });
  for (std::string const& text : told) {
    INFO(text);
    CHECK(text.find("they differ in bucket (usually because ") != std::string::npos);
    CHECK(text.find("; rank ") != std::string::npos);
  }
  CHECK(told[0].find("; rank 0 of 2 was ") != std::string::npos);
  CHECK(told[1].find("; rank 1 of 2 was ") != std::string::npos);
  CHECK(told[0].find("call 0 [all_reduce of 1 fp32 summed in fp32, bucket 0], no call finished") !=
        std::string::npos);
}

TEST_CASE("Traced: refers to an lvalue, keeps an rvalue, and nests") {
  Self self;
  zero::Counting counted{self};
  Traced traced{counted};
  zero::Checked<Traced<zero::Counting<Self>>> checked{traced};
  Traced<Traced<Self>> kept{Traced<Self>{Self{}, 5}, 6};
  Call const call(0);
  zero::run(checked, call);
  REQUIRE(traced.calls().size() == 2);
  CHECK(traced.calls()[0].call.op == Op::all_gather);
  CHECK(traced.calls()[1].call.op == Op::all_reduce);
  CHECK(counted.counts().bucket_of(Op::all_reduce).calls == 1);
  zero::run(kept, call);
  // Moving is what is tested.
  Traced moved = std::move(kept);
  zero::run(moved, call);
  CHECK(moved.calls().size() == 2);
  CHECK(moved.calls().back().number == 1);
}

TEST_CASE("Traced: a sub-group has a ring and a clock of its own") {
  zero::run_ranks(4, [](InProcess& inner) {
    Traced traced{inner, 3};
    Call const call(8);
    for (int i = 0; i < 5; ++i) zero::run(traced, call);
    Traced<InProcess> half = traced.split(traced.rank() / 2, -traced.rank());
    CHECK(half.calls().empty());
    CHECK(half.seconds_inside() == 0.);
    for (int i = 0; i < 4; ++i) zero::run(half, call);
    CHECK(half.calls().size() == 3);
    CHECK(half.calls().back().number == 3);
    CHECK(traced.calls().back().number == 4);
    std::string const head = "rank " + std::to_string(half.rank()) + " of 2: 4 calls started";
    CHECK(half.describe().find(head) == 0);
  });
}

}  // namespace
}  // namespace traced_test
