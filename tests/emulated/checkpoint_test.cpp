// Checkpoints of what lies in the memory of devices: saved and loaded in pieces, by their streams.
#include "zero/checkpoint.hpp"

#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "cuda/streams.hpp"
#include "support/random.hpp"
#include "support/test.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/comm/run_ranks.hpp"

namespace checkpoint_test {
namespace {

using checkpoint_tests::Held;
using Bf16 = zero::Mixed<zero::bf16>;

/// Tensors whose states are float, and one whose states are of 8 bits.
std::vector<zero::Tensor> model() {
  auto tensors = toy::model();
  tensors.push_back({.name = "coded", .shape = {9001}});
  return tensors;
}

template <class Stage, class Body>
void on_devices(int ranks, Body const& body) {
  DeviceWorld::run(ranks, [&](zero::InProcessCuda& comm, auto const& allocator) {
    zero::ShardedOptimizer optimizer{
        comm, model(), Stage{}, Bf16{}, zero::AdamW8bit{}, zero::Owned{allocator}};
    body(optimizer, comm);
  });
}

/// A step whose gradients are of very different sizes; their mean is the same for any number of
/// ranks.
template <class Optimizer, class Comm, class Space>
void step(Optimizer& optimizer, Comm const& comm, Space const& space) {
  optimizer.micro_step({.weight = comm.rank() == 0 ? 9. - comm.size() : 1., .last = true});
  auto const number = static_cast<std::uint64_t>(optimizer.steps());
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    for (std::size_t t = 0; t < gradients.size(); ++t) {
      auto const out = gradients[t];
      std::vector<zero::bf16> values(out.size());
      for (std::size_t i = 0; i < values.size() && comm.rank() == 0; ++i) {
        int const whole = static_cast<int>(mixed(number, t, i) % 15) - 7;
        values[i] = zero::bf16(std::ldexp(static_cast<float>(whole), -static_cast<int>(i % 9)));
      }
      space.upload(out.data(), values.data(), values.size() * sizeof(zero::bf16));
    }
    optimizer.reduce(std::move(gradients));
  }
  optimizer.step();
}

TEST_CASE(
    "emulated: what devices save, other devices load, and the host, which goes on as they do") {
  checkpoint_tests::TemporaryDirectory const directory;
  std::mutex mutex;
  Held then;
  Held later;
  Held devices;
  Held host;
  Held host_later;
  on_devices<zero::stage::PosGP>(3, [&](auto& optimizer, auto& comm) {
    toy::load(optimizer);
    for (int i = 0; i < 2; ++i) step(optimizer, comm, comm.space());
    zero::Checkpoints run{directory.path(), {.snapshot_bytes = zero::Checkpoints::plan(optimizer)}};
    run.save_async(optimizer);
    step(optimizer, comm, comm.space());
    run.finish();
    run.save(optimizer);
    checkpoint_tests::collect(optimizer, then, mutex);
    step(optimizer, comm, comm.space());
    checkpoint_tests::collect(optimizer, later, mutex);
  });
  on_devices<zero::stage::Replicated>(2, [&](auto& optimizer, auto&) {
    zero::Checkpoints run{directory.path()};
    run.load(optimizer, *run.latest(optimizer));
    checkpoint_tests::collect(optimizer, devices, mutex);
  });
  CHECK(devices == then);
  CHECK(then.counters.steps.front() == 3);
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model(), zero::stage::Pos{}, Bf16{}, zero::AdamW8bit{}};
    zero::Checkpoints run{directory.path()};
    run.load(optimizer, run.list().back());
    checkpoint_tests::collect(optimizer, host, mutex);
    step(optimizer, comm, zero::space::Host{});
    checkpoint_tests::collect(optimizer, host_later, mutex);
  });
  CHECK(host.arrays == then.arrays);
  CHECK(host.counters == then.counters);
  CHECK(host_later.arrays == later.arrays);
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
