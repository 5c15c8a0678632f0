/// Random cases over NCCL's ordered sums have the reference's bits, and send what the plan says.
#include "differential/program.hpp"
#include "nccl/world.hpp"
#include "support/test.hpp"

namespace differential_test {
namespace {

/// Threads as processes of a fake NCCL.
class World : public differential::World {
 public:
  [[nodiscard]] int most_ranks() const override { return 4; }
  void run(int ranks, std::uint64_t seed, differential::Body const& body) override {
    bool const windows = seed / 7 % 2 == 0;
    fake::World world(ranks, 11);
    zero::nccl::Options options = fake::quick_options();
    // Small enough that buckets are summed in pieces, with a rest.
    options.staging_bytes = 8 << 10;
    options.registration =
        windows ? zero::nccl::Registration::windows : zero::nccl::Registration::none;
    fake::run_group<zero::nccl::Ordered>(world, ranks, options, [&](auto& comm) {
      differential::AnyCommunicator any(
          comm, zero::space::Host{}, differential::AnyAllocator(comm.allocator()));
      body.on_host(any);
    });
    fake::check_clean(world);
  }
};

TEST_CASE("Nccl, ordered: random cases") {
  World world;
  CHECK(differential::run_cases(world, 120) == 0);
}

/// Parameters in fp64 after steps of gradients whose sums are exact.
template <class Stage, class C>
std::vector<double> train_in_double(C& comm, int batches) {
  zero::ShardedOptimizer optimizer{
      comm, {{.name = "w", .shape = {3001}}}, Stage{}, zero::Fp64{}, zero::AccumulateShard{}};
  optimizer.load_parameters([](auto const&, std::size_t first, std::span<double> values) {
    for (double& value : values) value = 1. / static_cast<double>(3 + first++);
  });
  int const own = batches / comm.size();
  for (int step = 0; step < 4; ++step) {
    for (int micro = 0; micro < own; ++micro) {
      optimizer.micro_step({.last = micro + 1 == own});
      auto gradients = optimizer.gradients(0);
      auto const batch = static_cast<std::size_t>(comm.rank() * own + micro);
      for (std::size_t i = 0; i < 3001; ++i) {
        auto const x = static_cast<double>((i * 7919 + batch * 104729 + 1) % 1009);
        gradients[0][i] += x * 0x1p-30 + (x - 504.) * 0x1p-8;
      }
      optimizer.reduce(std::move(gradients));
    }
    (void)optimizer.step({.max_norm = 50.});
  }
  auto const all = optimizer.full_parameters();
  return {all[0].begin(), all[0].end()};
}

TEST_CASE("Nccl, ordered: fp64 has the bits of one rank") {
  zero::Self self;
  auto const expected = train_in_double<zero::stage::PosG>(self, 6);
  fake::World world(3, 11);
  fake::run_group<zero::nccl::Ordered>(world, 3, fake::quick_options(), [&](auto& comm) {
    differential::AnyCommunicator any(
        comm, zero::space::Host{}, differential::AnyAllocator(comm.allocator()));
    bool const same = train_in_double<zero::stage::PosG>(any, 6) == expected &&
                      train_in_double<zero::stage::PosGP>(any, 6) == expected;
    CHECK(same);
  });
  fake::check_clean(world);
}

}  // namespace
}  // namespace differential_test
