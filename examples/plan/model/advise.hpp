/// @file
/// Which stage, model-parallel degree, activations and micro-batch to train with on a cluster.
#pragma once

#include "cluster.hpp"
#include "device.hpp"
#include "policies.hpp"
#include "search.hpp"
#include "zero/base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace plan {

using namespace zero;

/// What advice is asked for.
struct Question {
  /// Model, ranks, precision, rule, bucket, prefetch. The rest is what is looked for.
  Setup setup{};
  Cluster cluster{};            ///< how devices are connected, and the memory of hosts
  std::uint64_t budget = 0;     ///< bytes of a device that may be used
  std::uint64_t sequences = 1;  ///< of all models in one step
  bool by_time = true;          ///< order by `Candidate::seconds`, or by bytes sent
  /// Seconds of a step of a setup on the cluster, as a simulation has it.
  std::function<double(Setup const&)> step{};
};

/// One configuration, or why it is none.
struct Candidate {
  Setup setup{};       ///< complete
  DevicePlan plan{};   ///< of that; of one sequence at a time where it does not fit
  bool fits = false;   ///< is it a configuration?
  std::string why{};   ///< a sentence, where it is not
  double seconds = 0;  ///< of a step, as `Question::step` has it
};

/// Configurations that fit, the best first, and those that do not.
struct Advice {
  std::vector<Candidate> fitting{};   ///< least time, or least traffic, first
  std::vector<Candidate> rejected{};  ///< one for each stage and model-parallel degree
};

namespace detail {

/// Gigabytes (10^9) with one decimal.
[[nodiscard]] inline std::string gigabytes(std::uint64_t bytes) {
  std::uint64_t const tenths = bytes / 100'000'000 + (bytes % 100'000'000 >= 50'000'000 ? 1 : 0);
  return zero::detail::with_commas(tenths / 10) + "." + std::to_string(tenths % 10) + " GB";
}

/// Why a plan is none; empty if it is one.
[[nodiscard]] inline std::string refusal(Question const& question,
                                         Setup const& setup,
                                         DevicePlan const& plan) {
  std::uint64_t const total = plan.total_bytes();
  std::uint64_t const activations = plan.checkpoints.memory.total() + plan.working.total();
  if (total > question.budget) {
    return "needs " + gigabytes(total) + " of " + gigabytes(question.budget) + " with " +
           std::to_string(setup.batch) + (setup.batch == 1 ? " sequence" : " sequences") +
           " at a time: " + gigabytes(plan.state_bytes()) + " of model states, " +
           gigabytes(activations) + " of activations, " +
           gigabytes(total - plan.state_bytes() - activations) + " of pools and buckets";
  }
  auto const devices =
      static_cast<std::uint64_t>((std::min)(question.cluster.devices_per_node, setup.ranks));
  std::uint64_t const host = checked_mul(plan.checkpoints.slower.total(), devices);
  if (host <= question.cluster.host_memory) return {};
  return "needs " + gigabytes(host) + " of a node's " + gigabytes(question.cluster.host_memory) +
         " of host memory for activations";
}

/// The searches for one stage, one model-parallel degree and one place for activations.
class Finder {
 public:
  Finder(Question const& question, Setup setup) : asked_(&question), setup_(std::move(setup)) {
    share_ = question.sequences / static_cast<std::uint64_t>(setup_.models());
    for (std::uint64_t b = 1; b <= share_; ++b) {
      if (share_ % b == 0) batches_.push_back(b);
    }
  }

  /// The largest micro-batch that fits, with the accumulation that takes or sends least.
  [[nodiscard]] Candidate find() {
    Candidate best;
    for (std::string const& accumulation : accumulation_names()) {
      bool const once = accumulation == "none";
      // One micro-step is a sum of nothing.
      if (best.fits && best.setup.micro_steps == 1) break;
      try_accumulation(accumulation, once ? batches_.size() - 1 : 0, best);
    }
    return best;
  }

