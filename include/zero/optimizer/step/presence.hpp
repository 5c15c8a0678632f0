/// @file
/// Which tensors have a gradient in a step, as far as this rank was told.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What this rank says about each tensor's gradient of a step: that it gives one, that there is
/// none, or nothing. Moves no data.
///
/// A tensor that no rank gives and all declare absent rests. What was told of several micro-steps
/// adds up: one gradient is enough. Tied tensors have one gradient, which rests where all of them
/// are absent. Of a trainer that has memory of whole gradients, to add to without asking, nothing
/// can be known: its tensor has a gradient where nothing was said.
class Presence {
 public:
  /// What a rank says of a tensor.
  enum class Statement : std::int8_t { nothing, absent, present };

  ZERO_APART ZERO_COLD explicit Presence(Model const& model);

  /// The unit's gradients are added to in this micro-step, but for what was declared absent.
  ZERO_APART void open(int unit) noexcept;
  /// There is no gradient in this micro-step.
  /// @param by_trainer  else none was lent
  void declare(std::size_t tensor, bool by_trainer = true) noexcept {
    tensors_[tensor].now = Statement::absent;
    declared_ = true;
    by_trainer_ = by_trainer_ || by_trainer;
  }
  ZERO_APART void declare_unit(int unit) noexcept;
  /// What nothing was said about in this micro-step is as `what(t)` says.
  template <class What>
  void complete(What const& what) noexcept {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].now != Statement::nothing) continue;
      tensors_[t].now = what(t);
      declared_ = declared_ || absent_now(t);
    }
  }
  /// The trainer has got memory of a tensor's whole gradient, for all steps from now on.
  void hold(std::size_t tensor) noexcept { tensors_[storage_of(tensor)].held = true; }
  /// The tensors of a unit.
  [[nodiscard]] std::vector<std::size_t> const& tensors(int unit) const noexcept {
    return model_->unit_tensors[static_cast<std::size_t>(unit)];
  }
  /// Was a tensor declared absent in this micro-step?
  [[nodiscard]] bool absent_now(std::size_t tensor) const noexcept {
    return tensors_[tensor].now == Statement::absent;
  }
  /// Was any, in this step?
  [[nodiscard]] bool any_declared() const noexcept { return declared_; }
  /// Is there nothing in a storage's gradients, whatever its memory holds?
  /// @param step  of the whole step until now, or of this micro-step alone
  ZERO_APART [[nodiscard]] bool empty(std::size_t storage, bool step) const noexcept;
  /// Ends a micro-step.
  ZERO_APART void fold() noexcept;

  /// All is said.
  ZERO_APART void conclude() noexcept;
  /// Does this rank give a gradient, in a step that is concluded?
  [[nodiscard]] bool gives(std::size_t storage) const noexcept { return tensors_[storage].gives; }
  /// Does the storage rest, if no rank gives a gradient?
  [[nodiscard]] bool may_rest(std::size_t storage) const noexcept {
    return tensors_[storage].may_rest;
  }
  [[nodiscard]] bool any_may_rest() const noexcept { return any_may_rest_; }
  /// Was nothing said about a tensor in it? So it must be on all ranks, or some have forgotten what
  /// others give.
  [[nodiscard]] bool silent(std::size_t tensor) const noexcept {
    return statement(tensor) == Statement::nothing && trained(tensor);
  }
  /// Was nothing said about a storage, in none of its tensors, and could nobody know better?
  [[nodiscard]] bool unsaid(std::size_t storage) const noexcept { return tensors_[storage].unsaid; }
  /// Of how many tensors nothing was said.
  [[nodiscard]] std::int64_t silent_count() const noexcept { return silent_count_; }
  /// Is there no gradient of any tensor in it, though none was declared absent? Then all that were
  /// to be lent are empty.
  [[nodiscard]] bool all_empty() const noexcept { return all_empty_; }
  /// What was said in the step.
  [[nodiscard]] Statement statement(std::size_t tensor) const noexcept {
    return statement(tensor, true);
  }
  /// In a step that is concluded, what nothing was said about was declared absent.
  ZERO_APART void rest_unsaid() noexcept;
  /// A step begins.
  ZERO_APART void reset() noexcept;

  /// May the storage have missed an update? If not, it has as many as the run.
  [[nodiscard]] bool may_have_rested(std::size_t storage) const noexcept {
    return tensors_[storage].rested;
  }
  void set_rested(std::size_t storage, bool rested) noexcept { tensors_[storage].rested = rested; }

 private:
  /// What is known of a tensor, or of the storage that it is of.
  struct Known {
    Statement now = Statement::nothing;     ///< in this micro-step
    Statement before = Statement::nothing;  ///< in those of the step before it
    bool gives = false;
    bool may_rest = false;
    bool unsaid = false;
    bool held = false;    ///< by the trainer, who may have added to it
    bool rested = false;  ///< in some step
  };

  [[nodiscard]] Statement statement(std::size_t tensor, bool step) const noexcept {
    Known const& known = tensors_[tensor];
    return step ? (std::max)(known.before, known.now) : known.now;
  }
  [[nodiscard]] std::size_t storage_of(std::size_t tensor) const noexcept {
    return model_->partition.place(tensor).storage;
  }
  [[nodiscard]] bool trained(std::size_t tensor) const noexcept {
    TensorPlace const& place = model_->partition.place(tensor);
    return !place.frozen && place.count > 0;
  }

  Model const* model_;
  std::vector<Known> tensors_;
  std::int64_t silent_count_ = 0;
  bool declared_ = false;
  bool by_trainer_ = false;
  bool all_empty_ = false;
  bool any_may_rest_ = false;
};

