/// The optimizer over processes: the reference's bits and the plan's traffic, by every route.
#include "equivalence/harness.hpp"
#include "mpi/world.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

namespace {

using mpi_tests::Route;

/// The job's processes as ranks.
struct World {
  Route route;

  template <class Body>
  void run(int ranks, Body const& body) const {
    mpi_tests::with_group<zero::mpi::Ordered>(
        ranks, route, [&](auto& comm) { body(comm, comm.allocator()); });
  }
  template <class C>
  void trained(C const& comm) const {
    auto const transport = comm.transport();
    bool const near = route == Route::window || route == Route::thread;
    // Everything above 2 KiB lies in the window, so nothing needs a message.
    if (near) CHECK(transport.exchanged_bytes == 0);
    if (near && comm.size() > 1) CHECK(transport.direct_bytes > 0);
    if (route == Route::exchange && comm.size() > 1) CHECK(transport.exchanged_bytes > 0);
  }
};

template <class S>
void check(Route route) {
  INFO(std::string(mpi_tests::name(route)));
  toy::check_clipped<S>(World{route}, mpi_tests::world_size(), 5);
}

using toy::Setup;
using Bf16 = zero::Mixed<zero::bf16>;

TEST_CASE("ShardedOptimizer over Mpi: the reference's bits under every stage") {
  for (Route const route : mpi_tests::routes) {
    check<Setup<zero::stage::Replicated, Bf16>>(route);
    check<Setup<zero::stage::Pos, Bf16>>(route);
    check<Setup<zero::stage::PosG, Bf16>>(route);
    check<Setup<zero::stage::PosGP, Bf16>>(route);
  }
}

TEST_CASE("ShardedOptimizer over Mpi: other precisions, rules, accumulations and memory") {
  using zero::stage::PosG;
  using zero::stage::PosGP;
  for (Route const route : {Route::window, Route::exchange}) {
    check<Setup<PosG, zero::Fp32, zero::Lion, zero::AccumulateShard>>(route);
    // Whether a step overflows, all ranks decide alike.
    check<Setup<PosGP, zero::Mixed<zero::fp16>, zero::Sgd, zero::AccumulateFull>>(route);
  }
  using Lent = zero::Borrowed<>;
  check<Setup<PosG, Bf16, zero::Adagrad, zero::AccumulateNone, Lent>>(Route::exchange);
}

TEST_CASE("ShardedOptimizer over Mpi: options that differ are named, with their values and ranks") {
  for (Route const route : {Route::window, Route::exchange}) {
    INFO(std::string(mpi_tests::name(route)));
    mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), route, [&](auto& comm) {
      zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {3000}}}};
      optimizer.load_parameters([](auto const&, std::size_t, auto values) {
        for (float& value : values) value = 1.f;
      });
      bool const odd = comm.rank() == 1;
      std::string const told =
          mpi_tests::error_of([&] { optimizer.step({.max_norm = odd ? 2. : 1.}); });
      if (comm.size() == 1) {
        CHECK(told == "no error");
        return;
      }
      std::string others;
      for (int rank = 2; rank < comm.size(); ++rank) others += " " + std::to_string(rank);
      CHECK(told ==
            "zero: invalid argument: ranks passed different options to step(): max_norm: 1 on "
            "rank 0" +
                others + "; 2 on rank 1");
      CHECK(optimizer.step({.max_norm = 1.}).step == 1);
    });
  }
}

}  // namespace
