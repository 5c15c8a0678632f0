/// @file
/// Plain data-parallel training in one thread: what every stage must reproduce bit for bit.
#pragma once

#include "support/toy_model.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace toy {

/// Everything a run leaves behind. Arrays are per tensor; tied and frozen ones stay empty.
template <class Precision, class Rule>
struct Outcome {
  using Master = typename Precision::Master;
  using State = typename Precision::State;
  std::vector<std::vector<Master>> master;
  std::vector<std::vector<std::vector<State>>> states;  ///< [state array][tensor]
  std::vector<double> norms;
  std::vector<bool> skipped;
  float loss_scale = 1.f;

  friend bool operator==(Outcome const&, Outcome const&) = default;
};

/// Trains without any of the library's partition, buckets, kernels or communicators. It shares with
/// it the rules' element functions, the 16-bit conversions, the placement that numbers elements for
/// the norm, and the exact sum; each has tests of its own.
template <class Precision, class Rule, class Accumulation>
class Reference {
 public:
  using Parameter = typename Precision::Parameter;
  using Wire = typename Precision::Wire;

  Reference(Run const& run, Rule const& rule, Precision const& precision)
      : run_(run), rule_(rule), model_(model(run.tied)), placement_(model_) {
    if constexpr (Precision::loss_scaled) scale_ = zero::LossScale(precision.loss_scale);
    if constexpr (!Precision::loss_scaled) scale_ = zero::LossScale({.initial = 1.f});
    std::size_t const tensors = model_.size();
    outcome_.master.resize(tensors);
    outcome_.states.assign(Rule::states.size(), {});
    for (auto& state : outcome_.states) state.resize(tensors);
    parameters_.resize(tensors);
    for (std::size_t t = 0; t < tensors; ++t) {
      auto const& place = placement_.places()[t];
      if (place.storage != t) continue;
      parameters_[t].resize(place.count);
      for (std::size_t i = 0; i < place.count; ++i) {
        parameters_[t][i] = Parameter(initial_value(t, i));
      }
      if (place.frozen) continue;
      outcome_.master[t].resize(place.count);
      for (std::size_t i = 0; i < place.count; ++i) outcome_.master[t][i] = initial_value(t, i);
      for (auto& state : outcome_.states) state[t].assign(place.count, 0.f);
    }
  }

  Outcome<Precision, Rule> train() {
    for (long step = 0; step < run_.steps; ++step) train_step(step);
    outcome_.loss_scale = scale_.value();
    return outcome_;
  }

 private:
  using Sums = std::vector<std::vector<float>>;

  /// What one rank's trainer leaves in its gradient buffers after micro-steps [first, last).
  std::vector<std::vector<Wire>> rank_gradients(long step, int rank, int first, int last) const {
    std::vector<std::vector<Wire>> gradients(model_.size());
    for (std::size_t t = 0; t < model_.size(); ++t) {
      if (trained(t)) gradients[t].assign(placement_.places()[t].count, Wire(0.f));
    }
    for (int micro = first; micro < last; ++micro) {
      // Backward order: a tied tensor's later use adds first.
      for (std::size_t t = model_.size(); t-- > 0;) {
        std::size_t const storage = placement_.places()[t].storage;
        if (!trained(storage)) continue;
        backward<Parameter, Wire>(run_,
                                  t,
                                  step,
                                  rank * run_.micro_steps + micro,
                                  scale_.value(),
                                  parameters_[storage],
                                  gradients[storage]);
      }
    }
    return gradients;
  }

  /// Adds ranks in order in fp32 and rounds once, as the wire does.
  Sums reduce(long step, int first, int last) const {
    Sums sums(model_.size());
    for (int rank = 0; rank < run_.ranks; ++rank) {
      auto const gradients = rank_gradients(step, rank, first, last);
      for (std::size_t t = 0; t < sums.size(); ++t) {
        if (rank == 0) sums[t].assign(gradients[t].size(), 0.f);
        for (std::size_t i = 0; i < sums[t].size(); ++i) {
          float const g = static_cast<float>(gradients[t][i]);
          sums[t][i] = rank == 0 ? g : sums[t][i] + g;
        }
      }
    }
    for (auto& tensor : sums) {
      for (float& sum : tensor) sum = static_cast<float>(Wire(sum));
    }
    return sums;
  }

