/// @file
/// An optimizer behind the C interface: an engine, and what a trainer in C holds of it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/c.h"
#include "zero/c/callbacks.hpp"
#include "zero/c/definition.hpp"
#include "zero/c/entry.hpp"
#include "zero/c/rank.hpp"
#include "zero/c/structs.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/seed.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/plan.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/full_parameters.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/callables.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/make_tables.hpp"
#include "zero/space/host.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// Pointers to fill or to read, as C has arrays.
template <class T>
struct Pointers {
  T* first = nullptr;      ///< null for none
  std::int32_t count = 0;  ///< of them
};

/// The functions of zero/c.h that have an optimizer, by the same names; their comments are there.
class COptimizer {
  using Elements = zero::detail::Elements;
  using LentSpans = zero::detail::LentSpans;
  using Form = StorageForm;

 public:
  /// Agrees with all ranks, and allocates.
  /// @param rank     outlives the optimizer
  /// @param model    its tensors
  /// @param options  what was chosen, and numbers
  COptimizer(AnyRank& rank, std::vector<Tensor> model, zero_options const& options)
      : entry_(options),
        rule_(std::move(*entry_.rule.made(options.rule, nullptr))),
        engine_(setup(rank, options), std::move(model)),
        uses_(engine_.model().units.size()) {}
  COptimizer(COptimizer const&) = delete;
  COptimizer& operator=(COptimizer const&) = delete;

  /// @cond
  [[nodiscard]] std::vector<Tensor> const& tensors() const { return engine_.model().described; }
  /// Tensors with updates of their own: each layer of a stacked one is.
  [[nodiscard]] std::size_t counted() const { return engine_.model().tensors.size(); }
  [[nodiscard]] std::span<int const> units() const { return engine_.model().units; }
  [[nodiscard]] Plan plan(std::uint64_t micro_steps) const { return engine_.plan(micro_steps); }
  [[nodiscard]] MemoryBytes held() const { return engine_.held(); }

  void bind(Pointers<void* const> parameters, Pointers<void* const> gradients) {
    bind_lists(parameters, gradients);
  }
  void bind(Pointers<zero_span const> parameters, Pointers<zero_span const> gradients) {
    bind_lists(parameters, gradients);
  }
  void bind(void* parameters, void* gradients, std::size_t count) {
    require_borrowed();
    engine_.bind_flat(Elements(parameters, count), Elements(gradients, count));
  }
  void bind_parameters(Pointers<zero_span const> parameters) {
    require_borrowed();
    LentSpans const lent = listed(parameters, "parameters", lent_parameters_);
    engine_.bind(&lent, nullptr);
  }
  void bind_parameters(void* parameters, std::size_t count) {
    require_borrowed();
    engine_.bind_flat(Elements(parameters, count), {});
  }
  void bind_gradients(Pointers<void* const> gradients) { bind_gradient_list(gradients); }
  void bind_gradients(Pointers<zero_span const> gradients) { bind_gradient_list(gradients); }
  void bind_gradients(void* gradients, std::size_t count) {
    require_borrowed();
    engine_.bind_flat({}, Elements(gradients, count));
  }
  void bind_unit(int unit, Pointers<zero_span const> gradients) {
    require_borrowed();
    static_cast<void>(use_of(unit));
    auto const& own = tensors_of(unit);
    require_all(own.size(), gradients.count, gradients.first, "gradients", "unit");
    lent_gradients_.clear();
    for (std::size_t i = 0; i < own.size(); ++i) {
      lent_gradients_.push_back(
          elements_of(gradients.first[i], engine_.model().tensors[own[i]].name, "gradients"));
    }
    engine_.bind_unit(unit, LentSpans(std::span<Elements const>(lent_gradients_)));
  }
  [[nodiscard]] bool gradients_free(int unit) {
    require_borrowed();
    static_cast<void>(use_of(unit));
    return engine_.gradients_free(unit);
  }
  void on_gradients_free(zero_gradients_told function, void* user) {
    require_borrowed();
    when_free_ = {function, user};
    engine_.on_gradients_free(zero::detail::FunctionRef<void(int)>(when_free_));
  }

  void load(zero::detail::Content content, zero::detail::ValueSource fill) {
    engine_.load(content, fill);
  }
  void broadcast(zero::detail::Content content, zero::detail::ValueSource fill, int root) {
    engine_.broadcast(content, fill, root);
  }
  void broadcast(int root) {
    if (gathers()) {
      fail(ErrorKind::invalid_argument,
           "zero_broadcast needs a stage under which ranks hold all parameters: call "
           "zero_broadcast_from");
    }
    engine_.broadcast(root);
  }
  void adopt() { engine_.adopt(); }

  [[nodiscard]] void* parameter(std::size_t tensor) {
    if (gathers()) {
      fail(ErrorKind::invalid_argument,
           "zero_parameter needs a stage under which ranks hold all parameters: call "
           "zero_parameters");
    }
    return engine_.whole_parameter(tensor).first;
  }
  [[nodiscard]] void* gradient(std::size_t tensor) {
    if (entry_.policies.form().gradients != Form::Gradients::whole) {
      fail(ErrorKind::invalid_argument,
           "zero_gradient needs full gradients that the library holds: call zero_gradients");
    }
    return engine_.whole_gradient(tensor).first;
  }

