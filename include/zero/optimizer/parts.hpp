/// @file
/// One rank's arrays and the parts that work on them, put together.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/optimizer/callables.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/held/arrays.hpp"
#include "zero/optimizer/held/held_arrays.hpp"
#include "zero/optimizer/held/staging.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/setup/rank_agreement.hpp"
#include "zero/optimizer/step/bucket_update.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/optimizer/step/gradient_norm.hpp"
#include "zero/optimizer/step/outcome.hpp"
#include "zero/optimizer/step/presence.hpp"
#include "zero/optimizer/step/randomness.hpp"
#include "zero/optimizer/step/reduction.hpp"
#include "zero/optimizer/step/refresh.hpp"
#include "zero/optimizer/step/rules.hpp"
#include "zero/optimizer/step/tensor_norms.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

inline constexpr std::array<std::int64_t, 3> none_refused{std::int64_t{1} << 62};
/// In place of a type: what is refused is a code, and the number is that of its array.
inline constexpr std::int64_t bad_code = -1;

/// How far a rank's step is, and what is known of the values that it starts from.
struct StepState {
  /// Forgotten with the gradients of a step.
  struct GradientState {
    double weight = 0.;      ///< of the micro-steps so far
    bool concluded = false;  ///< ranks have brought their squares together
  } gradients{};
  /// Have tensors of one content got values?
  struct Values {
    bool set = false;
    bool confirmed = false;  ///< by all ranks
    bool none = false;       ///< there are no such tensors
  };
  std::array<Values, 2> values{};  ///< by content
  [[nodiscard]] Values& of(Content content) noexcept {
    return values[static_cast<std::size_t>(content)];
  }
  [[nodiscard]] bool confirmed() const noexcept {
    return values[0].confirmed && values[1].confirmed;
  }
  std::vector<unsigned char> lost{};  ///< of each tensor, by loads that failed; empty if nothing is
  /// Of values that are being replaced the first that does not fit: place, number, type.
  std::array<std::int64_t, 3> refused = none_refused;
  Decide decided{};        ///< what the last step was to decide ...
  SetBy rate_from{};       ///< ... what set its learning rate ...
  FloatMode float_mode{};  ///< ... and of the thread that called it
};

/// The parts of one rank's optimizer: what is held first, then what works on it, in the order in
/// which data passes through. Its base is what no policy changes.
///
/// All array memory is the space's, and is reached through the space only.
struct Parts : Model {
  /// Allocates what the plan says. Local: whoever assembles has agreed with all ranks before.
  ZERO_APART ZERO_COLD explicit Parts(Agreed agreed);
  ZERO_COLD ~Parts() = default;
  Parts(Parts const&) = delete;
  Parts& operator=(Parts const&) = delete;

  [[nodiscard]] Ranks& comm() noexcept { return groups.comm(); }
  [[nodiscard]] Ranks const& comm() const noexcept { return groups.comm(); }
  [[nodiscard]] AnySpace const& space() const noexcept { return arena.space(); }
  /// Does this rank count what all ranks of its model axis have alike?
  [[nodiscard]] bool counts() const noexcept {
    return groups.model() == nullptr || groups.model()->rank() == 0;
  }
  /// Do other ranks of the grid have other parts of the model?
  [[nodiscard]] bool divided() const noexcept {
    return groups.model() != nullptr && groups.model()->size() > 1;
  }
  /// Does it answer for what it holds of a tensor? For what a model axis has alike the first does.
  [[nodiscard]] bool counts(std::size_t tensor) const noexcept {
    return counts() || tensors[tensor].partitioned;
  }
  void require_bound() const {
    bool const bound = parameters.lent().bound() && gradients.lent().bound();
    if (policies.borrowed && !bound) refuse_unbound();
  }
  ZERO_APART [[noreturn]] ZERO_COLD void refuse_unbound() const;
  /// Is one of `tensors` of this content?
  [[nodiscard]] bool has(Content content, std::size_t tensor) const noexcept {
    return types[partition.place(tensor).kind].opaque() == (content == Content::bytes);
  }
  /// Which of `tensors` are of it, listed when that is first asked; empty if all are.
  ZERO_APART [[nodiscard]] ZERO_COLD std::vector<bool> const& tensors_of(Content content);
  /// Of the values that a trainer loads of a described tensor.
  [[nodiscard]] DType value_type(std::size_t tensor) const {
    StorageTypes const& own = types[kind_of(tensor)];
    return own.opaque() ? own.parameter : kernels.types().value();
  }
  /// Has all loaded that a step enqueues, but for the communicator's.
  ZERO_APART ZERO_COLD void load(Kernels const& loading) const;

  PolicyFacts policies;
  StorageForm form;
  KindTypes types;
  RankGroups groups;
  Kernels kernels;
  Rules rules;
  Prefetch prefetch;
  Overflow overflow;
  Arena arena;
  StorageElements elements;
  ParameterStore parameters;
  GradientStore gradients;
  StepControl* control;
  TensorCounts tensor_counts;
  Randomness randomness;
  StateStore states;
  HeldArrays held;
  Staging staging;
  GradientNorm norm;
  Presence presence;
  Reduction reduction;
  BucketUpdate update;
  TensorNorms norms;
  ParameterRefresh refresh;
  Outcome outcome;
  UnitReaders readers;
  StepState now;
  std::vector<bool> numbers, bytes;  ///< what `tensors_of` has listed
};

