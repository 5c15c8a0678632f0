/// @file
/// Trains the toy model over a communicator whose buffers are on devices, with gradients that the
/// host computes and uploads, and compares with the reference, bit for bit.
#pragma once

#include "equivalence/harness.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/sharded_optimizer.hpp"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace device_training {

/// One backward pass of all units: what the device holds is fetched, added to and brought back.
template <class Optimizer, class Space>
void backward(Optimizer& optimizer, Space const& space, toy::Run const& run, long step, int batch) {
  using Parameter = typename Optimizer::Parameter;
  auto const& tensors = optimizer.tensors();
  for (std::size_t u = optimizer.units().size(); u-- > 0;) {
    auto const unit = static_cast<int>(u);
    auto const weights = optimizer.parameters(unit);
    auto gradients = optimizer.gradients(unit);
    for (std::size_t i = weights.size(), t = tensors.size(); t-- > 0;) {
      if (tensors[t].unit != unit) continue;
      --i;
      std::span const device = gradients[i];
      std::vector<Parameter> parameters(weights[i].size());
      std::vector<typename decltype(device)::value_type> sums(device.size());
      if (!parameters.empty()) {
        space.download(parameters.data(), weights[i].data(), weights[i].size_bytes());
      }
      if (sums.empty()) continue;
      space.download(sums.data(), device.data(), device.size_bytes());
      toy::backward(run,
                    t,
                    step,
                    batch,
                    optimizer.loss_scale(),
                    std::span<Parameter const>(parameters),
                    std::span(sums));
      space.upload(device.data(), sums.data(), device.size_bytes());
    }
    optimizer.reduce(std::move(gradients));
  }
}

/// A flat buffer that a trainer lends, of the device.
template <class T, class Allocator>
class LentBuffer {
 public:
  LentBuffer(Allocator allocator, std::size_t count)
      : allocator_(std::move(allocator)),
        memory_(static_cast<T*>(allocator_.allocate(count * sizeof(T), 256)), count) {}
  LentBuffer(LentBuffer const&) = delete;
  LentBuffer& operator=(LentBuffer const&) = delete;
  ~LentBuffer() { allocator_.deallocate(memory_.data(), memory_.size_bytes(), 256); }
  [[nodiscard]] std::span<T> span() const noexcept { return memory_; }

 private:
  Allocator allocator_;
  std::span<T> memory_;
};

/// Elements that a trainer of borrowed memory lends; 0 with memory of the library's own.
template <class S>
std::size_t lent_count(toy::Run const& run) {
  std::size_t count = 0;
  for (auto const& tensor : toy::model(run.tied)) {
    if (S::Memory::borrowed && tensor.tied_to.empty()) count += zero::element_count(tensor);
  }
  return count;
}

