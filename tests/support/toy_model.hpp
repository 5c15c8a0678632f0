/// @file
/// A model of awkward tensors and a loss whose gradients depend on parameters, step and
/// micro-batch.
#pragma once

#include "support/standard.hpp"
#include "zero/zero.hpp"

namespace toy {

/// Tied, frozen, empty, tiny and odd tensors; unit 4 is empty and unit 5 is frozen only.
inline std::vector<zero::Tensor> model(bool tied = true) {
  std::vector<zero::Tensor> tensors = {
      {.name = "wte", .shape = {37, 5}, .unit = 0},
      {.name = "wpe", .shape = {1031}, .unit = 0},
      {.name = "h0.w", .shape = {23, 89}, .unit = 1},
      {.name = "h0.frozen", .shape = {40}, .unit = 1, .frozen = true},
      {.name = "h0.b", .shape = {}, .unit = 1, .weight_decay = 0.f},
      {.name = "h1.none", .shape = {0, 7}, .unit = 2},
      {.name = "h1.c", .shape = {3}, .unit = 2, .learning_rate = 0.5f},
      {.name = "h2.w", .shape = {4097}, .unit = 3},
      {.name = "h3.frozen", .shape = {9}, .unit = 5, .frozen = true},
      {.name = "ln.g", .shape = {511}, .unit = 6, .weight_decay = 0.f},
      {.name = "head", .shape = {37, 5}, .unit = 6, .tied_to = "wte"},
  };
  if (!tied) tensors.pop_back();
  return tensors;
}

/// A number in [0, 1) that depends on all its arguments.
inline float uniform(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu;
  x ^= x >> 31;
  x *= 0x7fb5d329728ea185u;
  x ^= x >> 27;
  return static_cast<float>(x >> 40) * 0x1p-24f;
}

inline float initial_value(std::size_t tensor, std::size_t element) {
  return uniform(tensor, element, 1) - 0.5f;
}

/// Loads the model's initial values.
template <class Optimizer>
void load(Optimizer& optimizer) {
  optimizer.load_parameters(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial_value(t, first + i);
      });
}

/// Gradient of one micro-batch with respect to one use of a tensor.
/// @param use  tells a tied tensor's uses apart
inline float gradient(
    float parameter, std::size_t use, std::size_t element, long step, int micro_batch) {
  float const target = uniform(use, element, 7) - 0.5f;
  float const noise =
      uniform(use + 100, element, static_cast<std::uint64_t>(step * 1000 + micro_batch)) - 0.5f;
  float const pull = parameter - target;
  float const half = 0.5f * pull;
  return half + noise;
}

/// A fault in the data: one element of one micro-batch that is not a number.
struct Fault {
  long step = -1;
  int micro_batch = 0;
  std::size_t use = 2;
  std::size_t element = 1000;
};

/// What a training run is made of, policies aside.
struct Run {
  int ranks = 1;
  int micro_steps = 1;
  long steps = 25;
  std::size_t bucket_bytes = 1;
  double max_norm = std::numeric_limits<double>::infinity();
  bool weighted = false;  ///< micro-batches count by a number of tokens
  Fault fault{};
  bool tied = true;

  [[nodiscard]] double weight(int micro_batch) const {
    return weighted ? static_cast<double>(3 + micro_batch % 5) : 1.;
  }
};

/// Adds a micro-batch's gradients with respect to use `t` of its tensor.
template <class Parameter, class Wire>
void backward(Run const& run,
              std::size_t t,
              long step,
              int micro_batch,
              float loss_scale,
              std::span<Parameter const> parameters,
              std::span<Wire> gradients) {
  auto const weight = static_cast<float>(run.weight(micro_batch));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    float g = gradient(static_cast<float>(parameters[i]), t, i, step, micro_batch);
    if (step == run.fault.step && micro_batch == run.fault.micro_batch && t == run.fault.use &&
        i == run.fault.element) {
      g = std::numeric_limits<float>::quiet_NaN();
    }
    float const scaled = g * (weight * loss_scale);
    gradients[i] = Wire(static_cast<float>(gradients[i]) + scaled);
  }
}

}  // namespace toy
