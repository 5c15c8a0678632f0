/// @file
/// Published throughput of GPT-like models on A100 and H100, and the model that a few rows set.
#pragma once

#include "plan/model.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace plan {

/// One row: what was trained, how, and how fast.
struct Row {
  std::string cluster;
  std::string model;
  int layers;
  std::size_t hidden, heads, sequence;
  int ranks;
  std::uint64_t batch, micro_steps;
  bool recomputed;          ///< all blocks in the backward pass
  double published;         ///< tokens a second, of one device
  bool calibrates = false;  ///< sets the model, and is no prediction

  [[nodiscard]] Setup setup() const;
};

/// 22 rows of the benchmarks of MPT (GPT's kind without biases and positions), trained by PyTorch
/// FSDP that partitions parameters, gradients and states, in bf16 with FlashAttention-2.
/// @par Source  mosaicml/llm-foundry, scripts/train/benchmarking/README.md at 061f2c7
[[nodiscard]] std::vector<Row> rows();

/// Of a device's data sheet: what software reaches of matrix products, memory, fused attention.
using DeviceFractions = std::array<double, 3>;

/// Tokens a second of one device.
[[nodiscard]] double predict(Row const& row, DeviceFractions const& fractions);

/// The fractions of a cluster's device with which its rows that calibrate come out best.
[[nodiscard]] DeviceFractions calibrate(std::vector<Row> const& rows, std::string const& cluster);

}  // namespace plan
