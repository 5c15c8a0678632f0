/// @file
/// Runs the library on the toy model and compares with the reference, bit for bit.
#pragma once

#include "reference.hpp"
#include "toy_model.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace toy {

/// The memory a borrowing trainer lends, with canaries around every tensor.
template <class Parameter, class Wire>
class LentMemory {
 public:
  static constexpr std::size_t margin = 16;

  LentMemory(std::vector<zero::Tensor> const& tensors, bool flat) : flat_(flat) {
    std::size_t total = 0;
    for (auto const& tensor : tensors) {
      offsets_.push_back(total);
      counts_.push_back(tensor.tied_to.empty() ? zero::element_count(tensor) : 0);
      total += counts_.back() + (flat ? 0 : margin);
    }
    count_ = total;
    parameters_.assign(total + 2 * margin, canary<Parameter>());
    gradients_.assign(total + 2 * margin, canary<Wire>());
    zero_gradients();
  }

  std::span<Parameter> parameters(std::size_t t) { return piece(parameters_, t); }
  std::span<Wire> gradients(std::size_t t) { return piece(gradients_, t); }
  void zero_gradients() {
    for (std::size_t t = 0; t < counts_.size(); ++t) {
      std::fill_n(gradients(t).begin(), counts_[t], Wire(0.f));
    }
  }
  template <class Optimizer>
  void bind_to(Optimizer& optimizer) {
    if (flat_) {
      optimizer.bind(std::span(parameters_).subspan(margin, count_),
                     std::span(gradients_).subspan(margin, count_));
      return;
    }
    std::vector<std::span<Parameter>> parameters;
    std::vector<std::span<Wire>> gradients;
    for (std::size_t t = 0; t < counts_.size(); ++t) {
      parameters.push_back(this->parameters(t));
      gradients.push_back(this->gradients(t));
    }
    optimizer.bind(std::span<std::span<Parameter> const>(parameters),
                   std::span<std::span<Wire> const>(gradients));
  }
  /// True if nothing was written outside a tensor.
  [[nodiscard]] bool intact() {
    std::vector<bool> inside(parameters_.size(), false);
    for (std::size_t t = 0; t < counts_.size(); ++t) {
      for (std::size_t i = 0; i < counts_[t]; ++i) inside[margin + offsets_[t] + i] = true;
    }
    for (std::size_t i = 0; i < inside.size(); ++i) {
      if (inside[i]) continue;
      if (std::memcmp(&parameters_[i], &canary_parameter_, sizeof(Parameter)) != 0) return false;
      if (std::memcmp(&gradients_[i], &canary_gradient_, sizeof(Wire)) != 0) return false;
    }
    return true;
  }

 private:
  template <class T>
  static T canary() {
    return T(-31337.f);
  }
  template <class T>
  std::span<T> piece(std::vector<T>& memory, std::size_t t) {
    return std::span(memory).subspan(margin + offsets_[t], counts_[t]);
  }

  bool flat_;
  std::size_t count_ = 0;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> counts_;
  std::vector<Parameter> parameters_;
  std::vector<Wire> gradients_;
  Parameter canary_parameter_ = canary<Parameter>();
  Wire canary_gradient_ = canary<Wire>();
};