  Sums reduce_step(long step) const {
    if constexpr (!Accumulation::reduced_shard) return reduce(step, 0, run_.micro_steps);
    Sums sums = reduce(step, 0, 1);
    for (int micro = 1; micro < run_.micro_steps; ++micro) {
      Sums const next = reduce(step, micro, micro + 1);
      for (std::size_t t = 0; t < sums.size(); ++t) {
        for (std::size_t i = 0; i < sums[t].size(); ++i) sums[t][i] += next[t][i];
      }
    }
    return sums;
  }

  /// The norm as the blueprint defines it: fp64 over blocks of 512 logical elements, eight lanes in
  /// a block, blocks added exactly.
  double norm_of(Sums const& sums) const {
    std::vector<double> elements;
    for (std::size_t t = 0; t < sums.size(); ++t) {
      if (!trained(t)) continue;
      auto const& place = placement_.places()[t];
      if (elements.size() < place.offset + place.count) elements.resize(place.offset + place.count);
      for (std::size_t i = 0; i < place.count; ++i) {
        elements[place.offset + i] = static_cast<double>(sums[t][i]);
      }
    }
    zero::ExactSum total;
    for (std::size_t begin = 0; begin < elements.size(); begin += 512) {
      double lanes[8] = {};
      for (std::size_t i = begin; i < std::min(begin + 512, elements.size()); ++i) {
        lanes[i % 8] += elements[i] * elements[i];
      }
      total.add(((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])));
    }
    return std::sqrt(total.value());
  }

  void train_step(long step) {
    Sums const sums = reduce_step(step);
    double weight = 0.;
    for (int batch = 0; batch < run_.ranks * run_.micro_steps; ++batch)
      weight += run_.weight(batch);
    bool finite = true;
    for (auto const& tensor : sums) {
      for (float const sum : tensor) finite = finite && std::isfinite(sum);
    }
    outcome_.skipped.push_back(!finite);
    if (!finite) {
      outcome_.norms.push_back(std::numeric_limits<double>::infinity());
      if (Precision::loss_scaled) scale_.learn(true);
      return;
    }
    double const norm = norm_of(sums) / (weight * scale_.value());
    outcome_.norms.push_back(norm);
    double const clip = norm > run_.max_norm ? run_.max_norm / norm : 1.;
    auto const scale = static_cast<float>(clip / (weight * static_cast<double>(scale_.value())));
    ++applied_;
    for (std::size_t t = 0; t < sums.size(); ++t) {
      if (trained(t)) update(t, sums[t], scale);
    }
    if (Precision::loss_scaled) scale_.learn(false);
  }

  void update(std::size_t t, std::vector<float> const& sums, float scale) {
    auto const scalars =
        rule_.scalars(applied_, rule_.lr, model_[t].learning_rate, model_[t].weight_decay);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float p = outcome_.master[t][i];
      float states[8] = {};
      for (std::size_t k = 0; k < outcome_.states.size(); ++k) states[k] = outcome_.states[k][t][i];
      rule_.template update<float>(scalars, p, sums[i] * scale, states);
      for (std::size_t k = 0; k < outcome_.states.size(); ++k) outcome_.states[k][t][i] = states[k];
      outcome_.master[t][i] = p;
      parameters_[t][i] = Parameter(p);
    }
  }

  [[nodiscard]] bool trained(std::size_t t) const {
    auto const& place = placement_.places()[t];
    return place.storage == t && !place.frozen;
  }

  Run run_;
  Rule rule_;
  std::vector<zero::Tensor> model_;
  zero::Placement placement_;
  std::vector<std::vector<Parameter>> parameters_;
  Outcome<Precision, Rule> outcome_;
  zero::LossScale scale_;
  long applied_ = 0;
};

}  // namespace toy
