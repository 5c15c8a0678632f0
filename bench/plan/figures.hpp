/// @file
/// The paper's Figures 2, 3 and 4, and the model that a few of their points set.
#pragma once

#include "plan/model.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace plan {

/// One bar or point: TFLOP/s of a device.
struct Point {
  std::string figure;
  std::string model;
  bool zero;  ///< Pos+g with partitioned checkpoints, or data parallelism with Megatron
  int ranks, model_parallel, layers;
  std::size_t hidden, heads;
  std::uint64_t batch;  ///< sequences of a model
  double published;
  bool calibrates = false;  ///< sets the model, and is no prediction

  [[nodiscard]] Setup setup() const {
    // More than one model rank per attention head, or widths that they do not divide, do not occur.
    return {.model = {.layers = layers, .hidden = hidden, .heads = heads},
            .ranks = ranks,
            .model_parallel = model_parallel,
            .policies = {.stage = zero ? "pos+g" : "replicated", .precision = "fp16"},
            .activations = zero && model_parallel > 1 ? "pa" : "whole",
            .attention = "plain",
            .fused_rows = false,
            .batch = batch};
  }
};

/// Figures 2, 3 and 4, digitised from the pictures (about 0.3 TFLOP/s), with the shapes of the
/// SC'20 appendix. One point of each, and the baseline's of the largest model of the text, set the
/// four fractions of the model; the rest are predictions.
[[nodiscard]] std::vector<Point> points();

/// What is set: of data sheets' rates, how much software reached.
using Fractions = std::array<double, 4>;
inline constexpr std::array<char const*, 4> fraction_names{
    "matrix products", "memory", "links inside a node", "links between nodes"};

/// The fractions with which the points that calibrate come out best. None exceeds what data sheets
/// say.
/// @param smallest  step of a fraction that is tried
[[nodiscard]] Fractions calibrate(std::vector<Point> const& points, double smallest = 1.002);

/// TFLOP/s of a device.
[[nodiscard]] double predict(Point const& point, Fractions const& fractions);

}  // namespace plan
