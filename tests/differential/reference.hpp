/// @file
/// What a case must lead to, computed with plain loops over whole tensors.
#pragma once

#include "case.hpp"

#include <optional>
#include <string>
#include <vector>

namespace differential {

/// Whole tensors by index, as floats that hold what narrower types hold; tied ones stay empty, and
/// frozen ones have neither masters nor states.
struct Model {
  std::vector<std::vector<float>> parameters;
  std::vector<std::vector<float>> masters;
  std::vector<std::vector<std::vector<float>>> states;  ///< [state array][tensor]
};

/// What a step must say, as StepReport.
struct Report {
  long step = 0;
  bool skipped = false;
  double grad_norm = 0.;
  double clip_coefficient = 1.;
  float loss_scale = 1.f;
  double weight = 0.;
  long updated = 0;
};

/// One step of a case.
struct ExpectedStep {
  Model before;  ///< after its loads
  /// Of a checkpoint all numbers, or all bytes, so that ranks have yet to compare what they have.
  bool loads_all = false;
  Model after;
  Report report;
  bool fails = false;   ///< it, or its report, is an Error (data)
  bool blames = false;  ///< ranks tell each other which gradients are not finite
  bool updates = false;
  float next_loss_scale = 1.f;
  int streak = 0;             ///< as in Counters
  std::vector<long> steps{};  ///< updates of each tensor
};

/// What a tensor has of a checkpoint.
struct LoadedTensor {
  std::optional<std::vector<float>> values{};               ///< or its own
  std::optional<std::vector<std::vector<float>>> states{};  ///< [state array]; or zeros
  long count = 0;                                           ///< updates
};

/// A load of a checkpoint, after a case's own loads and before a step.
struct Loaded {
  int before = 0;                     ///< which step
  std::vector<LoadedTensor> tensors;  ///< by index; of tied ones, in whose memory they lie
  bool counts = true;                 ///< with states, and all that is counted
  long step = 0;                      ///< updates
  std::optional<float> loss_scale{};  ///< or its own
  int streak = 0;                     ///< with it
};

/// To the nearest that parameters can have; where there are two, to the even one, or to the one
/// away from zero; infinite beyond the largest.
float rounded(Number number, float x);

/// All steps of a case.
///
/// It includes nothing of the library. It relies on what the library promises to the bit:
/// - tensors of the second precision lie behind those of the first; units follow each other in the
///   element space, within a unit tensors as they were described, those tied to other units first;
///   runs of tensors that the same units use begin at multiples of 512 elements, tensors at
///   multiples of 32 (Tensor, Placement, Cluster);
/// - squares are added in fp64 in eight lanes of each 512 elements, lanes in a fixed tree, blocks
///   exactly (kernel/norm.hpp);
/// - gradients are summed in rank order in fp32, and rounded once to the type of the wire;
/// - a mean is formed by one fp32 factor, rounded from clip / (weight * loss scale) in fp64;
/// - a rule's multiply-adds are fused where the target fuses and rounded twice where it does not,
///   what depends on the step alone is computed in fp64 (base/math.hpp, the rules' comments).
/// @param loaded  null for a case that loads no checkpoint
std::vector<ExpectedStep> expect(Case const& test, Loaded const* loaded = nullptr);

}  // namespace differential