#if ZERO_BODIES

ZERO_BODY Parts::Parts(Agreed agreed)
    : Model(std::move(agreed.described), std::move(agreed.slices), std::move(agreed.partition)),
      policies(agreed.setup.policies),
      form(policies.form()),
      types(std::move(agreed.types)),
      groups(std::move(agreed.groups)),
      kernels(agreed.setup.kernels, agreed.setup.space),
      rules(*this, *agreed.setup.rule_calls, agreed.setup.rule, kernels.rates_at_once()),
      prefetch(agreed.setup.prefetch),
      overflow(agreed.setup.overflow),
      arena(agreed.setup.allocator, AnySpace(*agreed.setup.space_calls, agreed.setup.space)),
      elements(storage_elements(partition, policies.choice(prefetch.depth, 0), types)),
      parameters(tensors, partition, form.parameters, types, elements, arena),
      gradients(*this, comm().rank(), form, types, elements, arena),
      control(
          reinterpret_cast<StepControl*>(arena.take(Role::control, elements.control_bytes).data())),
      tensor_counts(control, tensors.size()),
      randomness(
          *this,
          groups.model() == nullptr ? 0 : groups.model()->rank(),
          policies.random()
              ? tensor_counts.norms(policies.measures ? partition.placement().trained_tensors() : 0)
              : nullptr),
      states(comm().rank(), form.update == StorageForm::Update::share, types, elements, arena),
      held(comm(), partition, types, parameters, states),
      staging(partition, types, elements, arena),
      norm(comm().rank(),
           partition,
           &control->squares,
           space(),
           kernels,
           comm().adds_squares() && form.reduced != StorageForm::Reduced::sums,
           counts() ? nullptr : &tensors),
      presence(*this),
      reduction(policies, comm(), partition, gradients, norm, staging, presence, space(), kernels),
      update(
          *this, parameters, states, rules, presence, control, tensor_counts, randomness, kernels),
      norms(*this,
            comm().rank(),
            parameters,
            states,
            rules,
            presence,
            update,
            tensor_counts,
            space(),
            kernels,
            counts() ? nullptr : &tensors),
      refresh(
          form.refresh, comm(), partition, parameters, staging, elements, prefetch.depth, arena),
      outcome(groups.world(), control, space(), kernels, partition.placement().trained_tensors()),
      readers(units.size()) {
  bool const sums = form.reduced == StorageForm::Reduced::sums;
  for (std::size_t k = 0; k < partition.placement().trained_kinds(); ++k) {
    Kernels const those = kernels.of(k);
    if (types[k] == those.types() &&
        those.gradient() == (sums ? types[k].accumulate : types[k].wire)) {
      continue;
    }
    fail(ErrorKind::invalid_argument, "kernels are of other types than the policies");
  }
  LossScaleOptions const* const scaled = agreed.setup.loss_scale;
  StepControl initial;
  initial.loss_scale = LossScale(scaled != nullptr ? *scaled : LossScaleOptions{.initial = 1.f});
  initial.outcome.terms.loss_scale = initial.loss_scale.value();
  initial.outcome.terms.next_loss_scale = initial.loss_scale.value();
  space().upload(control, &initial, sizeof(initial));
  randomness.set(space(), agreed.setup.seed);
  bool masters = false;
  for (StorageTypes const& kind : types) masters = masters || kind.has_master();
  for (Content const content : {Content::numbers, Content::bytes}) {
    bool none = true;
    for (std::size_t t = 0; t < tensors.size(); ++t) none = none && !has(content, t);
    bool const lent = policies.borrowed && (content == Content::bytes || !masters);
    now.of(content) = {.set = lent || none, .confirmed = none, .none = none};
  }
  now.lost.reserve(tensors.size());
  // The first step may be captured.
  kernels.load([&](Kernels const& loading) { load(loading); });
}

ZERO_BODY std::vector<bool> const& Parts::tensors_of(Content content) {
  bool const opaque = content == Content::bytes;
  std::vector<bool>& listed = opaque ? bytes : numbers;
  if (listed.empty() && !now.of(opaque ? Content::numbers : Content::bytes).none) {
    std::vector<bool> those(tensors.size());
    for (std::size_t t = 0; t < those.size(); ++t) those[t] = has(content, t);
    listed.swap(those);
  }
  return listed;
}

ZERO_BODY void Parts::refuse_unbound() const {
  fail(ErrorKind::invalid_argument, "Borrowed<> memory is used before bind()");
}

ZERO_BODY void Parts::load(Kernels const& loading) const {
  loading.call(WriteTensorCounts{});
  loading.call(WriteStepWords{});
  loading.call(Conclude{});
  loading.call(Join{});
  loading.call(CountMissed{});
  reduction.load(loading);
  update.load(loading);
  for (std::size_t k = 0; k < partition.placement().trained_kinds(); ++k) {
    norm.load(loading.of(k));
    update.load_kind(loading.of(k));
  }
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
