/// @file
/// What a trainer holds while it works on a unit: views that keep their memory in place.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/optimizer/model.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// The tensors of one unit, in registration order, found by number or name.
class UnitTensors {
 public:
  UnitTensors(Model const& model, int unit)
      : model_(&model), own_(&model.unit_tensors[static_cast<std::size_t>(unit)]), unit_(unit) {}

  [[nodiscard]] int unit() const noexcept { return unit_; }
  [[nodiscard]] std::size_t size() const noexcept { return own_->size(); }
  [[nodiscard]] std::size_t index(std::integral auto i) const {
    if (static_cast<std::size_t>(i) >= own_->size()) refuse(static_cast<std::size_t>(i));
    return (*own_)[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] std::size_t index(std::string_view name) const {
    return model_->in_unit(unit_, name);
  }

 private:
  ZERO_APART [[noreturn]] ZERO_COLD void refuse(std::size_t i) const;

  Model const* model_;
  std::vector<std::size_t> const* own_;
  int unit_;
};

// Stands in the line after a sentence.
template <class Guard>
inline constexpr bool is_temporary = true;

/// Of a guard that has nothing any more.
ZERO_APART [[noreturn]] ZERO_COLD void refuse_spent(char const* what, char const* how);

#if ZERO_BODIES

ZERO_BODY void UnitTensors::refuse(std::size_t i) const {
  fail(ErrorKind::invalid_argument,
       {"unit ", unit_, " has ", own_->size(), " tensors, there is no number ", i});
}

ZERO_BODY void refuse_spent(char const* what, char const* how) {
  fail(ErrorKind::invalid_argument, {what, " are used after they were ", how});
}

#endif

}  // namespace detail

/// Full parameters of one unit: gathered if they are partitioned, a view if they are not.
///
/// Its destructor releases what was gathered; spans taken from it are valid until then. Local and
/// never blocks.
template <class Optimizer>
class UnitParameters {
 public:
  using Parameter = typename Optimizer::Parameter;  ///< type of a parameter

  /// Hands the unit over; the source holds nothing any more.
  UnitParameters(UnitParameters&& other) noexcept
      : optimizer_(std::exchange(other.optimizer_, nullptr)), tensors_(other.tensors_) {}
  UnitParameters& operator=(UnitParameters&&) = delete;
  ~UnitParameters() {
    if (optimizer_ != nullptr) optimizer_->release_parameters(tensors_.unit());
  }

  /// The unit whose parameters these are.
  [[nodiscard]] int unit() const noexcept { return tensors_.unit(); }
  /// Number of the unit's tensors, tied and frozen ones included.
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  /// The i-th tensor of the unit, in registration order: [its elements].
  /// @throws Error (invalid_argument) if there is none, its elements are of another type, or the
  ///   guard was moved from
  [[nodiscard]] std::span<Parameter const> operator[](std::size_t i) const& {
    return live().template parameter_view<Parameter>(tensors_.unit(), tensors_.index(i));
  }
  /// The unit's tensor of that name: [its elements].
  /// @throws Error (invalid_argument) if there is none, its elements are of another type, or the
  ///   guard was moved from
  [[nodiscard]] std::span<Parameter const> operator[](std::string_view name) const& {
    return live().template parameter_view<Parameter>(tensors_.unit(), tensors_.index(name));
  }
  /// A tensor whose elements are of another type than `Parameter`: [its elements].
  /// @tparam T   their type
  /// @param key  the tensor's number in the unit, or its name
  /// @throws Error (invalid_argument) as `operator[]`
  template <Element T, class Key>
  [[nodiscard]] std::span<T const> as(Key const& key) const& {
    return live().template parameter_view<T>(tensors_.unit(), tensors_.index(key));
  }
  /// The same memory for a C kernel that reads it and takes `float*`. To write there is an error
  /// that nothing finds: ranks no longer have the same model.
  [[nodiscard]] Parameter* data(std::size_t i) const& {
    return const_cast<Parameter*>((*this)[i].data());
  }
  /// @overload
  [[nodiscard]] Parameter* data(std::string_view name) const& {
    return const_cast<Parameter*>((*this)[name].data());
  }
  /// Would outlive its guard, as a view would.
  Parameter* data(std::size_t) && = delete;
  Parameter* data(std::string_view) && = delete;

