// Checkpoints of what lies in the memory of devices: saved and loaded in pieces, by their streams.
#include "zero/checkpoint.hpp"

#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "cuda/streams.hpp"
#include "support/give_zeros.hpp"
#include "support/test.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/comm/run_ranks.hpp"

namespace checkpoint_test {
namespace {

using checkpoint_tests::Held;
using Bf16 = zero::Mixed<zero::bf16>;

template <class Stage, class Body>
void on_devices(int ranks, Body const& body) {
  DeviceWorld::run(ranks, [&](zero::InProcessCuda& comm, auto const& allocator) {
    zero::ShardedOptimizer optimizer{comm, toy::model(), Stage{}, Bf16{}, zero::Owned{allocator}};
    body(optimizer, comm.rank());
  });
}

TEST_CASE("emulated: what devices save, other devices load, and the host") {
  checkpoint_tests::TemporaryDirectory const directory;
  std::mutex mutex;
  Held then;
  Held devices;
  Held host;
  on_devices<zero::stage::PosGP>(3, [&](auto& optimizer, int) {
    toy::load(optimizer);
    for (int step = 0; step < 2; ++step) give_zeros(optimizer).step();
    zero::Checkpoints run{directory.path(), {.snapshot_bytes = zero::Checkpoints::plan(optimizer)}};
    run.save_async(optimizer);
    give_zeros(optimizer).step();
    run.finish();
    run.save(optimizer);
    checkpoint_tests::collect(optimizer, then, mutex);
  });
  on_devices<zero::stage::Replicated>(2, [&](auto& optimizer, int) {
    zero::Checkpoints run{directory.path()};
    run.load(optimizer, *run.latest(optimizer));
    checkpoint_tests::collect(optimizer, devices, mutex);
  });
  CHECK(devices == then);
  CHECK(then.counters.steps.front() == 3);
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, toy::model(), zero::stage::Pos{}, Bf16{}};
    zero::Checkpoints run{directory.path()};
    run.load(optimizer, run.list().back());
    checkpoint_tests::collect(optimizer, host, mutex);
  });
  CHECK(host.arrays == then.arrays);
  CHECK(host.counters == then.counters);
}

TEST_CASE("emulated: what is loaded into frozen tensors of a device is rounded as by the host") {
  using Away = zero::Mixed<zero::bf16, zero::HalfAway>;
  std::vector<zero::Tensor> const tensors{{.name = "w", .shape = {700}},
                                          {.name = "f", .shape = {90}, .frozen = true}};
  // In the middle of two bf16, of which half are even.
  auto const middles = [](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] =
          std::bit_cast<float>(0x3f808000u + (static_cast<std::uint32_t>(first + i) % 90 << 16));
    }
  };
  checkpoint_tests::TemporaryDirectory const directory;
  std::string const at = directory.path() + "/";
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer source{comm, tensors, zero::stage::Pos{}, zero::Fp32{}};
    source.load_parameters(middles);
    zero::Checkpoints{at}.save(source);
    zero::ShardedOptimizer given{comm, tensors, zero::stage::Pos{}, Away{}};
    given.load_parameters(middles);
    zero::export_model(given, at + "given.safetensors");
  });
  DeviceWorld::run(3, [&](zero::InProcessCuda& comm, auto const& allocator) {
    zero::ShardedOptimizer loaded{
        comm, tensors, zero::stage::PosGP{}, Away{}, zero::Owned{allocator}};
    static_cast<void>(zero::Checkpoints{at}.resume(loaded));
    zero::export_model(loaded, at + "loaded.safetensors");
  });
  bool const same = checkpoint_tests::slurp(at + "loaded.safetensors") ==
                    checkpoint_tests::slurp(at + "given.safetensors");
  CHECK(same);
}

}  // namespace
}  // namespace checkpoint_test
