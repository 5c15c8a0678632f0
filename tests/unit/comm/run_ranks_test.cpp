#include "zero/comm/run_ranks.hpp"

#include "support/refusal.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace run_ranks_test {
namespace {

using zero::Collective;
using zero::Error;
using zero::InProcess;
using zero::Op;

Collective sum(std::vector<float>& x) {
  return {.op = Op::all_reduce, .count = x.size(), .send = x.data(), .recv = x.data()};
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
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
}  // namespace run_ranks_test
