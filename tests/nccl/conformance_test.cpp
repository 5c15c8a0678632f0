/// The suite of all communicators, on NCCL over a fake.
#include "conformance/communicator.hpp"
#include "nccl/world.hpp"
#include "support/test.hpp"

namespace conformance_test {
namespace {

using zero::nccl::Native;
using zero::nccl::Ordered;

/// One way of setting up a group; every call takes `Polls` polls.
template <class Reduction, int Polls>
struct NcclWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int size, Body const& body) {
    fake::World world(size, static_cast<unsigned>(size));
    for (int rank = 0; rank < size; ++rank) world.process(rank).script.in_progress = Polls;
    fake::run_group<Reduction>(world, size, fake::quick_options(), body);
    fake::check_clean(world);
  }
};

using Plain = NcclWorld<Ordered, 0>;
using Slow = NcclWorld<Ordered, 2>;

TEST_CASE("Nccl, ordered: operations") { conformance::check_operations<Plain>(); }
TEST_CASE("Nccl, ordered: operations whose calls take polls [full]") {
  conformance::check_operations<Slow>();
}
TEST_CASE("Nccl, ordered: collectives under way") { conformance::check_outstanding<Plain>(); }
TEST_CASE("Nccl, ordered: collectives under way whose calls take polls") {
  conformance::check_outstanding<Slow>();
}
TEST_CASE("Nccl: arguments") { conformance::check_arguments<Plain>(); }
TEST_CASE("Nccl: sub-groups") {
  for (int const ranks : {1, 2, 3, 5}) {
    conformance::Findings findings;
    fake::World world(ranks, 7);
    fake::run_group<Ordered>(world, ranks, fake::quick_options(), [&](auto& comm) {
      conformance::sub_groups(comm, findings);
    });
    findings.check();
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl, ordered: a rank sends what the contract of the operation says") {
  for (int const ranks : {1, 2, 3, 4}) {
    for (std::size_t const count : {std::size_t{1}, std::size_t{7}, std::size_t{30000}}) {
      for (auto const op : {zero::Op::reduce_scatter, zero::Op::all_reduce, zero::Op::all_to_all}) {
        fake::World world(ranks, 5);
        fake::run_group<Ordered>(world, ranks, fake::quick_options(), [&](auto& comm) {
          auto const whole = count * static_cast<std::size_t>(ranks);
          std::vector<float> send(whole);
          std::vector<float> recv(whole);
          zero::run(comm, {.op = op, .count = count, .send = send.data(), .recv = recv.data()});
        });
        std::uint64_t const contract = zero::elements_sent(op, count, ranks);
        for (int rank = 0; rank < ranks; ++rank) {
          // An all-reduce of a count that does not divide gives the last ranks less to do.
          bool const even = op != zero::Op::all_reduce || count % static_cast<unsigned>(ranks) == 0;
          std::uint64_t const sent = world.process(rank).sent;
          CHECK((even ? sent == contract : sent <= contract));
        }
        fake::check_clean(world);
      }
    }
  }
}

TEST_CASE("Nccl, ordered: integers are added by NCCL itself") {
  for (auto const op : {zero::Op::reduce_scatter, zero::Op::all_reduce}) {
    fake::World world(3, 5);
    fake::run_group<Ordered>(world, 3, fake::quick_options(), [&](auto& comm) {
      std::vector<std::int64_t> send(12, comm.rank() + 1);
      std::vector<std::int64_t> recv(12);
      zero::run(comm,
                {.op = op,
                 .dtype = zero::DType::i64,
                 .accumulate = zero::DType::i64,
                 .count = 4,
                 .send = send.data(),
                 .recv = recv.data()});
      CHECK(recv.front() == 6);
    });
    // No blocks from rank to rank.
    for (int rank = 0; rank < 3; ++rank) CHECK(world.process(rank).sent == 0);
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl, native: integers exactly, floats as NCCL rounds them") {
  for (int const ranks : {1, 2, 3, 4}) {
    conformance::Findings findings;
    NcclWorld<Native, 1>::run(ranks, [&](auto& comm) {
      conformance::every_operation<std::int32_t, std::int32_t>(comm, findings);
      conformance::every_operation<std::int64_t, std::int64_t>(comm, findings);
      // fp32 in rank order is what the fake's ring does.
      conformance::every_operation<float, float>(comm, findings);
      std::vector<zero::bf16> x(100, zero::bf16(1.f / 3));
      zero::run(comm,
                {.op = zero::Op::all_reduce,
                 .dtype = zero::DType::bf16,
                 .count = x.size(),
                 .send = x.data(),
                 .recv = x.data()});
      float const sum = static_cast<float>(comm.size()) / 3;
      for (zero::bf16 const value : x) {
        if (std::abs(static_cast<float>(value) - sum) > 0.01f * sum) findings.add("a bad sum");
      }
    });
    findings.check();
  }
}

TEST_CASE("Nccl, native: sums NCCL has no dtype for are refused") {
  NcclWorld<Native, 0>::run(2, [&](auto& comm) {
    float x = 1;
    CHECK_THROWS_WITH_AS(comm.start({.op = zero::Op::all_reduce,
                                     .accumulate = zero::DType::f64,
                                     .count = 1,
                                     .send = &x,
                                     .recv = &x}),
                         doctest::Contains("nccl::Ordered can"),
                         zero::Error);
  });
}

}  // namespace
}  // namespace conformance_test