  void parameters(int unit, Pointers<void const*> data) {
    Use& use = use_of(unit);
    if (use.held == 0) engine_.acquire(unit);
    ++use.held;
    // A wrong count gives back what this call took.
    if (data.first == nullptr && data.count == 0) return;
    auto const& own = tensors_of(unit);
    if (data.first == nullptr || static_cast<std::size_t>(data.count) != own.size()) {
      release(unit);
      require_room(unit, data.count, data.first);
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      data.first[i] = engine_.parameter(unit, own[i]).first;
    }
  }
  void release(int unit) {
    Use& use = use_of(unit);
    if (use.held == 0) {
      fail(ErrorKind::invalid_argument,
           {"the parameters of unit ", unit, " are released, but were not asked for"});
    }
    if (--use.held == 0) engine_.release(unit);
  }

  void gradients(int unit, std::int32_t mode, Pointers<void*> data) {
    Use& use = use_of(unit);
    use.epoch.reset();
    if (mode != ZERO_ADD && mode != ZERO_OVERWRITE && mode != ZERO_OVERWRITE_CHECKED) {
      fail(ErrorKind::invalid_argument, {"there is no mode ", mode, " of zero_gradients"});
    }
    if (mode != ZERO_ADD && entry_.policies.full_gradients) {
      fail(ErrorKind::invalid_argument,
           "gradients that add up over micro-batches cannot be overwritten: ask for ZERO_ADD");
    }
    use.checked = mode == ZERO_OVERWRITE_CHECKED;
    use.epoch = engine_.open(unit, mode != ZERO_ADD, use.checked);
    if (data.first == nullptr && data.count == 0) return;
    require_room(unit, data.count, data.first);
    auto const& own = tensors_of(unit);
    for (std::size_t i = 0; i < own.size(); ++i) {
      data.first[i] = engine_.gradient(unit, *use.epoch, own[i]).first;
    }
  }
  void reduce(int unit) {
    Use& use = use_of(unit);
    if (entry_.policies.borrowed && !use.epoch) use.epoch = engine_.open(unit, false, false);
    if (!use.epoch) {
      fail(ErrorKind::invalid_argument,
           {"unit ", unit, " is reduced, but zero_gradients was not called for it before"});
    }
    std::uint64_t const epoch = *std::exchange(use.epoch, std::nullopt);
    if (std::exchange(use.checked, false)) engine_.require_written(unit, epoch);
    engine_.reduce(unit, epoch);
  }
  void without_gradient(int unit) { engine_.declare_absent(unit); }
  void without_tensor_gradient(std::size_t tensor) {
    if (tensor >= tensors().size()) {
      fail(ErrorKind::invalid_argument, {"the model has no tensor number ", tensor});
    }
    engine_.declare_absent(tensors()[tensor]);
  }
  void micro_step(MicroStep const& micro) { engine_.micro_step(micro); }
  void reduce_all(std::optional<double> weight) {
    weight ? engine_.reduce_all(*weight) : engine_.reduce_all();
  }
  [[nodiscard]] double grad_norm() { return engine_.grad_norm(); }
  [[nodiscard]] StepReport step(StepOptions const& options, double scale) {
    engine_.step(options, scale);
    return zero::detail::report_of(engine_.taken());
  }
  [[nodiscard]] StepReport report() { return zero::detail::report_of(engine_.result()); }
  void discard() { engine_.discard_gradients(); }
  void settle() { engine_.settle(); }
  [[nodiscard]] float loss_scale() const { return engine_.terms().next_loss_scale; }

  void set_lr(char const* name, double lr) { engine_.set_rate(name != nullptr ? name : "", lr); }
  void set_rule(char const* name, zero_rule const& rule) {
    auto const made = entry_.rule.made(rule, rule_.get());
    engine_.set_rule(name != nullptr ? name : "", made->get());
  }
  void full_parameters(Pointers<void const*> data) {
    require_all(tensors().size(), data.count, data.first, "data");
    full_.reset();  // a second one would need as much memory again
    full_.emplace(engine_);
    for (std::size_t t = 0; t < full_->size(); ++t) data.first[t] = (*full_)[t].first;
  }
  void release_full() {
    if (!full_) {
      fail(ErrorKind::invalid_argument, "all parameters are released, but were not asked for");
    }
    full_.reset();
  }
  void visit(zero_visit function, void* user) const {
    auto const each = visiting(function, user, "visit");
    engine_.visit(zero::detail::OwnedVisitor(each));
  }
  void fill(zero_visit function, void* user) {
    auto const each = visiting(function, user, "fill");
    engine_.fill(zero::detail::OwnedVisitor(each));
  }
  void visit_held(zero_held_function function, void* user) const {
    auto const each = visiting(function, user, "visit");
    engine_.visit_held(zero::detail::HeldVisitor(each));
  }
  void fill_held(zero_held_function function, void* user) {
    auto const each = visiting(function, user, "fill");
    engine_.fill_held(zero::detail::HeldVisitor(each));
  }
  [[nodiscard]] Counters counters() const { return engine_.counters(); }
  void restore(Counters const& counters) { engine_.restore(counters); }
  /// @endcond

