/// @file
/// The parts of a LibTorch model that are gathered and released one after the other.
#pragma once

#include "zero/adapt/libtorch/describe.hpp"
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
  /// A unit that is named by its number.
  /// @param module  a holder such as `torch::nn::Linear`, a pointer, or a module; outlives what is
  ///   made of the unit
  template <detail::HasModule M>
  Unit(M const& module) : Unit({}, module) {}  // NOLINT: so that a list of modules is one of units
  /// @param name    what the names of its parameters begin with
  /// @param module  as above
  template <detail::HasModule M>
  Unit(std::string name, M const& module)
      : name_(std::move(name)),
        module_(&const_cast<torch::nn::Module&>(
            static_cast<torch::nn::Module const&>(detail::module_of(module)))) {}

  /// What the names of its parameters begin with; empty for its number.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// The module.
  [[nodiscard]] torch::nn::Module& module() const noexcept { return *module_; }

 private:
  std::string name_;
  torch::nn::Module* module_;
};

namespace detail {

/// The unit that a module is, or their number.
[[nodiscard]] inline std::size_t unit_of(std::vector<Unit> const& units,
                                         torch::nn::Module const& module) {
  auto const is_it = [&](Unit const& unit) { return &unit.module() == &module; };
  return static_cast<std::size_t>(std::find_if(units.begin(), units.end(), is_it) - units.begin());
}

/// Adds a module's parameters, without those of units within it.
inline void add_unit(Description& model,
                     std::vector<Unit> const& units,
                     int unit,
                     std::string const& prefix,
                     torch::nn::Module& module) {
  refuse_sparse(prefix, module);
  for (auto const& each : module.named_parameters(false)) {
    add(model, joined(prefix, each.key()), each.value(), unit);
  }
  for (auto const& child : module.named_children()) {
    if (unit_of(units, *child.value()) < units.size()) continue;
    add_unit(model, units, unit, joined(prefix, child.key()), *child.value());
  }
}

}  // namespace detail

/// Describes the parameters of units, in the order of the forward pass: unit after unit, each named
/// by its unit's name, or number, and its own. Otherwise as for one module. Local.
/// @param units  modules, each once
/// @throws Error (invalid_argument) as for one module; for a module that is there twice, and for
///   one without parameters of its own
[[nodiscard]] inline Description describe(std::vector<Unit> const& units) {
  Description model;
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::string const name = units[u].name().empty() ? std::to_string(u) : units[u].name();
    if (detail::unit_of(units, units[u].module()) != u) {
      detail::refuse("unit", name, "is a module that is a unit before; list it once");
    }
    std::size_t const before = model.parameters.size();
    detail::add_unit(model, units, static_cast<int>(u), name, units[u].module());
    if (model.parameters.size() == before) {
      detail::refuse("unit", name, "has no parameters of its own; call its module without a unit");
    }
  }
  return model;
}

}  // namespace zero::inline ZERO_NAMESPACE::libtorch
