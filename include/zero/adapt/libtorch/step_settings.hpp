/// @file
/// What trainers of LibTorch say between steps, and what a step leaves behind in their tensors.
#pragma once

#include "zero/base/config.hpp"
#include "zero/optimizer/api/step_options.hpp"

#include <torch/torch.h>

#include <optional>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch::detail {

/// A norm for the next step, where its options name none.
class Settings {
 public:
  void clip_next(double max_norm) noexcept { max_norm_ = max_norm; }
  /// What a step's options leave open. The norm counts once.
  [[nodiscard]] StepOptions complete(StepOptions options) noexcept {
    std::optional<double> const max_norm = std::exchange(max_norm_, std::nullopt);
    if (!options.max_norm) options.max_norm = max_norm;
    return options;
  }

 private:
  std::optional<double> max_norm_{};
};

/// A step changes values under graphs that autograd may still hold: their backward pass has to find
/// out.
inline void bump_versions(std::vector<torch::Tensor> const& parameters) {
  for (torch::Tensor const& parameter : parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
