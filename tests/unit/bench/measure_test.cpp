#include "zero/bench/measure.hpp"

#include "support/test.hpp"
#include "zero/comm/run_ranks.hpp"

namespace measure_test {

using zero::Collective;
using zero::DType;
using zero::InProcess;
using zero::Op;
using zero::bench::Case;
using zero::bench::Round;

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

/// What rank 0 has of a list of cases, which all ranks measure in step.
template <class C, class... Raw>
void measure(C& comm, std::vector<Case> const& cases, std::vector<Round>& rounds, Raw&... raw) {
  zero::bench::detail::Rank rank(comm, raw...);
  if (comm.rank() != 0) {
    CHECK(rank.serve() == 7);
    return;
  }
  for (Case const& work : cases) rounds.push_back(rank.ask(work));
  rank.dismiss(7);
}

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

TEST_CASE("bandwidths are those of nccl-tests") {
  CHECK(zero::bench::bus_factor(Op::all_reduce, 4) == 1.5);
  CHECK(zero::bench::bus_factor(Op::reduce_scatter, 4) == 0.75);
  CHECK(zero::bench::bus_factor(Op::all_to_all, 1) == 0);
  CHECK(zero::bench::bus_factor(Op::broadcast, 4) == 1);
  CHECK(zero::bench::block_count(Op::all_gather, DType::f32, 1024, 3) == 85);
  CHECK(zero::bench::block_count(Op::all_reduce, DType::bf16, 1024, 3) == 512);
  CHECK(zero::bench::block_count(Op::all_to_all, DType::f32, 1, 3) == 1);
}

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
        std::vector<Round> rounds;
        zero::run_ranks(3, [&](InProcess& inner) {
          Flipping comm(inner, byte);
          measure(comm, {{.op = op, .dtype = dtype, .bytes = 600}}, rounds);
        });
        CHECK(rounds.front().wrong == 1);
      }
    }
  }
}

TEST_CASE("a round takes what it is told to, beside the baseline, and a case is prepared once") {
  Counted raw;
  Case const work{
      .op = Op::all_reduce, .in_place = true, .bytes = 64, .iterations = 3, .check = false};
  Case longer = work;
  longer.iterations = 5;
  std::vector<Round> rounds;
  zero::run_ranks(2, [&](InProcess& inner) {
    Flipping comm(inner, 0);
    measure(comm, {work, longer, longer}, rounds, raw);
    CHECK(comm.calls == 1 + 3 + 5 + 5);  // one warms up
  });
  CHECK(raw.calls == 2 * (1 + 3 + 5 + 5));
  CHECK(raw.prepared == 2);
  CHECK(raw.in_place == 0);
  CHECK(rounds.size() == 3);
  for (Round const& round : rounds) {
    CHECK(round.wrong == 0);
    CHECK(round.raw == "counted");
    CHECK(round.count == 16);
    CHECK(round.bytes == 64);
    CHECK(round.seconds > 0);
  }
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

TEST_CASE("what is slow at first does not count") {
  std::vector<Round> rounds;
  zero::run_ranks(1, [&](InProcess& comm) {
    ColdStart raw;
    measure(comm, {{.bytes = 64, .check = false}}, rounds, raw);
    CHECK(!raw.cold);
  });
  CHECK(rounds.front().raw_seconds < 0.05);
}

struct SlowOnOne {
  static constexpr std::string_view name = "slow on rank 1";
  void operator()(InProcess& comm, Collective const&) {
    double const start = zero::bench::seconds_now();
    while (comm.rank() == 1 && zero::bench::seconds_now() < start + 0.02) continue;
  }
};

TEST_CASE("a round takes as long as on the slowest rank") {
  std::vector<Round> rounds;
  zero::run_ranks(2, [&](InProcess& comm) {
    SlowOnOne raw;
    measure(comm, {{.bytes = 64, .check = false}}, rounds, raw);
  });
  CHECK(rounds.front().raw_seconds >= 0.02);
}

/// Counts what is held, and the most that was.
struct Counting : zero::HostAllocator {
  void* allocate(std::size_t bytes, std::size_t alignment) {
    *held += bytes;
    *most = std::max(*most, *held);
    return HostAllocator::allocate(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
    *held -= bytes;
    HostAllocator::deallocate(memory, bytes, alignment);
  }
  std::size_t* held;
  std::size_t* most;
};

TEST_CASE("memory is the given allocator's, one case's at a time") {
  std::size_t held = 0;
  std::size_t most = 0;
  std::vector<Round> rounds;
  Counting const allocator{{}, &held, &most};
  zero::run_ranks(1, [&](InProcess& comm) {
    measure(comm,
            {{.bytes = 1 << 20}, {.bytes = 1 << 19}},
            rounds,
            zero::bench::copy_of_buffer,
            allocator);
  });
  CHECK(held == 0);
  CHECK(most >= 2 << 20);
  CHECK(most < 5 << 19);
}

TEST_CASE("a round of late ranks counts from when the last one begins") {
  std::vector<Case> const late{{.bytes = 64, .late_us = 100'000, .check = false}};
  std::vector<Round> rounds;
  double const start = zero::bench::seconds_now();
  zero::run_ranks(2, [&](InProcess& comm) { measure(comm, late, rounds); });
  CHECK(zero::bench::seconds_now() - start > 4 * 0.1);
  CHECK(rounds.front().seconds < 0.1);
}

}  // namespace measure_test
