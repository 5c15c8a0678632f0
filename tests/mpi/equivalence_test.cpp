/// The optimizer over processes against the optimizer over threads: the same bits, the same
/// traffic.
#include "equivalence/toy_model.hpp"
#include "mpi/world.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace {

using mpi_tests::Route;

/// What one rank is left with.
struct Outcome {
  std::vector<std::byte> owned;  ///< master weights and states, in order
  std::vector<double> norms;
  zero::TrafficCounts traffic;
  bool as_planned = false;
};

template <class T>
void append(std::vector<std::byte>& bytes, std::span<T const> values) {
  auto const raw = std::as_bytes(values);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

/// Trains the toy model for a few steps on one rank of any communicator.
template <class Stage, class C, class Memory>
Outcome train(C& inner, Memory const& memory) {
  toy::Run const run{.ranks = inner.size(), .steps = 5, .bucket_bytes = 12345, .max_norm = 5.};
  Outcome outcome;
  zero::Counting counted{inner};
  zero::ShardedOptimizer optimizer{counted,
                                   toy::model(),
                                   Stage{},
                                   zero::Mixed<zero::bf16>{},
                                   zero::AdamW{},
                                   memory,
                                   zero::Bucket{run.bucket_bytes}};
  optimizer.load_parameters(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(t, first + i);
      });
  auto const& tensors = optimizer.tensors();
  for (long step = 0; step < run.steps; ++step) {
    for (int const unit : optimizer.units_backward()) {
      auto const weights = optimizer.parameters(unit);
      auto gradients = optimizer.gradients(unit);
      std::size_t place = 0;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        if (tensors[t].unit != unit) continue;
        toy::backward(run, t, step, inner.rank(), 1.f, weights[place], gradients[place]);
        ++place;
      }
      optimizer.reduce(std::move(gradients));
    }
    outcome.norms.push_back(optimizer.step({.max_norm = run.max_norm}).grad_norm);
  }
  optimizer.settle();
  optimizer.visit_owned(
      [&](zero::Tensor const&, std::size_t, auto const& master, auto const& states) {
        append(outcome.owned, master);
        for (auto const& state : states) append(outcome.owned, state);
      });
  outcome.traffic = counted.counts();
  outcome.as_planned = optimizer.held() == optimizer.plan().memory;
  return outcome;
}

template <class Stage>
void check_stage(Route route) {
  int const size = mpi_tests::world_size();
  INFO("stage " << std::string(Stage::name) << ", " << std::string(mpi_tests::name(route))
                << ", ranks " << size);
  std::vector<Outcome> expected(static_cast<std::size_t>(size));
  zero::run_ranks(size, [&](zero::InProcess& comm) {
    expected[static_cast<std::size_t>(comm.rank())] = train<Stage>(comm, zero::Owned<>{});
  });
  Outcome got;
  mpi_tests::with_group<zero::mpi::Ordered>(size, route, [&](auto& comm) {
    using Memory = zero::Owned<zero::mpi::SharedAllocator>;
    got = train<Stage>(comm, Memory{comm.allocator()});
    auto const transport = comm.transport();
    bool const near = route == Route::window || route == Route::thread;
    // Everything above 2 KiB lies in the window, so nothing needs a message.
    if (near) CHECK(transport.exchanged_bytes == 0);
    if (near && size > 1) CHECK(transport.direct_bytes > 0);
    if (route == Route::exchange && size > 1) CHECK(transport.exchanged_bytes > 0);
  });
  Outcome const& wanted = expected[static_cast<std::size_t>(mpi_tests::world_rank())];
  // A rank of many may own nothing of a small model; the first one never does.
  CHECK(!expected[0].owned.empty());
  CHECK(got.owned == wanted.owned);
  CHECK(got.norms == wanted.norms);
  CHECK(got.traffic == wanted.traffic);
  CHECK(got.as_planned);
}

TEST_CASE("ShardedOptimizer over Mpi: the bits and the traffic of InProcess under every stage") {
  for (Route const route : mpi_tests::routes) {
    check_stage<zero::stage::Replicated>(route);
    check_stage<zero::stage::Pos>(route);
    check_stage<zero::stage::PosG>(route);
    check_stage<zero::stage::PosGP>(route);
  }
}

}  // namespace