 private:
  friend Optimizer;
  // Private, with a sentence: a concept that asks for it gets a no.
  template <class Key>
  std::span<Parameter const> operator[](Key const&) && {
    static_assert(!detail::is_temporary<UnitParameters>,
                  "zero: a view must not outlive its guard, which ends with this statement: give "
                  "the guard a name");
    return {};
  }
  template <class T, class Key>
  std::span<T const> as(Key const& key) && {
    static_cast<void>(std::move(*this)[key]);
    return {};
  }

  UnitParameters(Optimizer& optimizer, detail::UnitTensors tensors)
      : optimizer_(&optimizer), tensors_(tensors) {}

  [[nodiscard]] Optimizer& live() const {
    if (optimizer_ == nullptr) detail::refuse_spent("parameters", "moved elsewhere");
    return *optimizer_;
  }

  Optimizer* optimizer_;
  detail::UnitTensors tensors_;
};

/// Asks for a unit's gradients to write every element of, instead of adding to zeros.
struct Overwrite {
  /// Has `reduce` find elements that were not written, for two passes more: for finding mistakes.
  bool checked = false;
};
/// `optimizer.gradients(unit, zero::overwrite)`.
inline constexpr Overwrite overwrite{};

/// Full-size gradient buffers of one unit, to add to; `reduce(std::move(g))` spends them.
///
/// A guard that is dropped instead leaves what was added where it is, and the unit can be asked for
/// again. A guard ends with the micro-step or step it was asked for in, and in `reduce_all` and
/// `grad_norm`: it then refuses every use. Spans taken from it are invalid from then on, too.
template <class Optimizer>
class UnitGradients {
 public:
  using Wire = typename Optimizer::Wire;  ///< type of a gradient

  /// Hands the unit over; the source counts as spent.
  UnitGradients(UnitGradients&& other) noexcept
      : optimizer_(std::exchange(other.optimizer_, nullptr)),
        tensors_(other.tensors_),
        epoch_(other.epoch_),
        checked_(other.checked_) {}
  UnitGradients& operator=(UnitGradients&&) = delete;
  ~UnitGradients() = default;

  /// The unit whose gradients these are.
  [[nodiscard]] int unit() const noexcept { return tensors_.unit(); }
  /// Number of the unit's tensors, tied and frozen ones included.
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  /// The i-th tensor's gradients, in registration order: [its elements], empty for frozen ones.
  /// @throws Error (invalid_argument) if there is none, its gradients are of another type, or the
  ///   guard was spent or has ended
  [[nodiscard]] std::span<Wire> operator[](std::size_t i) const {
    return live().template gradient_view<Wire>(unit(), epoch_, tensors_.index(i));
  }
  /// The gradients of the unit's tensor of that name: [its elements], empty for frozen ones.
  /// @throws Error (invalid_argument) if there is none, its gradients are of another type, or the
  ///   guard was spent or has ended
  [[nodiscard]] std::span<Wire> operator[](std::string_view name) const {
    return live().template gradient_view<Wire>(unit(), epoch_, tensors_.index(name));
  }
  /// A tensor's gradients of another type than `Wire`: [its elements], empty for frozen tensors.
  /// @tparam T   their type
  /// @param key  the tensor's number in the unit, or its name
  /// @throws Error (invalid_argument) as `operator[]`
  template <Element T, class Key>
  [[nodiscard]] std::span<T> as(Key const& key) const {
    return live().template gradient_view<T>(unit(), epoch_, tensors_.index(key));
  }

 private:
  friend Optimizer;
  UnitGradients(Optimizer& optimizer,
                detail::UnitTensors tensors,
                std::uint64_t epoch,
                bool checked = false)
      : optimizer_(&optimizer), tensors_(tensors), epoch_(epoch), checked_(checked) {}

  [[nodiscard]] Optimizer& live() const {
    if (optimizer_ == nullptr) detail::refuse_spent("gradients", "given to reduce()");
    return *optimizer_;
  }

  Optimizer* optimizer_;
  detail::UnitTensors tensors_;
  std::uint64_t epoch_;
  bool checked_;
};

}  // namespace zero::inline ZERO_NAMESPACE
