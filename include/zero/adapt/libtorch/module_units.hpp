/// @file
/// The parts of a LibTorch model that are gathered and released one after the other.
#pragma once

#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/base/config.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch {

namespace detail {

/// The module itself: of a holder such as `torch::nn::Linear`, a pointer, or a module.
template <class M>
[[nodiscard]] auto& module_of(M& module) {
  if constexpr (std::derived_from<M, torch::nn::Module>) {
    return module;
  } else {
    return *module;
  }
}

/// What has a module.
template <class M>
concept HasModule = requires(M& module) {
  { module_of(module) } -> std::convertible_to<torch::nn::Module const&>;
};

}  // namespace detail

/// A module whose parameters are gathered together: a block of a transformer, an embedding. What
/// lies in a unit within it belongs to that one alone.
class Unit {
 public:
  /// @param module  a holder such as `torch::nn::Linear`, a pointer, or a module; outlives what is
  ///   made of the unit
  template <detail::HasModule M>
  Unit(M const& module)  // so that a list of modules is one of units
      : module_(&static_cast<torch::nn::Module const&>(detail::module_of(module))) {}

  /// The module.
  [[nodiscard]] torch::nn::Module const& module() const noexcept { return *module_; }

 private:
  torch::nn::Module const* module_;
};

namespace detail {

/// The number of the unit that a module is, or how many there are.
[[nodiscard]] inline std::size_t unit_of(std::vector<Unit> const& units,
                                         torch::nn::Module const& module) {
  auto const is_it = [&](Unit const& unit) { return &unit.module() == &module; };
  return static_cast<std::size_t>(std::find_if(units.begin(), units.end(), is_it) - units.begin());
}

/// Adds the parameters of a module and of all within it, in the order of `named_parameters()`, each
/// of the innermost unit that has it.
/// @param unit  the unit around the module; -1 for none
inline void add_units(Description& model,
                      std::vector<Unit> const& units,
                      int unit,
                      std::string const& prefix,
                      torch::nn::Module& module,
                      Frozen frozen) {
  std::size_t const own = unit_of(units, module);
  if (own < units.size()) {
    unit = static_cast<int>(own);
    model.units[own] = &module;
  }
  refuse_sparse(prefix, module);
  for (auto const& each : module.named_parameters(false)) {
    std::string name = joined(prefix, each.key());
    if (unit < 0) {
      refuse("parameter",
             name,
             "is in no unit, and would not be trained: make the module that has it a unit, too, "
             "if need be the whole model, and call that through forward()");
    }
    add(model, std::move(name), each.value(), unit, frozen);
  }
  for (auto const& child : module.named_children()) {
    add_units(model, units, unit, joined(prefix, child.key()), *child.value(), frozen);
  }
}

}  // namespace detail

/// Describes all parameters of a module, whose parts are called as units: names and order are those
/// of `describe(module)`, and so of `named_parameters()`. Local.
/// @param module  the whole model, as for `describe(module)`
/// @param units   modules within it, or itself, each once, in the order of the forward pass
/// @param frozen  as for the module alone
/// @throws Error (invalid_argument) as for the module alone; naming the parameter, for one that is
///   in no unit; for a unit that is there twice, is not within the module, or has no parameters
[[nodiscard]] inline Description describe(torch::nn::Module& module,
                                          std::vector<Unit> const& units,
                                          Frozen frozen = Frozen::stays) {
  Description model;
  model.units.resize(units.size());
  detail::add_units(model, units, -1, {}, module, frozen);
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::string const name = std::to_string(u);
    if (detail::unit_of(units, units[u].module()) != u) {
      detail::refuse("unit", name, "is a module that is a unit before; list it once");
    }
    if (model.units[u] == nullptr) {
      detail::refuse("unit", name, "is not within the module that is the whole model");
    }
    if (std::none_of(model.tensors.begin(), model.tensors.end(), [&](Tensor const& tensor) {
          return tensor.unit == static_cast<int>(u);
        })) {
      detail::refuse("unit", name, "has no parameters of its own; call its module without a unit");
    }
  }
  return model;
}

}  // namespace zero::inline ZERO_NAMESPACE::libtorch
