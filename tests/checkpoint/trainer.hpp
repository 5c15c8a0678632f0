/// @file
/// A small training run whose checkpoints tests lose, damage and load again.
#pragma once

#include "checkpoint/model_files.hpp"
#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/checkpoint.hpp"
#include "zero/zero.hpp"

namespace checkpoint_tests {

/// Files of some blocks.
[[nodiscard]] inline std::vector<zero::Tensor> small_model() {
  return {{.name = "w", .shape = {37, 11}, .unit = 0},
          {.name = "fixed", .shape = {40}, .unit = 0, .frozen = true},
          {.name = "b", .shape = {}, .unit = 1},
          {.name = "v", .shape = {301}, .unit = 1}};
}

/// Master weights and states of a rank.
template <class Optimizer>
std::vector<float> owned(Optimizer& optimizer) {
  std::vector<float> all;
  optimizer.visit_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
    all.insert(all.end(), masters.begin(), masters.end());
    for (auto const& state : states) all.insert(all.end(), state.begin(), state.end());
  });
  return all;
}

/// One rank of the run.
template <class C>
class Trainer {
 public:
  using Optimizer = zero::ShardedOptimizer<C, zero::stage::PosG>;

  explicit Trainer(C& comm,
                   std::vector<zero::Tensor> tensors = small_model(),
                   zero::Bucket bucket = {1024})
      : optimizer_(comm, std::move(tensors), zero::stage::PosG{}, bucket) {
    toy::load(optimizer_);
  }
  [[nodiscard]] Optimizer& optimizer() noexcept { return optimizer_; }

  void step() {
    for (int const unit : optimizer_.units_backward()) {
      auto gradients = optimizer_.gradients(unit);
      std::size_t use = 0;
      for (std::size_t t = 0; t < optimizer_.tensors().size(); ++t) {
        if (optimizer_.tensors()[t].unit != unit) continue;
        auto const gradient = gradients[use++];
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = toy::uniform(t, i, static_cast<std::uint64_t>(optimizer_.steps())) - 0.5f;
        }
      }
      optimizer_.reduce(std::move(gradients));
    }
    optimizer_.step();
  }
  /// All that this rank owns, and the number of steps.
  [[nodiscard]] std::vector<float> contents() {
    std::vector<float> all = owned(optimizer_);
    all.push_back(static_cast<float>(optimizer_.steps()));
    return all;
  }

 private:
  Optimizer optimizer_;
};

/// Waits for all ranks.
template <class C>
void meet(C& comm) {
  float word = 0;
  zero::run(comm, {.op = zero::Op::all_reduce, .count = 1, .send = &word, .recv = &word});
}

}  // namespace checkpoint_tests
