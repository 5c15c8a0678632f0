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

/// @tparam World  World::run(ranks, body) calls body(comm, allocator) on every rank of a new group
template <class World, class S>
void check(S const& setup, toy::Run const& run) {
  INFO("stage " << std::string(S::Stage::name) << ", precision " << std::string(S::Precision::name)
                << ", ranks " << run.ranks << ", micro-steps " << run.micro_steps);
  auto const expected = toy::reference(setup, run);
  auto merged = expected;
  for (auto& tensor : merged.master) std::fill(tensor.begin(), tensor.end(), -1.f);
  merged.norms.clear();
  merged.skipped.clear();
  std::mutex mutex;
  bool exact_plan = true;
  World::run(run.ranks, [&](auto& comm, auto const& allocator) {
    zero::ShardedOptimizer optimizer{comm,
                                     toy::model(run.tied),
                                     typename S::Stage{},
                                     setup.precision,
                                     setup.rule,
                                     typename S::Accumulation{},
                                     zero::Owned{allocator},
                                     zero::Bucket{run.bucket_bytes}};
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
  CHECK(merged.loss_scale == expected.loss_scale);
}

/// Stages and precisions over a few group sizes, with clipping and an overflow.
template <class World, class Stage, class Precision>
void check_ranks(std::initializer_list<int> ranks) {
  for (int const n : ranks) {
    check<World>(toy::Setup<Stage, Precision, zero::AdamW>{},
                 {.ranks = n,
                  .steps = 4,
                  .bucket_bytes = 12345,
                  .max_norm = 5.,
                  .fault = {.step = 2, .micro_batch = n - 1}});
  }
}

}  // namespace device_training