/// One rank's training loop: the one of the README.
template <class Optimizer, class Outcome, class BetweenSteps>
void train_rank(Optimizer& optimizer,
                Run const& run,
                int rank,
                Outcome& outcome,
                BetweenSteps const& between_steps) {
  auto const& tensors = optimizer.tensors();
  std::vector<std::vector<std::size_t>> members(optimizer.units().size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    members[static_cast<std::size_t>(tensors[t].unit)].push_back(t);
  }
  for (long step = 0; step < run.steps; ++step) {
    for (int micro = 0; micro < run.micro_steps; ++micro) {
      int const batch = rank * run.micro_steps + micro;
      if (run.micro_steps > 1 || run.weighted) {
        optimizer.micro_step(
            {.weight = run.weight(batch), .last = micro + 1 == run.micro_steps && step % 2 == 0});
      }
      for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit).size());
      for (std::size_t u = members.size(); u-- > 0;) {
        auto const weights = optimizer.parameters(static_cast<int>(u));
        auto gradients = optimizer.gradients(static_cast<int>(u));
        for (std::size_t i = members[u].size(); i-- > 0;) {
          backward(
              run, members[u][i], step, batch, optimizer.loss_scale(), weights[i], gradients[i]);
        }
        optimizer.reduce(std::move(gradients));
      }
      between_steps();
    }
    zero::StepReport const report =
        optimizer.step({.max_norm = run.max_norm, .non_finite = zero::NonFinite::skip});
    outcome.norms.push_back(report.grad_norm);
    outcome.skipped.push_back(report.skipped);
  }
  outcome.loss_scale = optimizer.loss_scale();
}

/// Copies what a rank owns into full arrays; `written` finds elements that nobody owns.
template <class Optimizer, class Outcome>
void collect(Optimizer const& optimizer, Outcome& outcome) {
  optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto const& master, auto const& states) {
        auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
        std::copy(master.begin(), master.end(), outcome.master[t].begin() + std::ptrdiff_t(first));
        for (std::size_t k = 0; k < outcome.states.size(); ++k) {
          std::copy(states[k].begin(),
                    states[k].end(),
                    outcome.states[k][t].begin() + std::ptrdiff_t(first));
        }
      });
}

/// Does every rank see Parameter(master) of every tensor, and frozen tensors unchanged?
template <class Optimizer, class Outcome>
bool parameters_match(Optimizer& optimizer, Outcome const& outcome) {
  using Parameter = typename Optimizer::Parameter;
  auto const& places = optimizer.partition().placement().places();
  bool match = true;
  for (int const unit : optimizer.units()) {
    auto const weights = optimizer.parameters(unit);
    std::size_t i = 0;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      if (optimizer.tensors()[t].unit != unit) continue;
      std::span<Parameter const> const view = weights[i++];
      std::size_t const storage = places[t].storage;
      match = match && view.size() == places[t].count;
      for (std::size_t e = 0; match && e < view.size(); ++e) {
        Parameter const expected = places[t].frozen ? Parameter(initial_value(storage, e))
                                                    : Parameter(outcome.master[storage][e]);
        match = std::memcmp(&view[e], &expected, sizeof(Parameter)) == 0;
      }
    }
  }
  return match;
}

/// Policies under test.
template <class StageT,
          class PrecisionT,
          class RuleT = zero::AdamW,
          class AccumulationT = zero::AccumulateNone,
          class MemoryT = zero::Owned<>>
struct Setup {
  using Stage = StageT;
  using Precision = PrecisionT;
  using Rule = RuleT;
  using Accumulation = AccumulationT;
  using Memory = MemoryT;
  Rule rule{};
  Precision precision{};
  bool flat = false;  ///< borrowed only: one flat buffer instead of separate tensors
};

