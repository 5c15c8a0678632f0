/// @file
/// One rank's training of the toy model, over any communicator and any memory, compared with the
/// reference.
#pragma once

#include "support/comparison.hpp"
#include "support/lent_memory.hpp"
#include "support/toy_model.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/sharded_optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace toy {

/// Calls `use(t, weights, gradients)` for every tensor in the order of the backward pass, and
/// reduces each unit.
template <class Optimizer, class Use>
void backward_pass(Optimizer& optimizer, Use const& use) {
  auto const& tensors = optimizer.tensors();
  for (int const unit : optimizer.units_backward()) {
    auto const weights = optimizer.parameters(unit);
    auto gradients = optimizer.gradients(unit);
    for (std::size_t i = weights.size(), t = tensors.size(); t-- > 0;) {
      if (tensors[t].unit != unit) continue;
      --i;
      use(t, weights[i], gradients[i]);
    }
    optimizer.reduce(std::move(gradients));
  }
}

/// Adds a micro-batch's gradients where they lie. What the host cannot reach is fetched, added to
/// and brought back.
template <class Optimizer, class Space>
void add_gradients(Optimizer& optimizer, Space const& space, Run const& run, long step, int batch) {
  using Parameter = typename Optimizer::Parameter;
  using Wire = typename Optimizer::Wire;
  float const scale = optimizer.loss_scale();
  auto const add = [&](std::size_t t, std::span<Parameter const> weights, std::span<Wire> sums) {
    if constexpr (Space::host_accessible) {
      backward(run, t, step, batch, scale, weights, sums);
    } else {
      if (sums.empty()) return;
      auto const parameters = fetch(space, weights);
      auto added = fetch(space, std::span<Wire const>(sums));
      backward(run, t, step, batch, scale, std::span(parameters), std::span(added));
      space.upload(sums.data(), added.data(), sums.size_bytes());
    }
  };
  backward_pass(optimizer, add);
}

/// Was a step's traffic the plan's? Where the host decided to skip the update, nothing was
/// published.
inline bool as_planned(zero::TrafficCounts const& counts, zero::Plan const& plan, bool published) {
  std::uint64_t const publish = published ? plan.traffic.publish : 0;
  std::uint64_t const unpublished = published ? 0 : plan.sent.publish;
  return counts.bucket_of(zero::Op::reduce_scatter).elements == plan.traffic.reduce &&
         counts.bucket_of(zero::Op::all_gather).elements == publish + plan.traffic.gather &&
         counts.bucket_total().bytes == plan.sent.total() - unpublished &&
         counts.control_total() == counts.control_of(zero::Op::all_reduce) &&
         counts.control_total().calls == 1;
}

/// What one rank found.
struct Findings {
  std::string complaints{};  ///< empty if all is as it should be
  Owners owners{};           ///< 1 for what this rank owns

  void require(bool holds, std::string const& what) {
    if (!holds) complaints += what + "; ";
  }
};

/// Trains as `run` says and compares this rank's part of everything with the reference's. Of the
/// memory that `setup` names, only who owns it matters: all of it is from `allocator`.
template <class S, class Expected, class C, class Allocator>
Findings train_rank(
    S const& setup, Run const& run, Expected const& expected, C& comm, Allocator const& allocator) {
  using Space = typename C::Space;
  using Memory =
      std::conditional_t<S::Memory::borrowed, zero::Borrowed<Allocator>, zero::Owned<Allocator>>;
  using Lent =
      LentMemory<typename S::Precision::Parameter, typename S::Precision::Wire, Space, Allocator>;
  Space const space = zero::detail::space_of(comm);
  Findings found;
  std::optional<Lent> lent;
  zero::Counting counted{comm};
  zero::ShardedOptimizer optimizer{counted,
                                   model(run.tied),
                                   typename S::Stage{},
                                   setup.precision,
                                   setup.rule,
                                   typename S::Accumulation{},
                                   Memory{allocator},
                                   zero::Bucket{run.bucket_bytes}};
  if constexpr (S::Memory::borrowed) {
    lent.emplace(space, allocator, optimizer.tensors(), setup.flat);
    lent->bind_to(optimizer);
  }
  load(optimizer);
  zero::Plan const plan = optimizer.plan(static_cast<std::uint64_t>(run.micro_steps));
  std::vector<double> norms;
  std::vector<bool> skipped;
  for (long step = 0; step < run.steps; ++step) {
    counted.reset();
    for (int micro = 0; micro < run.micro_steps; ++micro) {
      int const batch = comm.rank() * run.micro_steps + micro;
      if (run.micro_steps > 1 || run.weighted) {
        optimizer.micro_step(
            {.weight = run.weight(batch), .last = micro + 1 == run.micro_steps && step % 2 == 0});
      }
      for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit).size());
      add_gradients(optimizer, space, run, step, batch);
    }
    // What was reduced may be overwritten once the bucket has travelled: when the trainer asks for
    // that, or else by the end of the step.
    bool const asks = step % 2 == 0;
    if constexpr (S::Memory::borrowed) {
      if (asks) optimizer.reduce_all();
      if (asks) lent->zero_gradients();
    }
    zero::StepReport const report =
        optimizer.step({.max_norm = run.max_norm, .non_finite = zero::NonFinite::skip});
    if constexpr (S::Memory::borrowed) {
      if (!asks) lent->zero_gradients();
    }
    norms.push_back(report.grad_norm);
    skipped.push_back(report.skipped);
    std::string const when = " in step " + std::to_string(step);
    // The host of a device learns of a skip when all is queued.
    bool const published = !report.skipped || !Space::host_accessible;
    found.require(as_planned(counted.counts(), plan, published),
                  "sent something else than planned" + when);
    found.require(optimizer.held() == plan.memory, "holds something else than planned" + when);
  }
  found.require(norms == expected.norms, "norms");
  found.require(skipped == expected.skipped, "skipped steps");
  found.require(optimizer.loss_scale() == expected.loss_scale, "loss scale");
  optimizer.settle();
  found.require(owned_match(optimizer, expected, found.owners), "master weights or states");
  found.require(views_match(optimizer, space, expected), "views of the parameters");
  if constexpr (S::Memory::borrowed) found.require(lent->intact(), "canaries");
  optimizer.settle();
  return found;
}

}  // namespace toy