#if ZERO_BODIES

ZERO_BODY Presence::Presence(Model const& model) : model_(&model), tensors_(model.tensors.size()) {}

ZERO_BODY void Presence::open(int unit) noexcept {
  for (std::size_t const t : tensors(unit)) {
    if (!absent_now(t)) tensors_[t].now = Statement::present;
  }
}

ZERO_BODY void Presence::declare_unit(int unit) noexcept {
  for (std::size_t const t : tensors(unit)) declare(t);
}

ZERO_BODY bool Presence::empty(std::size_t storage, bool step) const noexcept {
  if (!declared_) return false;
  for (std::size_t t = storage; t < tensors_.size(); t = model_->next_tied[t]) {
    if (statement(t, step) != Statement::absent) return false;
  }
  return true;
}

ZERO_BODY void Presence::fold() noexcept {
  for (Known& known : tensors_) {
    known.before = (std::max)(known.before, std::exchange(known.now, Statement::nothing));
  }
}

ZERO_BODY void Presence::conclude() noexcept {
  silent_count_ = 0;
  any_may_rest_ = false;
  bool gives = false;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    Known& storage = tensors_[storage_of(t)];
    if (storage_of(t) == t) {
      storage.gives = false;
      storage.may_rest = trained(t);
      storage.unsaid = trained(t) && !storage.held;
    }
    if (!trained(t)) continue;
    Statement const said = statement(t);
    bool const nothing = said == Statement::nothing;
    storage.gives = storage.gives || said == Statement::present || (nothing && storage.held);
    storage.may_rest = storage.may_rest && said == Statement::absent;
    storage.unsaid = storage.unsaid && nothing;
    silent_count_ += nothing ? 1 : 0;
    gives = gives || storage.gives;
  }
  for (Known& known : tensors_) {
    known.rested = known.rested || known.may_rest;
    any_may_rest_ = any_may_rest_ || known.may_rest;
  }
  all_empty_ = any_may_rest_ && !gives && silent_count_ == 0 && !by_trainer_;
}

ZERO_BODY void Presence::rest_unsaid() noexcept {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    Known& storage = tensors_[t];
    if (storage_of(t) != t || !trained(t) || storage.gives) continue;
    storage.may_rest = storage.rested = any_may_rest_ = true;
  }
}

ZERO_BODY void Presence::reset() noexcept {
  for (Known& known : tensors_) known.before = known.now = Statement::nothing;
  declared_ = by_trainer_ = false;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