/// @tparam World  World::run(ranks, body) calls body(comm, allocator) on every rank of a new group
template <class World, class S>
void check(S const& setup, toy::Run const& run) {
  INFO("stage " << std::string(S::Stage::name) << ", precision " << std::string(S::Precision::name)
                << ", rule " << std::string(S::Rule::name) << ", accumulation "
                << std::string(S::Accumulation::name) << ", borrowed " << S::Memory::borrowed
                << ", ranks " << run.ranks << ", micro-steps " << run.micro_steps);
  auto const expected = toy::reference(setup, run);
  auto merged = expected;
  for (auto& tensor : merged.master) std::fill(tensor.begin(), tensor.end(), -1.f);
  merged.norms.clear();
  merged.skipped.clear();
  std::mutex mutex;
  bool exact_plan = true;
  World::run(run.ranks, [&](auto& comm, auto const& allocator) {
    using Allocator = std::remove_cvref_t<decltype(allocator)>;
    using Memory =
        std::conditional_t<S::Memory::borrowed, zero::Borrowed<Allocator>, zero::Owned<Allocator>>;
    std::size_t const lent = lent_count<S>(run);
    LentBuffer<typename S::Precision::Parameter, Allocator> const parameters(allocator, lent);
    LentBuffer<typename S::Precision::Wire, Allocator> const gradients(allocator, lent);
    auto const clear = [&] {
      comm.space().zero(gradients.span().data(), gradients.span().size_bytes());
    };
    zero::ShardedOptimizer optimizer{comm,
                                     toy::model(run.tied),
                                     typename S::Stage{},
                                     setup.precision,
                                     setup.rule,
                                     typename S::Accumulation{},
                                     Memory{allocator},
                                     zero::Bucket{run.bucket_bytes}};
    if constexpr (S::Memory::borrowed) {
      optimizer.bind(parameters.span(), gradients.span());
      clear();
    }
    optimizer.load_parameters(
        [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
          auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(t, first + i);
        });
    for (long step = 0; step < run.steps; ++step) {
      for (int micro = 0; micro < run.micro_steps; ++micro) {
        int const batch = comm.rank() * run.micro_steps + micro;
        if (run.micro_steps > 1) {
          optimizer.micro_step({.weight = run.weight(batch), .last = micro + 1 == run.micro_steps});
        }
        backward(optimizer, comm.space(), run, step, batch);
      }
      if constexpr (S::Memory::borrowed) {
        // What was reduced may be overwritten once the bucket has travelled.
        optimizer.reduce_all();
        clear();
      }
      auto const report =
          optimizer.step({.max_norm = run.max_norm, .non_finite = zero::NonFinite::skip});
      if (comm.rank() != 0) continue;
      merged.norms.push_back(report.grad_norm);
      merged.skipped.push_back(report.skipped);
    }
    optimizer.settle();
    std::lock_guard const lock(mutex);
    toy::collect(optimizer, merged);
    merged.loss_scale = optimizer.loss_scale();
    exact_plan = exact_plan && optimizer.held() == optimizer.plan().memory;
  });
  CHECK(exact_plan);
  CHECK(toy::differing_bits(merged, expected) == 0);
  CHECK(merged.norms == expected.norms);
  CHECK(merged.skipped == expected.skipped);
  CHECK(std::count(expected.skipped.begin(), expected.skipped.end(), true) <= 1);
  CHECK(merged.loss_scale == expected.loss_scale);
}

/// With clipping and an overflow in the last rank's last micro-batch.
template <class World, class S>
void check_clipped(int ranks, int micro_steps = 1) {
  S setup{};
  // The toy model's gradients would overflow for steps on end from the default on.
  if constexpr (S::Precision::loss_scaled) setup.precision.loss_scale.initial = 64.f;
  check<World>(setup,
               {.ranks = ranks,
                .micro_steps = micro_steps,
                .steps = 4,
                .bucket_bytes = 12345,
                .max_norm = 5.,
                .weighted = micro_steps > 1,
                .fault = {.step = 2, .micro_batch = micro_steps * ranks - 1}});
}

/// Stages and precisions over a few group sizes.
template <class World, class Stage, class Precision>
void check_ranks(std::initializer_list<int> ranks) {
  for (int const n : ranks) check_clipped<World, toy::Setup<Stage, Precision>>(n);
}

/// Every accumulation and memory, other rules than AdamW, stages and precisions in turn.
template <class World>
void check_policies(int ranks) {
  using toy::Setup;
  using zero::AccumulateNone;
  using Bf16 = zero::Mixed<zero::bf16>;
  using Fp16 = zero::Mixed<zero::fp16>;
  using Lent = zero::Borrowed<>;
  namespace stage = zero::stage;
  check_clipped<World, Setup<stage::PosGP, Fp16, zero::Adagrad, zero::AccumulateShard>>(ranks, 3);
  check_clipped<World, Setup<stage::PosG, Bf16, zero::Sgd, zero::AccumulateFull>>(ranks, 3);
  check_clipped<World, Setup<stage::Replicated, Fp16, zero::AdamW, AccumulateNone, Lent>>(ranks);
  check_clipped<World, Setup<stage::Pos, zero::Fp32, zero::Lion, AccumulateNone, Lent>>(ranks);
  check_clipped<World, Setup<stage::PosG, Bf16, zero::Sgd, AccumulateNone, Lent>>(ranks);
}

}  // namespace device_training
