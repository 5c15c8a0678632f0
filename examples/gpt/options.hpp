/// @file
/// What the user of train_gpt can choose.
#pragma once

#include "model.hpp"
#include "zero/concepts/bucket.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

namespace gpt {

struct Options {
  std::vector<std::string> text;  ///< files; empty: the repository's own headers and README
  int ranks = 4;
  int model_parallel = 1;  ///< ranks that hold a model together; divides `ranks`
  std::string stage = "pos+g";
  std::string precision = "fp32";
  std::string rule = "adamw";
  Config model{};
  int batch = 4;                                ///< sequences per model and micro-batch
  int accumulate = 1;                           ///< micro-batches per model and step
  std::uint64_t bucket = zero::Bucket{}.bytes;  ///< bytes that travel together
  std::string activations = "keep";
  std::string configuration;  ///< that stage and activations are of; empty: they are the user's
  std::uint64_t budget = 0;   ///< bytes a rank may hold of all but the slower memory; 0: any
  int steps = 240;
  float learning_rate = 3e-3f;
  double clip = 1.;
  std::uint64_t seed = 1;
  std::string json;
  std::string compare;    ///< "stages" or "configurations"; empty: train once
  bool capacity = false;  ///< search for the largest model that trains in `budget` bytes
  int sample = 0;         ///< bytes to generate after training
  std::string save;       ///< directory of checkpoints; empty: none are saved
  int save_every = 0;     ///< steps; 0: at the end alone
  int keep = 0;           ///< checkpoints; 0: all
  bool async_save = false;
  std::string resume;       ///< directory of checkpoints; empty: start anew
  std::string export_file;  ///< of the trained model; empty: none
  std::string base;         ///< file of the model to fine-tune; empty: train a new one
  int lora = 0;             ///< rank of its adapters; 0 without a base

  /// Linear warm-up over a tenth of the steps, then half a cosine down to a tenth of the rate.
  [[nodiscard]] float scheduled_rate(int step) const;
  /// How many models are trained on data of their own.
  [[nodiscard]] int models() const { return ranks / model_parallel; }
  [[nodiscard]] std::uint64_t tokens_per_step() const {
    return static_cast<std::uint64_t>(models()) * static_cast<std::uint64_t>(batch) *
           static_cast<std::uint64_t>(accumulate) * static_cast<std::uint64_t>(model.context);
  }
};

inline float Options::scheduled_rate(int step) const {
  int const warm_up = std::max(1, steps / 10);
  if (step < warm_up) {
    return learning_rate * static_cast<float>(step + 1) / static_cast<float>(warm_up);
  }
  double const done = static_cast<double>(step - warm_up) / std::max(1, steps - warm_up);
  double const share = 0.1 + 0.45 * (1. + std::cos(std::numbers::pi * done));
  return static_cast<float>(learning_rate * share);
}

}  // namespace gpt
