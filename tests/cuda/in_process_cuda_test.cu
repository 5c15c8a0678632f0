// Threads as ranks over the GPUs there are: the suites that every communicator passes.
#include "conformance/communicator.hpp"
#include "cuda/staged.hpp"
#include "cuda/streams.hpp"
#include "differential/check_cases.hpp"
#include "support/refusal.hpp"

namespace in_process_cuda_test {
namespace {

using zero::InProcessCuda;
using zero::device::MallocAllocator;

struct StagedWorld {
  static constexpr int ranks[] = {1, 2, 4};
  template <class Body>
  static void run(int ranks, Body const& body) {
    DeviceWorld::run(ranks, [&](InProcessCuda& comm, MallocAllocator const& allocator) {
      Staged<InProcessCuda, MallocAllocator> staged(std::move(comm), allocator);
      body(staged);
    });
  }
};

TEST_CASE("InProcessCuda: operations") { conformance::check_operations<StagedWorld>(); }
TEST_CASE("InProcessCuda: collectives under way") { conformance::check_outstanding<StagedWorld>(); }
TEST_CASE("InProcessCuda: sub-groups") { conformance::check_groups<StagedWorld>(); }

TEST_CASE("InProcessCuda trains to the host's bits under every stage") {
  differential::check_stages<DeviceWorld>(4, 8);
}

/// Parameters in fp64 after four steps of two micro-batches.
template <class Comm, class Space, class Memory>
std::vector<double> train_in_double(Comm& comm, Space const& space, Memory const& memory) {
  constexpr std::size_t count = 2003;
  zero::ShardedOptimizer optimizer{comm,
                                   {{.name = "w", .shape = {count}, .weight_decay = 0.3}},
                                   zero::stage::PosG{},
                                   zero::Fp64{},
                                   zero::AccumulateShard{},
                                   memory};
  optimizer.load_parameters([](auto const&, std::size_t first, std::span<double> values) {
    for (double& value : values) value = 1. / static_cast<double>(3 + first++);
  });
  std::vector<double> values(count);
  for (std::size_t step = 0; step < 4; ++step) {
    for (std::size_t micro = 0; micro < 2; ++micro) {
      optimizer.micro_step({.last = micro == 1});
      auto gradients = optimizer.gradients(0);
      auto const batch = static_cast<std::size_t>(comm.rank()) * 2 + micro + 4 * step;
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = 1. / static_cast<double>(1 + (i * 7919 + batch * 104729) % 1009) - 0.01;
      }
      space.upload(gradients[0].data(), values.data(), count * sizeof(double));
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step({.learning_rate = 1e-3, .max_norm = 0.5});
  }
  space.download(values.data(), optimizer.parameter(0).data(), count * sizeof(double));
  return values;
}

TEST_CASE("InProcessCuda trains to the host's bits in fp64") {
  std::vector<double> expected;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    auto const values = train_in_double(comm, zero::space::Host{}, zero::Owned<>{});
    if (comm.rank() == 0) expected = values;
  });
  DeviceWorld::run(3, [&](InProcessCuda& comm, MallocAllocator const& allocator) {
    bool const equal = train_in_double(comm, comm.space(), zero::Owned{allocator}) == expected;
    CHECK(equal);
  });
}

/// Narrow states beside fp32 masters.
struct NarrowStates : zero::Mixed<zero::bf16> {
  static constexpr std::string_view name = "narrow states";
  using State = zero::bf16;
  friend bool operator==(NarrowStates const&, NarrowStates const&) = default;
};

