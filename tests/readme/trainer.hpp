/// @file
/// The trainer around the guides' fragments, which may share a program: a model of two units on
/// made-up data.
#pragma once

#include <zero/zero.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ranges>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace {

/// Ends the test; NDEBUG has no say in it.
[[maybe_unused]] void require(bool condition) {
  if (!condition) std::abort();
}

struct Batch {
  float input = 0.f;
  double tokens = 0.;
};

[[maybe_unused]] constexpr std::array batches{Batch{1.f, 10.}, Batch{2.f, 30.}, Batch{0.5f, 20.}};

/// Describes the same two units as the README's first program.
[[maybe_unused]] std::vector<zero::Tensor> const model = {
    {.name = "embedding", .shape = {256, 32}, .unit = 0},
    {.name = "layer.w", .shape = {32, 32}, .unit = 1},
    {.name = "layer.b", .shape = {32}, .unit = 1, .weight_decay = 0.f},
};

[[maybe_unused]] void initial_values(zero::Tensor const& tensor,
                                     std::size_t first,
                                     std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((first + i) % (tensor.name.size() + 5)) / 100.f;
  }
}

/// Reads every parameter of the unit.
template <class Parameters>
void forward(Batch const& batch, int unit, Parameters const& w) {
  float sum = 0.f;
  for (std::size_t t = 0; t < w.size(); ++t) {
    for (auto const value : w[t]) sum += static_cast<float>(value) * batch.input;
  }
  require(w.unit() == unit && sum == sum);
}

/// The gradient of half the sum of squares of input times parameter, times `scale`.
template <class Parameters, class Gradients>
void backward(
    Batch const& batch, int unit, Parameters const& w, Gradients const& g, float scale = 1.f) {
  require(g.unit() == unit);
  for (std::size_t t = 0; t < w.size(); ++t) {
    require(w[t].size() == g[t].size());
    for (std::size_t i = 0; i < w[t].size(); ++i) {
      g[t][i] += batch.input * batch.input * static_cast<float>(w[t][i]) * scale;
    }
  }
}

/// One element of a parameter, on every rank: all of them ask for it.
template <class Optimizer>
double value(Optimizer& optimizer, std::string_view tensor, std::size_t element) {
  auto const all = optimizer.full_parameters();
  return static_cast<double>(all[tensor][element]);
}

}  // namespace
