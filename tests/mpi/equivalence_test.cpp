/// The optimizer over processes: the reference's bits and the plan's traffic, by every route.
#include "equivalence/harness.hpp"
#include "mpi/world.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace equivalence_test {
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
    bool const chained = route == Route::chain_of_ranks || route == Route::chain_of_nodes;
    // Of five ranks the blocks are small.
    if (chained && transport.nodes > 1 && comm.size() < 5) CHECK(transport.node_sum_bytes > 0);
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

/// Every rank has what the root had: what it gave, or what lay in its memory.
template <class... Policies>
void check_broadcast(Route route) {
  INFO(std::string(mpi_tests::name(route)));
  mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), route, [&](auto& comm) {
    using C = std::remove_reference_t<decltype(comm)>;
    using Optimizer = zero::ShardedOptimizer<C, Policies...>;
    using Parameter = typename Optimizer::Parameter;
    int const root = comm.size() - 1;
    auto const value = [](int rank, std::size_t i) {
      return Parameter(static_cast<float>(i % 1000 + static_cast<std::size_t>(rank)));
    };
    constexpr std::size_t count = 300001;
    std::vector<Parameter> parameters(count), gradients(count);
    Optimizer optimizer{comm, {{.name = "w", .shape = {count}}}, zero::Bucket{100000}};
    if constexpr (Optimizer::borrowed) {
      for (std::size_t i = 0; i < count; ++i) parameters[i] = value(comm.rank(), i);
      optimizer.bind(std::span(parameters), std::span(gradients));
      optimizer.broadcast_parameters(root);
    } else {
      auto const give = [&](zero::Tensor const&, std::size_t first, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] = static_cast<float>(value(comm.rank(), first + i));
        }
      };
      optimizer.broadcast_parameters(give, root);
    }
    bool same = true;
    {
      auto const weights = optimizer.parameters(0);
      for (std::size_t i = 0; i < count; ++i) {
        same = same && weights[0][i] == value(root, i);
      }
    }
    CHECK(same);
    optimizer.settle();
    CHECK(optimizer.step().step == 1);
  });
}

TEST_CASE("ShardedOptimizer over Mpi: a broadcast brings the root's values") {
  for (Route const route : mpi_tests::routes) {
    check_broadcast<zero::stage::PosGP, Bf16>(route);
    check_broadcast<zero::stage::PosG, Bf16, zero::Borrowed<>>(route);
  }
}

}  // namespace
}  // namespace equivalence_test