/// Trains with the library; empty if some rank's view of the parameters was wrong.
template <class S>
Outcome<typename S::Precision, typename S::Rule> train(S const& setup, Run const& run) {
  using Parameter = typename S::Precision::Parameter;
  using Wire = typename S::Precision::Wire;
  using Result = Outcome<typename S::Precision, typename S::Rule>;
  // A reference that trains for no steps has arrays of the right sizes.
  Run none = run;
  none.steps = 0;
  Result const blank = Reference<typename S::Precision, typename S::Rule, typename S::Accumulation>(
                           none, setup.rule, setup.precision)
                           .train();
  std::vector<Result> own(static_cast<std::size_t>(run.ranks), blank);
  std::vector<int> wrong(static_cast<std::size_t>(run.ranks), 0);
  Result merged = blank;
  std::mutex mutex;
  zero::run_ranks(run.ranks, [&](zero::InProcess& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    zero::ShardedOptimizer optimizer{comm,
                                     model(run.tied),
                                     typename S::Stage{},
                                     setup.precision,
                                     setup.rule,
                                     typename S::Accumulation{},
                                     typename S::Memory{},
                                     zero::Bucket{run.bucket_bytes}};
    LentMemory<Parameter, Wire> lent(optimizer.tensors(), setup.flat);
    if constexpr (S::Memory::borrowed) lent.bind_to(optimizer);
    optimizer.load_parameters(
        [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
          auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial_value(t, first + i);
        });
    train_rank(optimizer, run, comm.rank(), own[rank], [&] {
      if constexpr (S::Memory::borrowed) {
        // What was reduced may be overwritten once the bucket has travelled.
        if (run.micro_steps == 1) optimizer.reduce_all();
        if (run.micro_steps == 1) lent.zero_gradients();
      }
    });
    {
      std::lock_guard const lock(mutex);
      collect(optimizer, merged);
    }
    collect(optimizer, own[rank]);
    zero::run(comm, zero::Collective{.op = zero::Op::all_reduce});
    if (!parameters_match(optimizer, merged)) wrong[rank] += 1;
    if (optimizer.held() != optimizer.plan().memory) wrong[rank] += 10;
    if (!lent.intact()) wrong[rank] += 100;
  });
  for (std::size_t rank = 0; rank < own.size(); ++rank) {
    CHECK_MESSAGE(wrong[rank] == 0,
                  "rank " << rank << ": 1 views, 10 plan, 100 canaries: " << wrong[rank]);
    CHECK(own[rank].norms == own[0].norms);
    CHECK(own[rank].skipped == own[0].skipped);
    CHECK(own[rank].loss_scale == own[0].loss_scale);
    if (!S::Stage::sharding.optimizer) CHECK(own[rank].master == own[0].master);
  }
  merged.norms = own[0].norms;
  merged.skipped = own[0].skipped;
  merged.loss_scale = own[0].loss_scale;
  return merged;
}

template <class S>
Outcome<typename S::Precision, typename S::Rule> reference(S const& setup, Run const& run) {
  return Reference<typename S::Precision, typename S::Rule, typename S::Accumulation>(
             run, setup.rule, setup.precision)
      .train();
}

/// Number of elements whose bits differ, over all arrays.
template <class Result>
std::size_t differing_bits(Result const& a, Result const& b) {
  std::size_t different = 0;
  auto const compare = [&](auto const& x, auto const& y) {
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::memcmp(&x[i], &y[i], sizeof(x[i])) != 0) ++different;
    }
  };
  for (std::size_t t = 0; t < a.master.size(); ++t) {
    compare(a.master[t], b.master[t]);
    for (std::size_t k = 0; k < a.states.size(); ++k) compare(a.states[k][t], b.states[k][t]);
  }
  return different;
}

/// Trains both ways and checks that nothing differs in a single bit.
template <class S>
void check_equal(S const& setup, Run const& run) {
  INFO("stage " << std::string(S::Stage::name) << ", precision " << std::string(S::Precision::name)
                << ", rule " << std::string(S::Rule::name) << ", accumulation "
                << std::string(S::Accumulation::name) << ", borrowed " << S::Memory::borrowed
                << ", flat " << setup.flat << ", ranks " << run.ranks << ", bucket "
                << run.bucket_bytes << ", micro-steps " << run.micro_steps << ", weighted "
                << run.weighted << ", max norm " << run.max_norm);
  auto const expected = reference(setup, run);
  auto const got = train(setup, run);
  CHECK(differing_bits(got, expected) == 0);
  CHECK(got.norms == expected.norms);
  CHECK(got.skipped == expected.skipped);
  CHECK(got.loss_scale == expected.loss_scale);
}

}  // namespace toy
