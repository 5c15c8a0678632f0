/// @file
/// Trains the toy model on a device that traps, with gradients computed there, and compares with
/// the reference, bit for bit.
#pragma once

#include "harness.hpp"
#include "trapped_space.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace toy {

/// How a device trainer ends its steps.
enum class Ending : int { step, enqueue };

/// One backward pass of all units, queued on the device: reads weights and loss scale there.
template <class Optimizer>
void queue_backward(
    Optimizer& optimizer, trapped::Space const& space, Run const& run, long step, int batch) {
  backward_pass(optimizer, [&](std::size_t t, auto weights, auto gradients) {
    space.call([run, t, step, batch, weights, gradients, scale = optimizer.loss_scale_address()] {
      backward(run, t, step, batch, *scale, weights, gradients);
    });
  });
}

/// Trains on devices; counts what the steps brought to the host.
template <class S>
void check_on_devices(S const& setup, Run const& run, trapped::Collectives when, Ending ending) {
  INFO("stage " << std::string(S::Stage::name) << ", precision " << std::string(S::Precision::name)
                << ", accumulation " << std::string(S::Accumulation::name) << ", borrowed "
                << S::Memory::borrowed << ", ranks " << run.ranks << ", micro-steps "
                << run.micro_steps << ", max norm " << run.max_norm << ", late "
                << (when == trapped::Collectives::late) << ", enqueued "
                << (ending == Ending::enqueue));
  using Lent = LentMemory<typename S::Precision::Parameter,
                          typename S::Precision::Wire,
                          trapped::Space,
                          trapped::Allocator>;
  auto const expected = reference(setup, run);
  std::mutex mutex;
  std::string complaints;
  zero::run_ranks(run.ranks, [&](zero::InProcess& inner) {
    trapped::Device device;
    trapped::Communicator comm(inner, device, when);
    trapped::Space const space = comm.space();
    Findings found;
    std::optional<Lent> lent;
    zero::ShardedOptimizer optimizer{comm,
                                     model(run.tied),
                                     typename S::Stage{},
                                     setup.precision,
                                     setup.rule,
                                     typename S::Accumulation{},
                                     typename S::Memory{{&device}},
                                     zero::Bucket{run.bucket_bytes}};
    if constexpr (S::Memory::borrowed) {
      lent.emplace(space, trapped::Allocator{&device}, optimizer.tensors(), setup.flat);
      lent->bind_to(optimizer);
    }
    load(optimizer);
    std::vector<double> norms;
    std::vector<bool> skipped;
    std::uint64_t const before = device.downloads;
    for (long step = 0; step < run.steps; ++step) {
      for (int micro = 0; micro < run.micro_steps; ++micro) {
        int const batch = comm.rank() * run.micro_steps + micro;
        if (run.micro_steps > 1) {
          optimizer.micro_step({.weight = run.weight(batch), .last = micro + 1 == run.micro_steps});
        }
        queue_backward(optimizer, space, run, step, batch);
      }
      if constexpr (S::Memory::borrowed) {
        optimizer.reduce_all();
        lent->zero_gradients();
      }
      zero::StepOptions const options{.max_norm = run.max_norm,
                                      .non_finite = zero::NonFinite::skip,
                                      .overlap_publish = step % 2 == 1};
      if (ending == Ending::enqueue) {
        optimizer.enqueue_step(options);
        continue;
      }
      std::uint64_t const bytes = device.downloaded_bytes;
      auto const report = optimizer.step(options);
      // The words of the report and nothing else.
      found.require(device.downloaded_bytes - bytes == sizeof(zero::detail::StepOutcome),
                    "downloaded more than a report");
      norms.push_back(report.grad_norm);
      skipped.push_back(report.skipped);
    }
    std::uint64_t const reports =
        ending == Ending::step ? static_cast<std::uint64_t>(run.steps) : 0;
    found.require(device.downloads - before == reports, "downloads");
    if (ending == Ending::step) {
      found.require(norms == expected.norms, "norms");
      found.require(skipped == expected.skipped, "skipped steps");
    }
    auto const last = optimizer.report();
    found.require(last.grad_norm == expected.norms.back(), "the last norm");
    found.require(last.skipped == expected.skipped.back(), "the last step's skip");
    found.require(optimizer.loss_scale() == expected.loss_scale, "loss scale");
    optimizer.settle();
    found.require(owned_match(optimizer, expected, found.owners), "master weights or states");
    found.require(views_match(optimizer, space, expected), "views of the parameters");
    found.require(optimizer.held() == optimizer.plan().memory, "holds something else than planned");
    if constexpr (S::Memory::borrowed) found.require(lent->intact(), "canaries");
    optimizer.settle();
    device.synchronize();
    std::int64_t const owners = S::Stage::sharding.optimizer ? 1 : run.ranks;
    found.require(covered(inner, zero::HostAllocator{}, found.owners, owners),
                  "how many own an element");
    std::lock_guard const lock(mutex);
    if (found.complaints.empty()) return;
    complaints += "rank " + std::to_string(comm.rank()) + ": " + found.complaints;
  });
  CHECK_MESSAGE(complaints.empty(), complaints);
  CHECK(std::count(expected.skipped.begin(), expected.skipped.end(), false) >= run.steps / 2);
}

/// Both times of collectives, both ways to end a step.
template <class S>
void check_on_devices(S const& setup, Run const& run) {
  for (auto const when : {trapped::Collectives::early, trapped::Collectives::late}) {
    for (auto const ending : {Ending::step, Ending::enqueue}) {
      check_on_devices(setup, run, when, ending);
    }
  }
}

}  // namespace toy
