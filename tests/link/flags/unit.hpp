/// What translation units that are built with different flags offer each other: plain data and
/// what is thrown, of which both have the same idea.
#pragma once

#include <zero/layout/tensor.hpp>
#include <zero/optimizer/api/step_options.hpp>
#include <zero/optimizer/api/step_result.hpp>

#include <span>
#include <vector>

struct Unit {
  char const* name;
  /// Trains; the parameters afterwards are in `result`.
  zero::StepReport (*train)(std::vector<zero::Tensor> const& model, std::span<float> result);
  /// A result that crosses with an error in it.
  zero::StepResult (*fails)();
  /// Throws zero::Error; null in a unit that has no exceptions.
  void (*throws)();
  /// Does the unit's own catch clause see what `throws` throws, and what it says? Null as above.
  bool (*catches)(void (*throws)());
};
