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
    bool const separate = seed / 7 % 2 == 0;
    fake::World world(ranks, 11);
    zero::nccl::Options options = fake::quick_options();
    options.separate_gathers = separate;
    // Small enough that buckets are summed in pieces, with a rest.
    options.staging_bytes = 8 << 10;
    options.registration =
        separate ? zero::nccl::Registration::windows : zero::nccl::Registration::none;
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

}  // namespace
}  // namespace differential_test