/// Masters and states of what a rank updates, and all parameters, after steps one of which is
/// skipped, and one of which a tensor rests in.
template <class Precision, class Rule, class Stage, class Comm, class Space, class Memory>
std::vector<float> train_with_random_bits(Comm& comm,
                                          Space const& space,
                                          Memory const& memory,
                                          zero::Bucket bucket) {
  // Large enough for states in 8 bits, if the rule has such.
  std::size_t const rows = zero::detail::coded_states<Rule> == 0 ? 7 : 120;
  zero::ShardedOptimizer optimizer{
      comm,
      std::vector<zero::Tensor>{
          {.name = "w", .shape = {4097}, .unit = 0},
          {.name = "ln", .shape = {511}, .unit = 0},
          // Slices begin at any place of a block of random bits.
          {.name = "stack", .shape = {3, 35, rows}, .unit = 1, .stacked = true},
          {.name = "rests", .shape = {11 * rows}, .unit = 4}},
      Stage{},
      Precision{},
      zero::Seed{5},
      Rule{.lr = 0.01, .weight_decay = 0.1},
      bucket,
      memory};
  optimizer.load_parameters([](auto const&, std::size_t first, std::span<float> values) {
    for (float& value : values) value = 1.f / static_cast<float>(3 + first++);
  });
  constexpr std::size_t skipped = 2;
  for (std::size_t step = 0; step < 4; ++step) {
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      bool const rests = unit == 4 && step == 1;
      for (std::size_t t = 0; t < gradients.size(); ++t) {
        auto const out = gradients[t];
        std::vector<zero::bf16> values(rests ? 0 : out.size());
        auto const batch = static_cast<std::size_t>(comm.rank() + 7 * unit) + 100 * step;
        for (std::size_t i = 0; i < values.size(); ++i) {
          auto const number = static_cast<float>((i * 7919 + batch * 104729) % 1009);
          values[i] = zero::bf16(1.f / (1.f + number) - 0.01f);
          if (step == skipped && unit == 0 && i == 300) {
            values[i] = zero::bf16(std::numeric_limits<float>::infinity());
          }
        }
        space.upload(out.data(), values.data(), values.size() * sizeof(zero::bf16));
      }
      if (rests) optimizer.without_gradient(optimizer.tensors()[3]);
      optimizer.reduce(std::move(gradients));
    }
    auto const report = optimizer.step({.max_norm = 0.5, .non_finite = zero::NonFinite::skip});
    if (report.skipped != (step == skipped)) return {};
    if (step != 0) continue;
    // Groups of which a number changes get other codes, to nearest.
    optimizer.fill_owned([](auto const&, std::size_t, auto, auto const& states) {
      for (auto const& state : states) {
        using State = std::remove_reference_t<decltype(state[0])>;
        for (std::size_t i = 0; i < state.size(); i += 77) {
          state[i] = static_cast<State>(static_cast<float>(state[i]) * 3.f);
        }
      }
    });
  }
  optimizer.check_parameters();
  std::vector<float> all;
  auto const add = [&](auto const& values) {
    for (auto const& value : values) all.push_back(static_cast<float>(value));
  };
  optimizer.visit_owned([&](auto const&, std::size_t, auto masters, auto const& states) {
    add(masters);
    for (auto const& state : states) add(state);
  });
  auto const parameters = optimizer.full_parameters();
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    std::vector<zero::bf16> values(parameters[t].size());
    space.download(values.data(), parameters[t].data(), values.size() * sizeof(zero::bf16));
    add(values);
  }
  return all;
}

template <class Precision, class Stage, class Rule = zero::AdamW>
void check_random_bits() {
  INFO(Precision::name << ", " << Stage::name << ", " << Rule::name);
  for (int const ranks : {1, 3}) {
    CAPTURE(ranks);
    // Three ranks have shards that begin in the middle of tensors.
    zero::Bucket const bucket{ranks == 1 ? std::size_t{25} << 20 : 6000};
    std::vector<std::vector<float>> expected(static_cast<std::size_t>(ranks));
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      expected[static_cast<std::size_t>(comm.rank())] =
          train_with_random_bits<Precision, Rule, Stage>(
              comm, zero::space::Host{}, zero::Owned<>{}, bucket);
    });
    std::atomic<int> equal{0};
    DeviceWorld::run(ranks, [&](InProcessCuda& comm, MallocAllocator const& allocator) {
      auto const found = train_with_random_bits<Precision, Rule, Stage>(
          comm, comm.space(), zero::Owned{allocator}, bucket);
      bool const same = !found.empty() && found == expected[static_cast<std::size_t>(comm.rank())];
      equal += same ? 1 : 0;
    });
    CHECK(equal == ranks);
  }
}

TEST_CASE("InProcessCuda trains to the host's bits where these are rounded stochastically") {
  check_random_bits<zero::Mixed<zero::bf16, zero::Rest8>, zero::stage::PosG>();
  check_random_bits<zero::Bf16<zero::StochasticRounding>, zero::stage::PosG>();
  check_random_bits<NarrowStates, zero::stage::PosGP>();
}

TEST_CASE("InProcessCuda trains to the host's bits where states are of 8 bits") {
  check_random_bits<zero::Mixed<zero::bf16>, zero::stage::PosGP, zero::AdamW8bit>();
  check_random_bits<zero::Mixed<zero::bf16, zero::Rest8>, zero::stage::PosG, zero::Lion8bit>();
}

TEST_CASE("InProcessCuda: a step that ranks were told differently is refused on the device") {
  DeviceWorld::run(2, [](InProcessCuda& comm, MallocAllocator const& allocator) {
    zero::ShardedOptimizer optimizer{
        comm, {{.name = "w", .shape = {3000}}}, zero::stage::PosG{}, zero::Owned{allocator}};
    optimizer.adopt_parameters();
    for (bool const differ : {false, true, false}) {
      optimizer.reduce(optimizer.gradients(0));
      optimizer.enqueue_step({.max_norm = differ && comm.rank() == 1 ? 2. : 1.});
      CHECK(is_refused([&] { static_cast<void>(optimizer.report()); }) == differ);
    }
    CHECK(optimizer.steps() == 2);
  });
}

}  // namespace
}  // namespace in_process_cuda_test
