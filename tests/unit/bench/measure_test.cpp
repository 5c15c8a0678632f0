#include "zero/bench/measure.hpp"

#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <string_view>

namespace measure_test {

using zero::Collective;
using zero::DType;
using zero::InProcess;
using zero::Op;
using zero::bench::Case;
using zero::bench::Row;

/// Flips a bit of one byte of what arrives on the last rank, and counts collectives of a bucket.
class Flipping {
 public:
  using Space = zero::space::Host;
  using Ticket = InProcess::Ticket;

  Flipping(InProcess& comm, std::size_t byte) : comm_(&comm), byte_(byte) {}
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }
  Ticket start(Collective const& op) {
    zero::run(*comm_, op);
    if (op.bucket >= 0) ++calls;
    if (op.bucket >= 0 && rank() + 1 == size()) {
      static_cast<std::byte*>(op.recv)[byte_] ^= std::byte{0x40};
    }
    return {};
  }
  void wait(Ticket&) {}

  int calls = 0;

 private:
  InProcess* comm_;
  std::size_t byte_;
};

struct Counted {
  static constexpr std::string_view name = "counted";
  void prepare(Flipping&, Collective const&) { ++prepared; }
  void operator()(Flipping&, Collective const& op) {
    if (op.send == op.recv) ++in_place;
    ++calls;
  }
  std::atomic<int> prepared{0};
  std::atomic<int> in_place{0};
  std::atomic<int> calls{0};
};

TEST_CASE("one flipped bit is one wrong element, wherever it is") {
  for (Op const op :
       {Op::reduce_scatter, Op::all_gather, Op::all_to_all, Op::all_reduce, Op::broadcast}) {
    for (DType const dtype : {DType::f32, DType::bf16, DType::f16}) {
      std::size_t const block = zero::bench::block_count(op, dtype, 600, 3) * size_of(dtype);
      bool const whole = op == Op::all_gather || op == Op::all_to_all;
      std::size_t const received = whole ? 3 * block : block;
      for (std::size_t const byte : {std::size_t{1}, received / 2 + 1, received - 1}) {
        CAPTURE(name(op));
        CAPTURE(byte);
        zero::run_ranks(3, [&](InProcess& inner) {
          Flipping comm(inner, byte);
          Row const row = zero::bench::measure(
              comm, {.op = op, .dtype = dtype, .bytes = 600, .rounds = 1, .iterations = 1});
          CHECK(row.wrong == 1);
        });
      }
    }
  }
}

TEST_CASE("rounds take what they are told to, beside the baseline") {
  Counted raw;
  zero::run_ranks(2, [&](InProcess& inner) {
    Flipping comm(inner, 0);
    Case const work{.op = Op::all_reduce,
                    .in_place = true,
                    .bytes = 64,
                    .rounds = 4,
                    .iterations = 3,
                    .check = false};
    Row const row = zero::bench::measure(comm, work, raw);
    CHECK(comm.calls == (4 + 1) * 3);  // the first round warms up
    CHECK(row.wrong == -1);
    CHECK(row.raw == "counted");
    CHECK(row.in_place);
    CHECK(row.best_seconds <= row.seconds);
    CHECK(row.seconds > 0);
  });
  CHECK(raw.calls == 2 * (4 + 1) * 3);
  CHECK(raw.prepared == 2);
  CHECK(raw.in_place == 0);
}

struct ColdStart {
  static constexpr std::string_view name = "slow at first";
  void operator()(InProcess&, Collective const&) {
    double const start = zero::bench::seconds_now();
    while (cold && zero::bench::seconds_now() < start + 0.1) continue;
    cold = false;
  }
  bool cold = true;
};

TEST_CASE("the round that warms up does not count") {
  zero::run_ranks(1, [](InProcess& comm) {
    ColdStart raw;
    Row const row = zero::bench::measure(
        comm, {.bytes = 64, .rounds = 1, .iterations = 1, .check = false}, raw);
    CHECK(!raw.cold);
    CHECK(row.raw_seconds < 0.05);
  });
}

TEST_CASE("a round of late ranks counts from when the last one begins") {
  zero::run_ranks(2, [](InProcess& comm) {
    double const start = zero::bench::seconds_now();
    Row const row = zero::bench::measure(
        comm, {.bytes = 64, .rounds = 2, .iterations = 1, .late = 0.1, .check = false});
    CHECK(zero::bench::seconds_now() - start > 3 * 0.1);
    CHECK(row.best_seconds < 0.1);
  });
}

TEST_CASE("what has no benchmark is refused") {
  zero::Self alone;
  CHECK_THROWS_WITH_AS(
      static_cast<void>(zero::bench::measure(alone, {.dtype = DType::i64, .bytes = 8})),
      doctest::Contains("int64"),
      zero::Error);
}

}  // namespace measure_test