 private:
  friend struct zero::detail::EngineAccess;

  /// What the trainer holds of a unit.
  struct Use {
    int held = 0;  ///< how often parameters were asked for, and not released
    std::optional<std::uint64_t> epoch{};  ///< of gradients that were asked for
    bool checked = false;                  ///< are they to be overwritten, and was that asked?
  };

  [[nodiscard]] zero::detail::EngineSetup setup(AnyRank& rank, zero_options const& options) {
    if (entry_.loss_scale != nullptr) loss_scale_ = entry_.loss_scale(options);
    return {.policies = entry_.policies,
            .comm = rank.ref(),
            .world = rank.ref(),
            .model = {},
            .space_calls = &zero::detail::space_calls<space::Host>,
            .space = &space_,
            .kernels = entry_.tables(),
            .rule_calls = entry_.rule.calls,
            .rule = rule_.get(),
            .allocator = rank.allocator(),
            .loss_scale = entry_.loss_scale != nullptr ? &loss_scale_ : nullptr,
            .bucket = bucket_of(options),
            .prefetch = Prefetch{options.prefetch},
            .overflow = overflow_of(options, "zero_options"),
            .seed = Seed{options.seed}};
  }
  template <class Shown>
  [[nodiscard]] VisitFunction<Shown> visiting(std::int32_t (*function)(Shown const*, void*),
                                              void* user,
                                              char const* name) const {
    return {function, user, name, tensors(), entry_.policies.types};
  }
  [[nodiscard]] bool gathers() const {
    return entry_.policies.form().refresh == Form::Refresh::gather;
  }
  [[nodiscard]] std::vector<std::size_t> const& tensors_of(int unit) const {
    return engine_.model().unit_tensors[static_cast<std::size_t>(unit)];
  }
  [[nodiscard]] Use& use_of(int unit) {
    if (unit < 0 || static_cast<std::size_t>(unit) >= uses_.size()) {
      fail(ErrorKind::invalid_argument,
           {"there is no unit ", unit, ": the model has units 0 to ", uses_.size() - 1});
    }
    return uses_[static_cast<std::size_t>(unit)];
  }
  void require_room(int unit, std::int32_t count, void const* data) const {
    std::size_t const size = tensors_of(unit).size();
    if (static_cast<std::size_t>(count) != size) {
      fail(ErrorKind::invalid_argument,
           {"room for ",
            count,
            " pointers is given for unit ",
            unit,
            ", which has ",
            size,
            " tensors"});
    }
    require(data, "data");
  }
  void require_borrowed() const {
    if (entry_.policies.borrowed) return;
    fail(ErrorKind::invalid_argument,
         "memory is lent to an optimizer that has its own: make it with memory = ZERO_BORROWED");
  }
  template <class Lent>
  void bind_lists(Pointers<Lent> parameters, Pointers<Lent> gradients) {
    require_borrowed();
    LentSpans const lent = listed(parameters, "parameters", lent_parameters_);
    LentSpans const lent_gradients = listed(gradients, "gradients", lent_gradients_);
    engine_.bind(&lent, &lent_gradients);
  }
  template <class Lent>
  void bind_gradient_list(Pointers<Lent> gradients) {
    require_borrowed();
    LentSpans const lent = listed(gradients, "gradients", lent_gradients_);
    engine_.bind(nullptr, &lent);
  }
  /// One span per tensor, in memory that stays: trainers bind in every step.
  template <class Lent>
  [[nodiscard]] LentSpans listed(Pointers<Lent> lent,
                                 std::string_view name,
                                 std::vector<Elements>& memory) const {
    require_all(tensors().size(), lent.count, lent.first, name);
    memory.clear();
    for (std::size_t t = 0; t < tensors().size(); ++t) {
      if constexpr (std::is_same_v<Lent, zero_span const>) {
        memory.push_back(elements_of(lent.first[t], tensors()[t].name, name));
      } else {
        auto const count = static_cast<std::size_t>(element_count(tensors()[t]));
        memory.emplace_back(lent.first[t], lent.first[t] == nullptr ? 0 : count);
      }
    }
    return LentSpans(std::span<Elements const>(memory));
  }

  ChosenOptimizer entry_;
  zero::detail::RuleCopy rule_;  ///< that other hyper-parameters are given on top of
  LossScaleOptions loss_scale_{};
  space::Host space_{};
  zero::detail::Engine engine_;
  std::vector<Use> uses_;
  std::vector<Elements> lent_parameters_;
  std::vector<Elements> lent_gradients_;
  GradientsFreeFunction when_free_{};
  std::optional<zero::detail::WholeModel> full_;
};

}  // namespace zero::inline ZERO_NAMESPACE::c
