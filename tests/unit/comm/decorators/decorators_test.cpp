/// Counting, Checked and Traced: what each adds to the communicator that it decorates.
#include "support/test.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/decorators/traced.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"

namespace decorators_test {
namespace {

using zero::CallState;
using zero::Checked;
using zero::Collective;
using zero::Counting;
using zero::DType;
using zero::Error;
using zero::ErrorKind;
using zero::InProcess;
using zero::Op;
using zero::Self;
using zero::Traced;
using zero::TracedCall;
using zero::Traffic;

template <class C>
constexpr bool passes_on = zero::SplittableCommunicator<C>&& zero::SquaringCommunicator<C>;
static_assert(passes_on<Counting<InProcess>> && passes_on<Checked<InProcess>>);
static_assert(passes_on<Traced<InProcess>>);

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

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

/// What each of some ranks that fail says.
template <class Work>
std::vector<std::string> told_by_ranks(int ranks, Work const& work) {
  std::vector<std::string> told(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Error const error = error_of([&] { work(comm); });
    CHECK(error.kind() == ErrorKind::communication);
    told[static_cast<std::size_t>(comm.rank())] = error.message();
  });
  return told;
}

TEST_CASE("Counting: calls, elements and bytes by operation, buckets apart from the rest") {
  zero::run_ranks(3, [](InProcess& comm) {
    Counting counted{comm};
    std::vector<zero::bf16> send(30);
    std::vector<zero::bf16> recv(30);
    Collective op{.dtype = DType::bf16, .count = 10, .send = send.data(), .recv = recv.data()};
    op.bucket = 4;
    for (Op const kind : {Op::reduce_scatter, Op::all_gather, Op::all_to_all}) {
      op.op = kind;
      zero::run(counted, op);
      zero::run(counted, op);
      CHECK(counted.counts().bucket_of(kind) == Traffic{2, 40, 80});
    }
    op.op = Op::broadcast;
    zero::run(counted, op);
    CHECK(counted.counts().bucket_of(Op::broadcast) == Traffic{1, 10, 20});
    CHECK(counted.counts().bucket_total() == Traffic{7, 130, 260});
    CHECK(counted.counts().control_total() == Traffic{});
    op.op = Op::all_reduce;
    op.bucket = -1;
    zero::run(counted, op);
    // Two passes of ceil(10 / 3) elements to each of two peers.
    CHECK(counted.counts().control_of(Op::all_reduce) == Traffic{1, 16, 32});
    CHECK(counted.counts().control_total() == Traffic{1, 16, 32});
    CHECK(counted.counts().bucket_of(Op::all_reduce) == Traffic{});
    counted.reset();
    CHECK(counted.counts() == zero::TrafficCounts{});
  });
}

TEST_CASE("decorators refer to an lvalue, keep an rvalue, and nest") {
  Call const call(0);
  Self self;
  Counting counted{self};
  Traced traced{counted};
  Checked<Traced<Counting<Self>>> checked{traced};
  zero::run(checked, call);
  REQUIRE(traced.calls().size() == 2);
  CHECK(traced.calls()[0].call.op == Op::all_gather);
  CHECK(traced.calls()[1].call.op == Op::all_reduce);
  CHECK(counted.counts().bucket_of(Op::all_reduce) == Traffic{1, 0, 0});
  Counting<Counting<Self>> outer{counted};
  zero::run(outer, call);
  CHECK(counted.counts().bucket_of(Op::all_reduce).calls == 2);
  CHECK(outer.counts().bucket_of(Op::all_reduce).calls == 1);
  // Moving is what is tested.
  Counting kept{Self{}};
  zero::run(kept, call);
  Counting moved = std::move(kept);
  zero::run(moved, call);
  CHECK(moved.counts().bucket_of(Op::all_reduce).calls == 2);
  CHECK(moved.split(0, 0).counts() == zero::TrafficCounts{});
  Traced<Traced<Self>> two{Traced<Self>{Self{}, 5}, 6};
  zero::run(two, call);
  Traced moved_two = std::move(two);
  zero::run(moved_two, call);
  CHECK(moved_two.calls().size() == 2);
  CHECK(moved_two.calls().back().number == 1);
}

TEST_CASE("Counting: a call that is refused is not counted") {
  Self self;
  Counting counted{self};
  CHECK_THROWS_AS(counted.start({.op = Op::all_gather, .count = 1}), zero::Error);
  CHECK(counted.counts() == zero::TrafficCounts{});
}

/// Ordinary memory, but one that can be told from a default-constructed one.
struct NumberedSpace : zero::space::Host {
  int number = 0;
};
struct Numbered : Self {
  using Space = NumberedSpace;
  [[nodiscard]] Space space() const noexcept { return {{}, 7}; }
};

TEST_CASE("decorators work in the memory space of what they decorate") {
  Numbered comm;
  Counting counted{comm};
  Checked checked{counted};
  CHECK(counted.space().number == 7);
  CHECK(checked.space().number == 7);
}

/// Has all that a communicator may have.
struct Full : Self {
  int progressed = 0;
  int confirmed = 0;
  std::int64_t word = 0;

