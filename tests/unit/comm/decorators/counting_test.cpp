#include "zero/comm/decorators/counting.hpp"

#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace counting_test {
namespace {

static_assert(zero::SplittableCommunicator<zero::Counting<zero::InProcess>>);
static_assert(zero::SquaringCommunicator<zero::Counting<zero::InProcess>>);

using zero::Collective;
using zero::Counting;
using zero::DType;
using zero::InProcess;
using zero::Op;
using zero::Traffic;

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

TEST_CASE("Counting: refers to an lvalue, keeps an rvalue, and nests") {
  zero::Self self;
  Counting counted{self};
  Counting kept{zero::Self{}};
  Counting<Counting<zero::Self>> outer{counted};
  float x = 1;
  Collective const op{.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 0};
  zero::run(outer, op);
  zero::run(kept, op);
  CHECK(outer.counts().bucket_of(Op::all_reduce) == Traffic{1, 0, 0});
  CHECK(counted.counts() == outer.counts());
  CHECK(kept.counts() == outer.counts());
  // Moving is what is tested.
  Counting moved = std::move(kept);
  zero::run(moved, op);
  CHECK(moved.counts().bucket_of(Op::all_reduce).calls == 2);
  auto part = moved.split(0, 0);
  CHECK(part.counts() == zero::TrafficCounts{});
}

TEST_CASE("Counting: a call that is refused is not counted") {
  zero::Self self;
  Counting counted{self};
  CHECK_THROWS_AS(counted.start({.op = Op::all_gather, .count = 1}), zero::Error);
  CHECK(counted.counts() == zero::TrafficCounts{});
}

/// Ordinary memory, but one that can be told from a default-constructed one.
struct NumberedSpace : zero::space::Host {
  int number = 0;
};

class Numbered {
 public:
  using Space = NumberedSpace;
  using Ticket = zero::Self::Ticket;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  [[nodiscard]] Space space() const noexcept {
    Space result;
    result.number = 7;
    return result;
  }
  Ticket start(Collective const& op) { return self_.start(op); }
  void wait(Ticket& ticket) { self_.wait(ticket); }

 private:
  zero::Self self_;
};

TEST_CASE("decorators work in the memory space of what they decorate") {
  Numbered comm;
  Counting counted{comm};
  zero::Checked checked{counted};
  CHECK(counted.space().number == 7);
  CHECK(checked.space().number == 7);
}

}  // namespace
}  // namespace counting_test
