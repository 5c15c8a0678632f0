/// @file
/// Trains the toy model on a device that traps, with gradients computed there, and compares with
/// the reference, bit for bit.
#pragma once

#include "harness.hpp"
#include "trapped_space.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace toy {

/// How a device trainer ends its steps.
enum class Ending : int { step, enqueue };

/// One backward pass of all units, queued on the device: reads weights and loss scale there.
template <class Optimizer>
void queue_backward(
    Optimizer& optimizer, trapped::Space const& space, Run const& run, long step, int batch) {
  auto const& tensors = optimizer.tensors();
  for (std::size_t u = optimizer.units().size(); u-- > 0;) {
    auto const unit = static_cast<int>(u);
    auto const weights = optimizer.parameters(unit);
    auto gradients = optimizer.gradients(unit);
    for (std::size_t i = weights.size(), t = tensors.size(); t-- > 0;) {
      if (tensors[t].unit != unit) continue;
      --i;
      space.call(
          [run,
           t,
           step,
           batch,
           scale = optimizer.loss_scale_address(),
           parameters = weights[i],
           sums = gradients[i]] { backward(run, t, step, batch, *scale, parameters, sums); });
    }
    optimizer.reduce(std::move(gradients));
  }
}

/// Does every rank's device hold Parameter(master) of every trained tensor?
template <class Optimizer, class Outcome>
bool device_parameters_match(Optimizer& optimizer,
                             trapped::Space const& space,
                             Outcome const& outcome) {
  using Parameter = typename Optimizer::Parameter;
  auto const& places = optimizer.partition().placement().places();
  bool match = true;
  for (int const unit : optimizer.units()) {
    auto const weights = optimizer.parameters(unit);
    std::size_t i = 0;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      if (optimizer.tensors()[t].unit != unit) continue;
      std::span<Parameter const> const view = weights[i++];
      std::vector<Parameter> here(view.size());
      if (!here.empty()) space.download(here.data(), view.data(), view.size_bytes());
      std::size_t const storage = places[t].storage;
      for (std::size_t e = 0; e < here.size(); ++e) {
        Parameter const expected = places[t].frozen ? Parameter(initial_value(storage, e))
                                                    : Parameter(outcome.master[storage][e]);
        match = match && std::memcmp(&here[e], &expected, sizeof(Parameter)) == 0;
      }
    }
  }
  return match;
}

/// A flat buffer of zeros on a device.
template <class T>
std::span<T> device_zeros(trapped::Device& device, std::size_t count) {
  std::span<T> const memory(static_cast<T*>(device.allocate(count * sizeof(T), 64)), count);
  trapped::Space(device).zero(memory.data(), memory.size_bytes());
  return memory;
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
  using Parameter = typename S::Precision::Parameter;
  using Wire = typename S::Precision::Wire;
  auto const expected = reference(setup, run);
  auto merged = expected;
  for (auto& tensor : merged.master) std::fill(tensor.begin(), tensor.end(), -1.f);
  merged.norms.clear();
  merged.skipped.clear();
  std::vector<int> wrong(static_cast<std::size_t>(run.ranks), 0);
  std::mutex mutex;
  zero::run_ranks(run.ranks, [&](zero::InProcess& inner) {
    trapped::Device device;
    trapped::Communicator comm(inner, device, when);
    trapped::Space const space = comm.space();
    int& complaints = wrong[static_cast<std::size_t>(comm.rank())];
    zero::ShardedOptimizer optimizer{comm,
                                     model(run.tied),
                                     typename S::Stage{},
                                     setup.precision,
                                     setup.rule,
                                     typename S::Accumulation{},
                                     typename S::Memory{{&device}},
                                     zero::Bucket{run.bucket_bytes}};
    std::span<Wire> lent;
    if constexpr (S::Memory::borrowed) {
      std::size_t count = 0;
      for (auto const& tensor : optimizer.tensors()) {
        if (tensor.tied_to.empty()) count += zero::element_count(tensor);
      }
      lent = device_zeros<Wire>(device, count);
      optimizer.bind(device_zeros<Parameter>(device, count), lent);
    }
    optimizer.load_parameters(
        [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
          auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial_value(t, first + i);
        });
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
        space.zero(lent.data(), lent.size_bytes());
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
      if (device.downloaded_bytes - bytes != sizeof(zero::detail::StepOutcome)) complaints |= 1;
      if (comm.rank() != 0) continue;
      merged.norms.push_back(report.grad_norm);
      merged.skipped.push_back(report.skipped);
    }
    std::uint64_t const reports =
        ending == Ending::step ? static_cast<std::uint64_t>(run.steps) : 0;
    if (device.downloads - before != reports) complaints |= 2;
    auto const last = optimizer.report();
    if (last.grad_norm != expected.norms.back()) complaints |= 4;
    if (last.skipped != expected.skipped.back()) complaints |= 8;
    if (optimizer.loss_scale() != expected.loss_scale) complaints |= 16;
    // Ranks see each other's shares only when all have copied theirs.
    optimizer.settle();
    device.synchronize();
    {
      std::lock_guard const lock(mutex);
      collect(optimizer, merged);
    }
    zero::run(inner, zero::Collective{.op = zero::Op::all_reduce});
    if (!device_parameters_match(optimizer, space, merged)) complaints |= 32;
    if (optimizer.held() != optimizer.plan().memory) complaints |= 64;
    optimizer.settle();
    device.synchronize();
  });
  if (ending == Ending::enqueue) {
    merged.norms = expected.norms;
    merged.skipped = expected.skipped;
  }
  for (int const complaints : wrong) {
    CHECK_MESSAGE(
        complaints == 0,
        "1 bytes, 2 downloads, 4 norm, 8 skip, 16 scale, 32 views, 64 plan: " << complaints);
  }
  CHECK(differing_bits(merged, expected) == 0);
  CHECK(merged.norms == expected.norms);
  CHECK(merged.skipped == expected.skipped);
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
