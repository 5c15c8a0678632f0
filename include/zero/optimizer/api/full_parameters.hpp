/// @file
/// The whole model at once, under every stage: to evaluate, to sample, to export.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/api/guards.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/held/elements.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// All parameters, held for a reader: views, or copies where no memory has all of a tensor.
class WholeModel {
 public:
  /// Collective where parameters are partitioned; blocks.
  ZERO_APART ZERO_COLD explicit WholeModel(Engine& engine);
  WholeModel(WholeModel const&) = delete;
  WholeModel& operator=(WholeModel const&) = delete;
  ~WholeModel() { end_(*engine_); }

  [[nodiscard]] std::size_t size() const noexcept { return views_.size(); }
  ZERO_APART [[nodiscard]] Elements operator[](std::size_t tensor) const {
    engine_->model().require_tensor(tensor);
    return views_[tensor];
  }
  /// @throws Error (invalid_argument) if there is none, or its elements are not of that type
  ZERO_APART [[nodiscard]] Elements of(std::size_t tensor, DType asked) const;
  /// @overload
  ZERO_APART [[nodiscard]] Elements of(std::string_view name, DType asked) const;

 private:
  Engine* engine_;
  void (*end_)(Engine&) noexcept = nullptr;
  std::optional<Arena::Scratch> memory_;
  std::vector<Elements> views_;
};

}  // namespace detail

/// All parameters of a model on every rank, from `full_parameters()`: views where each rank holds
/// all of them, copies in memory of their own where they are partitioned, and of stacked tensors
/// that the library owns.
///
/// Its destructor gives that memory back, to which nothing that a space has queued may refer any
/// more; spans taken from it are valid until then. Local and never blocks. `step()` refuses to
/// change parameters while there is one.
template <class Optimizer>
class FullParameters {
 public:
  using Parameter = typename Optimizer::Parameter;  ///< type of a parameter

  FullParameters(FullParameters const&) = delete;
  FullParameters& operator=(FullParameters const&) = delete;
  ~FullParameters() = default;

  /// Number of the model's tensors, tied and frozen ones included.
  [[nodiscard]] std::size_t size() const noexcept { return whole_.size(); }
  /// A tensor by its number in the description: [its elements].
  /// @throws Error (invalid_argument) if there is none
  [[nodiscard]] std::span<Parameter const> operator[](std::size_t tensor) const& {
    return as<Parameter>(tensor);
  }
  /// The tensor of that name: [its elements].
  /// @throws Error (invalid_argument) if there is none
  [[nodiscard]] std::span<Parameter const> operator[](std::string_view name) const& {
    return as<Parameter>(name);
  }
  /// A tensor whose elements are of another type than `Parameter`: [its elements].
  /// @tparam T  their type
  /// @throws Error (invalid_argument) if there is no such tensor, or its elements are of another
  ///   type
  template <Element T>
  [[nodiscard]] std::span<T const> as(std::size_t tensor) const& {
    return whole_.of(tensor, dtype_of<T>).template as<T const>();
  }
  /// @overload
  template <Element T>
  [[nodiscard]] std::span<T const> as(std::string_view name) const& {
    return whole_.of(name, dtype_of<T>).template as<T const>();
  }

 private:
  friend Optimizer;
  // Private, with a sentence: a concept that asks for it gets a no.
  template <class Key>
  std::span<Parameter const> operator[](Key const&) && {
    static_assert(!detail::is_temporary<FullParameters>,
                  "zero: a view must not outlive its guard, which ends with this statement: give "
                  "the guard a name");
    return {};
  }
  template <class T, class Key>
  std::span<T const> as(Key const& key) && {
    static_cast<void>(std::move(*this)[key]);
    return {};
  }

  explicit FullParameters(detail::Engine& engine) : whole_(engine) {}

  detail::WholeModel whole_;
};

}  // namespace zero::inline ZERO_NAMESPACE