  void progress() noexcept { ++progressed; }
  void confirm() { ++confirmed; }
  [[nodiscard]] std::int64_t const* ended() const { return &word; }
  [[nodiscard]] std::uint64_t held() const { return 7; }
  [[nodiscard]] std::string_view group_name() const { return "model axis"; }
  [[nodiscard]] Full split(int, int, std::string_view = {}) { return {}; }
};

/// @param held  by the decorated one
template <class C>
void check_passes_on(Full& comm, C& decorated, std::uint64_t held) {
  int const progressed = comm.progressed;
  int const confirmed = comm.confirmed;
  decorated.progress();
  decorated.confirm();
  CHECK(comm.progressed == progressed + 1);
  CHECK(comm.confirmed == confirmed + 1);
  CHECK(decorated.ended() == &comm.word);
  CHECK(decorated.held() == held);
  CHECK(decorated.group_name() == "model axis");
  static_assert(zero::NamingCommunicator<C> && zero::ProgressingCommunicator<C>);
  static_assert(zero::ConfirmingCommunicator<C> && zero::HoldingCommunicator<C>);
}
static_assert(!zero::ProgressingCommunicator<Counting<Self>>);
static_assert(!zero::ConfirmingCommunicator<Counting<Self>>);
static_assert(!zero::HoldingCommunicator<Counting<Self>>);

TEST_CASE("decorators have what they decorate has, and no more") {
  Full comm;
  Counting counted{comm};
  Traced traced{comm};
  Checked checked{comm};
  check_passes_on(comm, counted, 7);
  check_passes_on(comm, traced, 7);
  check_passes_on(comm, checked, 7 + 64);
}

/// Ranks 0 and 1 make `usual`, rank 2 makes `odd`; returns what each rank was told.
std::vector<std::string> disagree(Collective const& usual, Collective const& odd) {
  std::vector<std::string> told(3);
  zero::run_ranks(3, [&](InProcess& comm) {
    Counting counted{comm};
    Checked checked{counted};
    std::vector<float> send(64, 1.0f);
    std::vector<float> recv(64, -1.0f);
    Collective op = comm.rank() == 2 ? odd : usual;
    op.send = send.data();
    op.recv = recv.data();
    std::string& text = told[static_cast<std::size_t>(comm.rank())];
    try {
      zero::run(checked, op);
    } catch (Error const& error) {
      text = error.message();
      if (error.kind() != zero::ErrorKind::communication) text = "another kind";
      if (error.rank() != comm.rank() || error.bucket() != op.bucket) text = "another context";
    }
    // The exchange is all that has moved.
    if (counted.counts().bucket_total().calls != 0) text = "data was sent";
    if (std::any_of(recv.begin(), recv.end(), [](float x) { return x != -1.0f; })) {
      text = "data was written";
    }
    try {
      zero::run(checked, op);
      text = "a later call succeeded";
    } catch (Error const& error) {
      if (error.message() != text) text = "a later call failed with " + error.message();
    }
  });
  return told;
}

TEST_CASE("Checked: every rank throws the same error, naming both sides, before data moves") {
  Collective const usual{.op = Op::all_gather, .count = 8, .bucket = 5};
  struct Change {
    char const* what;
    std::function<void(Collective&)> apply;
    char const* side;
  };
  Change const changes[] = {
      {"operation", [](Collective& op) { op.op = Op::all_reduce; }, "all_reduce of 8 fp32"},
      {"dtype", [](Collective& op) { op.dtype = DType::bf16; }, "all_gather of 8 bf16"},
      {"count", [](Collective& op) { op.count = 9; }, "all_gather of 9 fp32"},
      {"bucket", [](Collective& op) { op.bucket = 6; }, "bucket 6"},
      {"accumulate dtype", [](Collective& op) { op.accumulate = DType::f64; }, "all_gather"},
      {"root", [](Collective& op) { op.root = 1; }, "all_gather"},
  };
  for (Change const& change : changes) {
    Collective odd = usual;
    change.apply(odd);
    std::vector<std::string> const told = disagree(usual, odd);
    for (std::string const& text : told) {
      CHECK(text == told[0]);
      CHECK_MESSAGE(text.find("rank 2 called [") == 0, text);
      CHECK_MESSAGE(contains(text, change.side), text);
      CHECK_MESSAGE(contains(text, "where rank 0 called [all_gather of 8 fp32, bucket 5]"), text);
      CHECK_MESSAGE(contains(text, std::string("they differ in ") + change.what), text);
    }
  }
}

TEST_CASE("Checked: a rank that has made more calls is named") {
  auto const told = told_by_ranks(2, [](InProcess& comm) {
    Checked used{comm};
    Checked fresh{comm};
    Call const call(0);
    zero::run(used, call);
    zero::run(comm.rank() == 0 ? used : fresh, call);
  });
  CHECK(told[0] == told[1]);
  CHECK_MESSAGE(told[0].find("rank 1 makes call 0 [all_reduce") == 0, told[0]);
  CHECK_MESSAGE(contains(told[0], "rank 0 makes call 1 [all_reduce"), told[0]);
}

TEST_CASE("Checked: costs one exchange of control traffic per collective") {
  zero::run_ranks(2, [](InProcess& comm) {
    Counting counted{comm};
    Checked checked{counted};
    for (int i = 0; i < 3; ++i) zero::run(checked, Call(i));
    CHECK(counted.counts().control_of(Op::all_gather) == zero::Traffic{3, 24, 192});
    CHECK(counted.counts().bucket_of(Op::all_reduce).calls == 3);
  });
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
  // It remembers 2048 calls unless told otherwise, and refuses to remember none.
  Traced usual{self};
  for (int i = 0; i < 2050; ++i) zero::run(usual, Call(0));
  CHECK(usual.calls().size() == 2048);
  CHECK(usual.calls().front().number == 2);
  CHECK(usual.calls().back().number == 2049);
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
  CHECK_MESSAGE(contains(last, " s, wait at "), text);
  CHECK_MESSAGE(contains(last, " s, finished at "), text);
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
  CHECK(contains(traced.describe(), "did not succeed"));
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

TEST_CASE("Traced: a call that has left the ring is waited for and named by its number") {
  Scripted inner;
  Traced traced{inner, 1};
  Call const call(1);
  auto first = traced.start(call);
  auto second = traced.start(call);
  inner.now = Scripted::Do::fail;
  CHECK(error_of([&] { traced.wait(first); }).message() ==
        "the cable is out; rank 2 of 4 was waiting for call 0, no call finished");
  inner.now = Scripted::Do::nothing;
  traced.wait(first);
  CHECK(traced.calls()[0].state == CallState::started);
  inner.now = Scripted::Do::fail;
  CHECK(error_of([&] { traced.wait(second); }).message() ==
        "the cable is out; rank 2 of 4 was waiting for call 1 [all_reduce of 1 fp32 summed in "
        "fp32, bucket 1], last finished call 0");
  CHECK(traced.calls()[0].state == CallState::waiting);
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
  auto const fail_in_call_4 = [](InProcess& inner) {
    Traced traced{inner};
    for (int bucket = 0; bucket < 4; ++bucket) zero::run(traced, Call(bucket));
    if (traced.rank() == 2) throw std::runtime_error("out of ideas");
    Error const error = error_of([&] { zero::run(traced, Call(4)); });
    CHECK(error.kind() == ErrorKind::communication);
    CHECK(error.operation() == "all_reduce");
    CHECK(error.bucket() == 4);
    std::string const text = error.message();
    CHECK_MESSAGE(text.starts_with("rank 2 failed: out of ideas"), text);
    // It may have failed before they start or while they wait.
    std::string const where = "; rank " + std::to_string(inner.rank()) + " of 3 was ";
    std::string const end =
        "call 4 [all_reduce of 1 fp32 summed in fp32, bucket 4], last finished call 3 "
        "[all_reduce of 1 fp32 summed in fp32, bucket 3]";
    CHECK_MESSAGE(
        (text.ends_with(where + "starting " + end) || text.ends_with(where + "waiting for " + end)),
        text);
    throw error;
  };
  CHECK_THROWS_WITH_AS(zero::run_ranks(3, fail_in_call_4), "out of ideas", std::runtime_error);
}

TEST_CASE("Traced: ranks that differ are told both calls, and each its own place") {
  auto const told = told_by_ranks(2, [](InProcess& inner) {
    Traced traced{inner};
    zero::run(traced, Call(traced.rank()));
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::string const& text = told[rank];
    CHECK_MESSAGE(contains(text, "they differ in bucket (usually because "), text);
    CHECK_MESSAGE(contains(text, "; rank " + std::to_string(rank) + " of 2 was "), text);
  }
  CHECK(contains(told[0],
                 "call 0 [all_reduce of 1 fp32 summed in fp32, bucket 0], no call finished"));
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
}  // namespace decorators_test
