/// @file
/// Where the scalars of each tensor's rule lie in a step, and when they are computed.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/optimizer/step/rules.hpp"
#include "zero/optimizer/tables/kernels.hpp"

#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Where the scalars of each tensor are. Those of the first few combinations of a rule and scales
/// are computed when a step is decided. Further ones are computed before each use.
class Scalars {
 public:
  /// @param control   in the memory of the space
  /// @param capacity  combinations that are computed at once, at most
  ZERO_APART ZERO_COLD Scalars(Model const& model,
                               Rules const& rules,
                               StepControl* control,
                               std::size_t capacity);

  /// The combinations that are computed when a step is decided, in the order of `of_step()`.
  ZERO_APART [[nodiscard]] std::vector<TensorRule> const& at_once();
  /// Where they are computed to.
  [[nodiscard]] StepScalars* of_step() const noexcept { return control_->scalars(); }
  /// Those of a tensor in this step; null if they are still to be computed.
  ZERO_APART [[nodiscard]] StepScalars const* find(std::size_t storage) const noexcept;
  /// Where those of one tensor are computed to, to be used before others are.
  [[nodiscard]] StepScalars* of_one() const noexcept {
    return control_->scalars() + StepControl::rates;
  }
  /// A tensor's combination.
  ZERO_APART [[nodiscard]] TensorRule of(std::size_t storage) const noexcept;

 private:
  Model const* model_;
  Rules const* rules_;
  StepControl* control_;
  std::size_t capacity_;
  std::vector<TensorRule> at_once_;
  std::size_t known_ = ~std::size_t{0};  ///< how many rules of their own there were then
};

#if ZERO_BODIES

ZERO_BODY Scalars::Scalars(Model const& model,
                           Rules const& rules,
                           StepControl* control,
                           std::size_t capacity)
    : model_(&model), rules_(&rules), control_(control), capacity_(capacity) {
  at_once_.reserve(capacity);
}

ZERO_BODY TensorRule Scalars::of(std::size_t storage) const noexcept {
  Tensor const& tensor = model_->tensors[storage];
  return {rules_->of(storage), tensor.learning_rate, tensor.weight_decay, rules_->owned(storage)};
}

ZERO_BODY StepScalars const* Scalars::find(std::size_t storage) const noexcept {
  TensorRule const wanted = of(storage);
  for (std::size_t i = 0; i < at_once_.size(); ++i) {
    TensorRule const& known = at_once_[i];
    if (known.rule == wanted.rule && known.learning_rate_scale == wanted.learning_rate_scale &&
        known.weight_decay_scale == wanted.weight_decay_scale) {
      return of_step() + i;
    }
  }
  return nullptr;
}

ZERO_BODY std::vector<TensorRule> const& Scalars::at_once() {
  if (known_ == rules_->owned_count()) return at_once_;
  known_ = rules_->owned_count();
  at_once_.clear();
  for (std::size_t t = 0; t < model_->tensors.size() && at_once_.size() < capacity_; ++t) {
    if (model_->partition.place(t).frozen) continue;
    if (find(t) == nullptr) at_once_.push_back(of(t));
  }
  return at_once_;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
