/// @file
/// Training whose gradients have exact sums in any grouping, so that any number of ranks goes on to
/// the same bits; and what an optimizer holds, put together from all ranks.
#pragma once

#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/zero.hpp"

namespace checkpoint_tests {

/// Every step has so many micro-batches, which ranks share.
inline constexpr int micro_batches = 8;

/// An integer in [-7, 8], times 1/64: sums of eight of them are exact in every type.
inline float exact_gradient(std::size_t use, std::size_t element, long step, int micro_batch) {
  auto const at = static_cast<std::uint64_t>(step * micro_batches + micro_batch);
  float const whole = toy::uniform(use + 1, element, at) * 16.f;
  return (static_cast<float>(static_cast<int>(whole)) - 7.f) / 64.f;
}

/// Steps [first, last), each rank with its micro-batches.
/// @param place  `place(tensor, element)`: in the whole tensor, if ranks have parts
template <class Optimizer, class Place>
void train(Optimizer& optimizer,
           int rank,
           int ranks,
           long first,
           long last,
           zero::StepOptions const& options,
           Place const& place) {
  auto const& tensors = optimizer.tensors();
  for (long step = first; step < last; ++step) {
    int parts = 0;
    for (int m = rank; m < micro_batches; m += ranks) ++parts;
    optimizer.micro_step({.weight = static_cast<double>(parts), .last = true});
    if constexpr (Optimizer::borrowed) {
      // Lent gradients are the trainer's to clear.
      for (int const unit : optimizer.units()) {
        auto const gradients = optimizer.gradients(unit);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          for (auto& each : gradients[i]) each = typename Optimizer::Wire(0.f);
        }
      }
    }
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      std::size_t i = 0;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        if (tensors[t].unit != unit) continue;
        auto const own = gradients[i++];
        for (std::size_t e = 0; e < own.size(); ++e) {
          float sum = 0.f;
          for (int m = rank; m < micro_batches; m += ranks) {
            sum += exact_gradient(t, place(t, e), step, m);
          }
          using Wire = typename Optimizer::Wire;
          own[e] = Wire(static_cast<float>(own[e]) + sum * optimizer.loss_scale());
        }
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step(options);
  }
}
template <class Optimizer>
void train(Optimizer& optimizer, int rank, int ranks, long first, long last) {
  train(optimizer, rank, ranks, first, last, {.max_norm = 0.5}, [](auto, std::size_t element) {
    return element;
  });
}

/// Master weights, states and counters of all ranks, in whole tensors, and parameters as every rank
/// reads them.
struct Held {
  zero::Counters counters{};
  std::map<std::string, std::vector<std::vector<float>>> arrays{};
  std::map<std::string, std::vector<float>> parameters{};
  bool ranks_agree = true;
  friend bool operator==(Held const&, Held const&) = default;
};

/// Adds what a rank holds. Collective.
template <class Optimizer>
void collect(Optimizer& optimizer, Held& held, std::mutex& mutex) {
  zero::Counters const counters = optimizer.counters();
  {
    std::lock_guard const lock(mutex);
    held.counters = counters;
    optimizer.visit_owned(
        [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
          auto& arrays = held.arrays[tensor.name];
          arrays.resize(1 + states.size());
          for (auto& array : arrays) array.resize(zero::element_count(tensor));
          for (std::size_t i = 0; i < masters.size(); ++i) {
            arrays[0][first + i] = static_cast<float>(masters[i]);
            for (std::size_t k = 0; k < states.size(); ++k) {
              arrays[1 + k][first + i] = static_cast<float>(states[k][i]);
            }
          }
        });
  }
  if constexpr (Optimizer::on_host) {
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
      std::size_t i = 0;
      for (auto const& tensor : optimizer.tensors()) {
        if (tensor.unit != unit) continue;
        std::vector<float> values;
        for (auto const value : weights[i++]) values.push_back(static_cast<float>(value));
        std::lock_guard const lock(mutex);
        auto const [at, added] = held.parameters.try_emplace(tensor.name, values);
        held.ranks_agree = held.ranks_agree && (added || at->second == values);
      }
    }
    optimizer.settle();
  }
}

}  // namespace checkpoint_tests
