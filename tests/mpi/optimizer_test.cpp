/// The optimizer over processes, by every route: options that differ, broadcasts, and who carries
/// what.
#include "mpi/world.hpp"
#include "support/give_zeros.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace optimizer_test {
namespace {

using mpi_tests::Route;
using Bf16 = zero::Mixed<zero::bf16>;

TEST_CASE("ShardedOptimizer over Mpi: options that differ are named, with their values and ranks") {
  for (Route const route : {Route::window, Route::exchange}) {
    INFO(std::string(mpi_tests::name(route)));
    mpi_tests::with_group(mpi_tests::world_size(), route, [&](auto& comm) {
      zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {3000}}}};
      optimizer.load_parameters([](auto const&, std::size_t, auto values) {
        for (float& value : values) value = 1.f;
      });
      bool const odd = comm.rank() == 1;
      std::string const told =
          mpi_tests::error_of([&] { give_zeros(optimizer).step({.max_norm = odd ? 2. : 1.}); });
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
      CHECK(give_zeros(optimizer).step({.max_norm = 1.}).step == 1);
    });
  }
}

/// What a step adds to what the communicator has moved, where all memory is its own.
template <class C, class Optimizer>
void check_step(C const& comm, Optimizer& optimizer, Route route) {
  auto const before = comm.transport();
  CHECK(give_zeros(optimizer).step().step == 1);
  auto const after = comm.transport();
  bool const alone = comm.size() == 1;
  bool const near = route == Route::window || route == Route::thread;
  // Everything above 2 KiB lies in the window, so nothing needs a message.
  if (near) CHECK(after.exchanged_bytes == before.exchanged_bytes);
  if (near && !alone) CHECK(after.direct_bytes > before.direct_bytes);
  if (route == Route::exchange && !alone) CHECK(after.exchanged_bytes > before.exchanged_bytes);
  bool const chained = route == Route::chain_of_ranks || route == Route::chain_of_nodes;
  if (chained && after.nodes > 1) CHECK(after.node_sum_bytes > before.node_sum_bytes);
}

/// Every rank has what the root had: what it gave, or what lay in its memory. Then a step.
template <class Stage, class Memory>
void check_broadcast(Route route, Memory const& memory_of) {
  INFO(std::string(mpi_tests::name(route)));
  mpi_tests::with_group(mpi_tests::world_size(), route, [&](auto& comm) {
    int const root = comm.size() - 1;
    auto const value = [](int rank, std::size_t i) {
      return zero::bf16(static_cast<float>(i % 1000 + static_cast<std::size_t>(rank)));
    };
    constexpr std::size_t count = 300001;
    zero::ShardedOptimizer optimizer{comm,
                                     {{.name = "w", .shape = {count}}},
                                     Stage{},
                                     Bf16{},
                                     memory_of(comm),
                                     zero::Bucket{100000}};
    std::vector<zero::bf16> parameters(count), gradients(count);
    if constexpr (optimizer.borrowed) {
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
    if constexpr (optimizer.borrowed) {
      CHECK(optimizer.step().step == 1);
    } else {
      check_step(comm, optimizer, route);
    }
  });
}

/// Parameters after five steps of gradients whose sums are exact.
template <class Stage, class C>
std::vector<double> train_in_double(C& comm, int rank, int ranks, int micro_steps) {
  zero::ShardedOptimizer optimizer{
      comm, {{.name = "w", .shape = {3001}}}, Stage{}, zero::Fp64{}, zero::AccumulateShard{}};
  optimizer.load_parameters([](auto const&, std::size_t first, std::span<double> values) {
    for (double& value : values) value = 1. / static_cast<double>(3 + first++);
  });
  for (int step = 0; step < 5; ++step) {
    for (int micro = 0; micro < micro_steps; ++micro) {
      optimizer.micro_step({.last = micro + 1 == micro_steps});
      auto gradients = optimizer.gradients(0);
      for (std::size_t i = 0; i < 3001; ++i) {
        auto const batch = static_cast<std::size_t>(rank * micro_steps + micro);
        auto const x = static_cast<double>((i * 7919 + batch * 104729 + 1) % 1009);
        gradients[0][i] += x * 0x1p-30 + (x - 504.) * 0x1p-8;
      }
      optimizer.reduce(std::move(gradients));
    }
    CHECK(optimizer.step({.max_norm = 50.}).weight == ranks * micro_steps);
  }
  auto const all = optimizer.full_parameters();
  return {all[0].begin(), all[0].end()};
}

TEST_CASE("ShardedOptimizer over Mpi: fp64 has the bits of one rank") {
  zero::Self self;
  int const size = mpi_tests::world_size();
  auto const expected = train_in_double<zero::stage::PosG>(self, 0, 1, 2 * size);
  for (Route const route : {Route::window, Route::exchange}) {
    INFO(std::string(mpi_tests::name(route)));
    mpi_tests::with_group(size, route, [&](auto& comm) {
      CHECK(train_in_double<zero::stage::PosG>(comm, comm.rank(), size, 2) == expected);
      CHECK(train_in_double<zero::stage::PosGP>(comm, comm.rank(), size, 2) == expected);
    });
  }
}

TEST_CASE("ShardedOptimizer over Mpi: a broadcast brings the root's values; then a step") {
  for (Route const route : mpi_tests::routes) {
    auto const owned = [](auto& comm) { return zero::Owned{comm.allocator()}; };
    check_broadcast<zero::stage::PosGP>(route, owned);
    check_broadcast<zero::stage::PosG>(route, [](auto&) { return zero::Borrowed<>{}; });
  }
}

}  // namespace
}  // namespace optimizer_test