 private:
  [[nodiscard]] double cost(Candidate const& of) const {
    return asked_->by_time ? of.seconds : static_cast<double>(of.plan.sent_bytes());
  }
  void try_accumulation(std::string const& accumulation, std::size_t from, Candidate& best) {
    setup_.policies.accumulation = accumulation;
    setup_.micro_steps = 1;
    setup_.batch = batches_[from];
    DevicePlan plan = plan_device(setup_);
    std::string const why = refusal(*asked_, setup_, plan);
    if (!why.empty()) {
      // Of what does not fit, the one that needs least is told of.
      if (!best.fits && (best.why.empty() || plan.total_bytes() < best.plan.total_bytes())) {
        best = {.setup = setup_, .plan = std::move(plan), .fits = false, .why = why};
      }
      return;
    }
    std::uint64_t const more = last_that_fits(batches_.size() - from, [&](std::uint64_t count) {
      setup_.batch = batches_[from + count - 1];
      plan_activations(setup_, plan);
      return refusal(*asked_, setup_, plan).empty();
    });
    setup_.batch = batches_[from + more - 1];
    setup_.micro_steps = share_ / setup_.batch;
    Candidate found{.setup = setup_, .plan = plan_device(setup_), .fits = true};
    found.seconds = asked_->step(setup_);
    if (!best.fits || cost(found) < cost(best)) best = std::move(found);
  }

  Question const* asked_;
  Setup setup_;
  std::uint64_t share_ = 0;
  std::vector<std::uint64_t> batches_;
};

/// Why no stage can have this model-parallel degree; empty if one may.
[[nodiscard]] inline std::string refuse_degree(Question const& question, int degree) {
  Setup const& setup = question.setup;
  auto const models = static_cast<std::uint64_t>(setup.ranks / degree);
  try {
    require_sizes(setup.model, degree);
  } catch (Error const& error) {
    return error.message();
  }
  if (question.sequences % models != 0) {
    return "makes " + std::to_string(models) + " models, which cannot share " +
           std::to_string(question.sequences) + " sequences evenly";
  }
  return {};
}

}  // namespace detail

/// Plans and simulates all stages with model-parallel degrees that are powers of two within a node,
/// all places for activations, and of each the largest micro-batch that fits. Of configurations
/// that take or send the same, the one that recomputes less comes first, then the one that holds
/// less.
/// @throws Error (invalid_argument) for sizes that make no sense
/// @par Cost  some hundred plans, and as many simulated steps of each that fits: seconds
[[nodiscard]] inline Advice advise(Question const& question) {
  if (question.sequences < 1) {
    fail(ErrorKind::invalid_argument, "a step has at least 1 sequence");
  }
  Advice advice;
  for (int degree = 1; degree <= question.cluster.devices_per_node; degree *= 2) {
    if (question.setup.ranks % degree != 0) break;
    Setup setup = question.setup;
    setup.model_parallel = degree;
    if (std::string why = detail::refuse_degree(question, degree); !why.empty()) {
      setup.policies.stage.clear();
      advice.rejected.push_back({.setup = setup, .why = std::move(why)});
      continue;
    }
    for (std::string const& stage : stage_names()) {
      Candidate least;
      bool found = false;
      for (std::string const& activations : activation_names()) {
        // One rank's share is the whole.
        if (activations == "pa" && degree == 1) continue;
        setup.policies.stage = stage;
        setup.activations = activations;
        Candidate one = detail::Finder(question, setup).find();
        if (one.fits) {
          advice.fitting.push_back(std::move(one));
          found = true;
        } else if (least.why.empty() || one.plan.total_bytes() < least.plan.total_bytes()) {
          least = std::move(one);
        }
      }
      if (!found) advice.rejected.push_back(std::move(least));
    }
  }
  auto const names = activation_names();
  auto const cost = [&](Candidate const& of) {
    auto const recomputed = std::find(names.begin(), names.end(), of.setup.activations);
    return std::tuple(question.by_time ? of.seconds : 0.,
                      of.plan.sent_bytes(),
                      recomputed - names.begin(),
                      of.plan.total_bytes());
  };
  std::stable_sort(advice.fitting.begin(),
                   advice.fitting.end(),
                   [&](Candidate const& a, Candidate const& b) { return cost(a) < cost(b); });
  return advice;
}

}  // namespace plan
