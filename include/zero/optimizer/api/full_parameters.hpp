/// @file
/// The whole model at once, under every stage: to evaluate, to sample, to export.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/memory_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// All parameters of a model on every rank, from `full_parameters()`: views where each rank holds
/// all of them, copies in memory of their own where they are partitioned, and of stacked tensors
/// that the library owns.
///
/// Its destructor gives that memory back, to which nothing that a space has queued may refer any
/// more; spans taken from it are valid until then. Local and never blocks. `step()` refuses to
/// change parameters while there is one.
template <class Optimizer>
class FullParameters {
  using Steps = typename Optimizer::Steps;
  using Scratch = typename Optimizer::Arena::Scratch;

 public:
  using Parameter = typename Optimizer::Parameter;  ///< type of a parameter

  FullParameters(FullParameters const&) = delete;
  FullParameters& operator=(FullParameters const&) = delete;
  ~FullParameters() { steps_->release_all(); }

  /// Number of the model's tensors, tied and frozen ones included.
  [[nodiscard]] std::size_t size() const noexcept { return views_.size(); }
  /// A tensor by its number in the description: [its elements].
  /// @throws Error (invalid_argument) if there is none
  [[nodiscard]] std::span<Parameter const> operator[](std::size_t tensor) const& {
    parts_->require_tensor(tensor);
    return views_[tensor];
  }
  /// The tensor of that name: [its elements].
  /// @throws Error (invalid_argument) if there is none
  [[nodiscard]] std::span<Parameter const> operator[](std::string_view name) const& {
    for (std::size_t t = 0; t < views_.size(); ++t) {
      if (parts_->described[t].name == name) return views_[t];
    }
    fail(ErrorKind::invalid_argument, {"the model has no tensor '", name, "'"});
  }
  /// A view must not outlive its guard: give the guard a name.
  std::span<Parameter const> operator[](std::size_t) && = delete;
  std::span<Parameter const> operator[](std::string_view) && = delete;

 private:
  friend Optimizer;
  using Parts = typename Optimizer::Parts;
  static constexpr bool copied = Optimizer::form.refresh == StorageForm::Refresh::gather;
  /// Every copy begins at a cache line.
  static constexpr std::uint64_t line = 64 / sizeof(Parameter);

  FullParameters(Parts& parts, Steps& steps) : parts_(&parts), steps_(&steps) {
    auto const& places = parts.partition.placement().places();
    std::vector<std::uint64_t> offsets(places.size());
    std::uint64_t end = 0;
    std::size_t described = parts.described.size();
    for (std::size_t t = 0; t < places.size(); ++t) {
      if (!copies(t) || places[t].storage != t) continue;
      // Slices of one tensor lie one after the other.
      if (parts.slices[t].described != described) end = round_up(end, line);
      described = parts.slices[t].described;
      offsets[t] = end;
      end = checked_add(end, places[t].count);
    }
    if (end > 0) {
      auto const bytes = static_cast<std::size_t>(checked_mul(end, sizeof(Parameter)));
      memory_.emplace(parts.arena, bytes, Role::gather_pool);
    }
    std::vector<std::span<Parameter const>> slices(places.size());
    for (int const unit : parts.units) {
      steps.acquire_parameters(unit);
      for (std::size_t const t : parts.unit_tensors[static_cast<std::size_t>(unit)]) {
        slices[t] = steps.parameter_view(unit, t);
        if (!copies(t)) continue;
        auto* const copy = static_cast<Parameter*>(memory_->data()) + offsets[places[t].storage];
        if (places[t].storage == t) {
          parts.space().copy(copy, slices[t].data(), slices[t].size_bytes());
        }
        slices[t] = {copy, slices[t].size()};
      }
      steps.release_parameters(unit);
    }
    for (std::size_t d = 0; d < parts.described.size(); ++d) {
      views_.push_back(parts.whole(d, [&](std::size_t t) { return slices[t]; }));
    }
    steps.acquire_all();
  }

  /// Is there no memory in which all of the tensor lies?
  [[nodiscard]] bool copies(std::size_t t) const {
    bool const apart =
        !Optimizer::borrowed && parts_->described[parts_->slices[t].described].stacked;
    return apart || (copied && !parts_->partition.placement().places()[t].frozen);
  }

  Parts* parts_;
  Steps* steps_;
  std::optional<Scratch> memory_;
  std::vector<std::span<Parameter const>> views_;
};

}  // namespace zero::inline ZERO_NAMESPACE
