/// @file
/// The optimizer a trainer instantiates: one algorithm for every stage.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/grid_communicator.hpp"
#include "zero/layout/plan.hpp"
#include "zero/optimizer/any_optimizer.hpp"
#include "zero/optimizer/api/full_parameters.hpp"
#include "zero/optimizer/api/guards.hpp"
#include "zero/optimizer/api/lent_span.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/make_tables.hpp"
#include "zero/optimizer/setup/choice.hpp"
#include "zero/optimizer/setup/plan_of.hpp"
#if ZERO_BODIES
#include "zero/optimizer/engine_counters.hpp"
#include "zero/optimizer/engine_step.hpp"
#include "zero/optimizer/engine_values.hpp"
#endif

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

// Stands in the line after a sentence.
template <std::size_t Number, class T>
inline constexpr bool not_moved = true;

/// What the engine works in, and on memory of, to its end.
template <class Choice>
struct Kept {
  [[no_unique_address]] typename Choice::Space space;
  [[no_unique_address]] decltype(Choice::Memory::allocator) allocator;
};

}  // namespace detail

/// A data-parallel optimizer whose states, gradients and parameters are partitioned as its stage
/// says. Changing the stage changes memory and traffic, never a result.
///
/// Policies are given in any order, as template arguments or deduced from constructor arguments:
/// | slot          | default          |
/// |---------------|------------------|
/// | stage         | `stage::PosG`    |
/// | communicator  | none: required   |
/// | precision     | `Fp32`           |
/// | rule          | `AdamW`          |
/// | bucket        | `Bucket{25 MiB}` |
/// | accumulation  | `AccumulateNone` |
/// | memory        | `Owned<>`        |
/// | prefetch      | `Prefetch{1}`    |
/// | overflow      | `Overflow{}`     |
/// | seed          | `Seed{0}`        |
///
/// An optimizer ends between steps: one that is destroyed while reductions are under way withdraws
/// from them, which ends the communicator with an error. `step()` and `discard_gradients()` finish
/// them.
/// @par Collective  construction and every call marked so: all ranks, in the same order
/// @par Cost        memory as `plan()` says; no allocation after construction
/// @par Source      ZeRO, arXiv 1910.02054, §5 (stages) and §7 (traffic)
template <class... Policies>
class ShardedOptimizer : private detail::Kept<detail::Choice<Policies...>>,
                         public AnyOptimizer<detail::Choice<Policies...>::Space::host_accessible,
                                             typename detail::Choice<Policies...>::Value> {
  using Choice = detail::Choice<Policies...>;
  using Kept = detail::Kept<Choice>;
  using Base = AnyOptimizer<Choice::Space::host_accessible, typename Choice::Value>;

 public:
  using Stage = typename Choice::Stage;  ///< what is partitioned
  /// How ranks move data.
  // Not through Choice: deduction tries the constructor with no policies at all, and must fail
  // softly there.
  using Communicator =
      detail::Selected<detail::FitsCommunicator,
                       std::conditional_t<sizeof...(Policies) == 0, void, detail::NoCommunicator>,
                       Policies...>;
  using Precision = typename Choice::Precision;        ///< which type holds what
  using Rule = typename Choice::Rule;                  ///< how a parameter follows its gradient
  using Accumulation = typename Choice::Accumulation;  ///< where micro-batches add up
  using Memory = typename Choice::Memory;              ///< who owns parameters and gradients
  using Parameter = typename Precision::Parameter;     ///< what forward and backward read
  using Wire = typename Precision::Wire;               ///< gradients, here and on their way
  using Master = typename Precision::Master;           ///< what the update works on
  using State = typename Precision::State;             ///< optimizer states

  static constexpr Sharding sharding = Stage::sharding;      ///< which model states are partitioned
  static constexpr StorageForm form = Choice::facts.form();  ///< how each model state is held
  static constexpr bool borrowed = Memory::borrowed;         ///< does the trainer lend its memory?
  /// A reduced gradient: sums of micro-steps are wider than what travels.
  using Gradient = detail::ReducedGradient<Precision, form.reduced == StorageForm::Reduced::sums>;
  /// Are lent gradients read, and never written?
  static constexpr bool only_read = borrowed && form.reduced != StorageForm::Reduced::lent;
  /// An element of lent gradients in one flat buffer.
  using Lent = std::conditional_t<only_read, Wire const, Wire>;
  /// Parameters that are lent: any container of `std::span<Parameter>`, or of `LentSpan`, where
  /// each has its tensor's type.
  using LentParameters = detail::LentList<std::span<Parameter>, LentSpan>;
  /// Gradients likewise: of `std::span<Wire>`, or of `LentSpan`. Where they are only read also of
  /// `std::span<Wire const>`, or of `LentConstSpan`.
  using LentGradients = std::conditional_t<
      only_read,
      detail::LentList<std::span<Wire>, std::span<Wire const>, LentSpan, LentConstSpan>,
      detail::LentList<std::span<Wire>, LentSpan>>;
  /// May any thread follow pointers to the communicator's buffers?
  static constexpr bool on_host = Choice::Space::host_accessible;
  /// State arrays per element.
  static constexpr std::size_t state_arrays = Rule::states.size();

  /// What a rank will hold and send, before anything is allocated.
  /// @param options  ranks, and micro-steps in a step
  /// @param tensors  the model
  /// @param values   bucket, prefetch, ... as for the constructor
  template <class... Values>
  [[nodiscard]] static Plan plan(PlanOptions const& options,
                                 std::vector<Tensor> const& tensors,
                                 Values const&... values) {
    Choice::template check_values<3, Values...>();
    return detail::plan_of(Choice::facts,
                           detail::rule_calls<Rule>,
                           options,
                           tensors,
                           Choice::template pick<Bucket>(values...),
                           Choice::template pick<Prefetch>(values...));
  }

  /// Agrees with all ranks on model and policies, then allocates what `plan()` says.
  ///
  /// @param comm     must outlive the optimizer, like what the tensors of `Borrowed<>` point to
  /// @param tensors  the model; copied
  /// @param values   policies with values (rule, precision, bucket, prefetch, memory, overflow,
  ///   seed), in any order
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument) for a model, a rule or a loss scale that makes no sense, or a
  ///   model without tensors; (communication), on every rank, naming what the ranks disagree on;
  ///   (resource) if memory is refused
  template <class... Values>
  explicit ShardedOptimizer(Communicator& comm,
                            std::vector<Tensor> tensors,
                            Values const&... values)
      : ShardedOptimizer(comm,
                         Axes{detail::ref(comm), detail::ref(comm)},
                         std::move(tensors),
                         picked(values...)) {}
  /// The same over the data axis of a grid, where all ranks decide together what a step does: norm,
  /// overflow, clipping, loss scale, options. Tensors are described as this rank's part of them,
  /// with `Tensor::partitioned`; ranks of a model axis describe the same shapes.
  ///
  /// Ranks of a model axis compare the tensors that are not partitioned before the first step. A
  /// step's weight is that of the first rank of each model axis.
  /// @param grid     must outlive the optimizer
  /// @param tensors  this rank's part of the model; copied
  /// @param values   as above
  /// @par Collective  yes, over all ranks of the grid; blocks
  /// @par Cost  on a rank that is not the first of its model axis: a pass over its share of the
  ///   reduced gradients in each step
  template <ProcessGrid G, class... Values>
  explicit ShardedOptimizer(G& grid, std::vector<Tensor> tensors, Values const&... values)
      : ShardedOptimizer(
            grid.data(),
            Axes{detail::ref(grid.data()), detail::ref(grid.world()), detail::ref(grid.model())},
            std::move(tensors),
            picked(values...)) {}
  /// @cond
  // Where no communicator is named, the class says so, and this nothing more.
  template <class First, class... Values>
    requires(sizeof...(Policies) != 0 && detail::named<detail::FitsCommunicator, Policies...> == 0)
  explicit ShardedOptimizer(First&&, std::vector<Tensor>, Values&&...);
  /// @endcond

  using Base::broadcast_parameters;
  using Base::plan;

  /// Lends the trainer's memory: one span per tensor in registration order. A tied tensor's span
  /// may be empty; so may a frozen tensor's gradient. Any other gradient that is an empty span is
  /// absent, as `without_gradient` says, until others are lent; where all are, on all ranks, and
  /// none was declared, `step` fails. Call again when pointers change; allocates nothing. Gradients
  /// are read, never written, and may be const; parameters are written where a tensor is, nowhere
  /// else. With a master of another type, `adopt_parameters` or `load_parameters` comes before the
  /// first step, and only then. Local, but waits for a refresh that is under way in the memory lent
  /// before.
  ///
  /// Under `BorrowedInPlace<>` gradients are written as well, and not const. None may be an empty
  /// span, and none may move between `reduce_all` and the end of the step.
  /// @throws Error (invalid_argument) for wrong sizes, other types than those of the tensors, null
  ///   pointers, overlaps, or while gradients are being reduced: from the first `gradients(unit)`
  ///   of a step, or of a micro-step that is reduced at once, until `reduce_all`, `step` or
  ///   `discard_gradients`
  void bind(LentParameters const& parameters, LentGradients const& gradients) requires borrowed {
    engine_.bind(&parameters, &gradients);
  }

  /// Lends two flat buffers in which the tensors lie one after the other, in registration order and
  /// without gaps; tied tensors do not lie there again. Frozen tensors have gradients' room too.
  /// All tensors are of one type. Otherwise as above.
  /// @par Shapes  both [sum of element counts of tensors that are not tied to another]
  void bind(std::span<Parameter> parameters, std::span<Lent> gradients) requires borrowed {
    engine_.bind_flat(detail::Elements(parameters), detail::Elements(gradients));
  }
  /// Other 16-bit types of the same layout are refused in a sentence, here and in the functions
  /// below.
  template <class P, class G>
    requires(borrowed && (detail::OtherHalf<P, Parameter> || detail::OtherHalf<G, Wire>))
  void bind(P&&, G&&) { refuse_half<P>(); }

  /// Lends parameters alone: gradients are lent unit by unit, in every step. Otherwise as `bind`.
  void bind_parameters(LentParameters const& parameters) requires borrowed {
    engine_.bind(&parameters, nullptr);
  }
  /// The same for one flat buffer.
  void bind_parameters(std::span<Parameter> parameters) requires borrowed {
    engine_.bind_flat(detail::Elements(parameters), {});
  }
  /// As `bind`.
  template <class P>
    requires(borrowed&& detail::OtherHalf<P, Parameter>)
  void bind_parameters(P&&) { refuse_half<P>(); }

  /// Lends other gradients and keeps the parameters that are lent: for trainers whose gradients
  /// move from step to step. Otherwise as `bind`.
  void bind_gradients(LentGradients const& gradients) requires borrowed {
    engine_.bind(nullptr, &gradients);
  }
  /// The same for one flat buffer.
  void bind_gradients(std::span<Lent> gradients) requires borrowed {
    engine_.bind_flat({}, detail::Elements(gradients));
  }
  /// As `bind`.
  template <class G>
    requires(borrowed&& detail::OtherHalf<G, Wire>)
  void bind_gradients(G&&) { refuse_half<G>(); }
  /// Lends one unit's gradients, complete or about to be, until they are free: the short way for
  /// frameworks that allocate gradients in every backward pass. Then they are forgotten, and the
  /// unit is not asked for again before others are lent. A unit that is not lent in a step is
  /// absent, as `without_gradient` says; under `BorrowedInPlace<>` that is an error. Local;
  /// allocates nothing.
  /// @param unit       whose, before it is passed to `reduce`
  /// @param gradients  one span per tensor of the unit, in the order of its guard; empty where the
  ///   gradient is absent. A tied tensor that another unit has lent in this step before has the
  ///   same memory, or an empty span; so has any tensor in later micro-steps of AccumulateFull
  /// @throws Error (invalid_argument) as `bind`, and if the unit was reduced in this micro-step
  void bind_gradients(int unit, LentGradients const& gradients) requires borrowed {
    engine_.bind_unit(unit, gradients);
  }
  /// As `bind`.
  template <class G>
    requires(borrowed&& detail::OtherHalf<G, Wire>)
  void bind_gradients(int, G&&) { refuse_half<G>(); }
  /// Are a unit's lent gradients no longer read? Their memory may then be freed, or used for
  /// something else; over a space that queues its work, by what is queued from now on. To do so
  /// earlier is an error that nothing finds: what travels is then whatever lies there.
  ///
  /// True once all of the unit has been reduced, until it is asked for or lent again; at the latest
  /// after `reduce_all` and `step`. A unit that is tied to others is free when all of them are.
  /// Under Pos+g `reduce(unit)` returns when the units reduced before are free, so that no more
  /// than two are in use while trainers lend unit by unit; small neighbours that share a bucket
  /// count as one. Memory that stays lent, as by `bind`, is read again in the next step. Under
  /// `BorrowedInPlace<>` units are free when the step is over.
  /// @par Collective  no; never blocks
  [[nodiscard]] bool gradients_free(int unit) const requires borrowed {
    return engine_.gradients_free(unit);
  }
  /// Calls `told(unit)` whenever a unit's lent gradients become free, from within the call of the
  /// trainer that finds it: `reduce`, `reduce_all`, `micro_step`, `step`, `discard_gradients`, ...
  /// It must not call this optimizer. Local.
  /// @param told  referred to, not copied: must outlive the optimizer
  template <class F>
  void on_gradients_free(F& told) requires(borrowed&& std::is_nothrow_invocable_v<F&, int>) {
    engine_.on_gradients_free(detail::FunctionRef<void(int)>(told));
  }
  /// A temporary would be gone when it is called.
  template <class F>
  void on_gradients_free(F const&&) = delete;

  /// Gives every rank the root's parameters, as they lie in its memory or in what it lends; on all
  /// ranks master weights start from them. For stages under which each rank holds all of them.
  /// Before the first backward pass: later its gradients are of values that ranks no longer have.
  /// That is found where the library was asked for gradients, or lent those of a unit, and not
  /// where a backward pass has filled memory that was lent before.
  /// @param root  whose; the same on every rank
  /// @throws Error (invalid_argument) if a step has gradients of values that differed
  /// @par Collective  yes; blocks
  /// @par Cost  every element of every tensor is sent once, from where it lies to where it belongs
  void broadcast_parameters(int root = 0) requires(form.refresh != StorageForm::Refresh::gather) {
    engine_.broadcast(root);
  }
  /// A tensor's parameters where every rank holds all of them: memory that stays where it is, to
  /// point the trainer's own tensors at. Initial values that are written here are adopted with
  /// `adopt_parameters`; later, with a master of another type, an update replaces what is written.
  /// [element count]
  /// @tparam T  the type of its elements, as in `parameter<float>(tensor)`
  /// @throws Error (invalid_argument) if they are of another type; for a stacked tensor that the
  ///   library owns, because its slices lie with their units
  template <Element T = Parameter>
  [[nodiscard]] std::span<T> parameter(std::size_t tensor) requires(form.refresh !=
                                                                    StorageForm::Refresh::gather) {
    return engine_.whole_parameter(tensor, dtype_of<T>).template as<T>();
  }
  /// A tensor's full gradients where the library holds all of them, to add to between steps: zero
  /// after construction and after every step. [element count], empty for frozen tensors
  /// @tparam T  the type of its elements, as in `gradient<float>(tensor)`
  /// @throws Error (invalid_argument) as `parameter`
  template <Element T = Wire>
  [[nodiscard]] std::span<T> gradient(std::size_t tensor) requires(form.gradients ==
                                                                   StorageForm::Gradients::whole) {
    return engine_.whole_gradient(tensor, dtype_of<T>).template as<T>();
  }

  /// Full parameters of a unit.
  /// @par Collective  where parameters are partitioned: gathers this unit, blocks for it, and
  ///   requests the next one. Elsewhere local, but for a refresh that is still under way
  /// @par Cost        the unit's elements times (N-1)/N sent, where partitioned
  [[nodiscard]] UnitParameters<ShardedOptimizer> parameters(int unit) {
    engine_.acquire(unit);
    return {*this, unit_view(unit)};
  }

  /// The parameters of all units at once, on every rank and under every stage: to evaluate the
  /// model, to sample from it, to export it. Between guards of single units, which may need the
  /// whole pool.
  /// @par Collective  where parameters are partitioned: gathers unit after unit, and blocks.
  ///   Elsewhere local, but for a refresh that is still under way
  /// @par Cost        where partitioned, memory for all parameters beside the plan, in their own
  ///   dtype, as long as the guard lives, and one gather of every unit
  /// @throws Error (resource) if the allocator refuses
  [[nodiscard]] FullParameters<ShardedOptimizer> full_parameters() {
    return FullParameters<ShardedOptimizer>(engine_);
  }

  /// Full-size gradient buffers of a unit, to add to; zeroed by the library where it owns them.
  /// Local, but may wait for an earlier unit's reduction.
  /// @throws Error (invalid_argument) if the unit was reduced in this micro-step already
  [[nodiscard]] UnitGradients<ShardedOptimizer> gradients(int unit) {
    std::uint64_t const epoch = engine_.open(unit, false);
    return {*this, unit_view(unit), epoch};
  }
  /// The same for a trainer that writes every element before it reads any: what the buffers hold is
  /// not specified, since memory that only this unit uses is not zeroed. Tied tensors are added to
  /// as ever.
  /// @param unit  whose gradients
  /// @param how   `zero::overwrite`, or `zero::Overwrite{.checked = true}` to have `reduce` throw
  ///   Error (invalid_argument) with the first element that was not written; then all are NaN.
  ///   Not for gradients that are lent
  [[nodiscard]] UnitGradients<ShardedOptimizer> gradients(int unit, Overwrite how) requires(
      !Accumulation::full_gradients) {
    std::uint64_t const epoch = engine_.open(unit, true, how.checked);
    return {*this, unit_view(unit), epoch, how.checked};
  }

  /// The unit's gradients are complete: starts what can travel. The buffers are spent.
  /// @par Collective  yes, in the sense that every rank must reduce before `step()` ends
  /// @par Cost        the unit's elements times (N-1)/N sent, once its bucket is complete
  void reduce(UnitGradients<ShardedOptimizer>&& gradients) {
    if (&gradients.live() != this) {
      fail(ErrorKind::invalid_argument, "reduce() is given gradients of another optimizer");
    }
    if (gradients.checked_) engine_.require_written(gradients.unit(), gradients.epoch_);
    gradients.optimizer_ = nullptr;
    engine_.reduce(gradients.unit(), gradients.epoch_);
  }

  /// Shows the reduced gradients of this step, before the update: norms of layers, the largest
  /// element, a histogram. Calls `visit(Tensor const&, first, std::span<Gradient const>, double
  /// scale)` for every run of which this rank has the sum; each element is shown on one rank, under
  /// `Replicated` too. What is shown times `scale` is the mean gradient: `scale` has the weights of
  /// all ranks, and the loss scale. Tensors that rest in this step are not shown. It implies
  /// `grad_norm()`.
  ///
  /// Under `ByTensor` a span is of the type that the tensor's gradients have; where these differ,
  /// `visit` takes each, as a generic lambda does.
  ///
  /// Where the host cannot reach the space's memory, spans are of that memory: queue work on the
  /// communicator's stream. A span lasts until `visit` returns, and what is queued there by then.
  /// @par Collective  as `grad_norm()`, whose exchange it shares; blocks
  /// @par Cost  no pass and no memory of its own, except that lent gradients under
  ///   `BorrowedInPlace<>` may be collected in staging
  /// @throws Error as `grad_norm()`
  template <class Visit>
  void visit_gradients(Visit&& visit) {
    auto const typed = gradients_for<std::add_const_t>(visit);
    engine_.visit_gradients(detail::GradientVisitor(typed));
  }
  /// Changes the reduced gradients of this step before their norm is taken: clips each element,
  /// adds noise. `change` is called as the `visit` of `visit_gradients`, but with
  /// `std::span<Gradient>`; norm, clipping and update are of what it leaves. Lent gradients that
  /// are only read keep what they hold: the library's sums of them change. Where gradients are not
  /// finite `change` is not called, and the step skips or fails as ever. May be called again.
  /// @par Collective  yes; blocks. Ranks exchange their weights first, and once more with the norm
  /// @par Cost  one exchange as that of `grad_norm()`, and one pass that adds squares anew
  /// @throws Error (invalid_argument) after `grad_norm()` or `visit_gradients()`, and while a step
  ///   is captured; as `grad_norm()`. After any other exception of `change`, `discard_gradients()`
  ///   comes next
  template <class Change>
  void change_gradients(Change&& change) {
    auto const typed = gradients_for<std::type_identity_t>(change);
    engine_.change_gradients(detail::GradientVisitor(typed));
  }

  /// The rule and its hyper-parameters, of tensors that have no rule of their own.
  [[nodiscard]] Rule const& rule() const noexcept {
    return *static_cast<Rule const*>(engine_.rule());
  }
  /// Those that update one tensor; its own scales of learning rate and weight decay aside.
  [[nodiscard]] Rule const& rule(std::size_t tensor) const {
    return *static_cast<Rule const*>(engine_.rule(tensor));
  }
  /// Other hyper-parameters from the next step on, also in the middle of its micro-batches, for all
  /// tensors that have no rule of their own. Local; ranks compare what they were told in the next
  /// step, which fails on all of them where it differs.
  /// @throws Error (invalid_argument) for values that make no sense
  void set_rule(Rule const& rule) { engine_.set_rule({}, &rule); }
  /// The same for a group of tensors, or for one tensor, which from now on has a rule of its own:
  /// `StepOptions::learning_rate`, `set_rule(rule)` and `set_lr(lr)` are not for it any more. A
  /// tensor's own goes before its group's. Scales of tensors count as ever.
  ///
  /// What a group was told is no part of a checkpoint: a trainer that resumes says it again.
  /// @param name  `Tensor::group` of some, or `Tensor::name` of one; if empty, as without a name
  /// @param rule  its hyper-parameters
  /// @throws Error (invalid_argument) also if there is no such group or tensor
  /// @par Cost    allocates when the name is new
  void set_rule(std::string_view name, Rule const& rule) { engine_.set_rule(name, &rule); }
  /// Calls `visit(Tensor const&, first, std::span<Master const>, std::array<std::span<State const>,
  /// K>)` for every run of master weights and states that this rank holds; state k is
  /// `Rule::states[k]`. Under `ByTensor` types are those of the tensor's precision; where they
  /// differ, `visit` takes each, as a generic lambda does. Where the host cannot reach the space's
  /// memory, and with `Rest16`, whose masters lie nowhere as they are, runs come in pieces, as
  /// copies that last until `visit` returns. Local; blocks there.
  /// @par Cost  there, two transient megabytes of the host at most per array, beside the plan
  template <class Visit>
  void visit_owned(Visit&& visit) const {
    auto const typed = owned_for<std::add_const_t>(visit);
    engine_.visit(detail::OwnedVisitor(typed));
  }
  /// The writing twin of `visit_owned`: `fill(Tensor const&, first, std::span<Master>,
  /// std::array<std::span<State>, K>)` finds elements [first, first + size) of a tensor and of its
  /// states as they are, and changes what it will: all of them, one row, or values out of a range.
  /// Parameters then follow on every rank, in lent memory too. Under `Replicated` every rank is
  /// shown all elements, and changes them alike.
  ///
  /// What one run showed, whatever its stage, ranks and buckets, another takes: with
  /// `restore(counters())` it goes on to the same bits, unless states have 8 bits, which
  /// `fill_held` takes as they are. Frozen tensors are not asked for: where the library owns them
  /// they are loaded, or adopted, before.
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument), on every rank, naming the first finite value that parameters
  ///   cannot hold, unless the policy is `Overflow::saturate`; as of `load_parameters`, every step
  ///   is refused then
  /// @par Cost  that of one refresh of all parameters, and of `visit_owned`
  template <class Fill>
  void fill_owned(Fill&& fill) {
    auto const typed = owned_for<std::type_identity_t>(fill);
    engine_.fill(detail::OwnedVisitor(typed));
  }

 private:
  using Space = typename Choice::Space;
  using Precisions = detail::Precisions<Precision>;
  using PrecisionsOfKinds = typename detail::PrecisionsOfKinds<Rule, Precisions>::Type;
  template <class P>
  using GradientOf = detail::ReducedGradient<P, form.reduced == StorageForm::Reduced::sums>;

  struct Axes {
    detail::CommunicatorRef comm{};
    detail::CommunicatorRef world{};
    detail::CommunicatorRef model{};
  };
  /// What policies have for values.
  struct Picked {
    Precision precision;
    Rule rule;
    Memory memory;
    Bucket bucket;
    Prefetch prefetch;
    Overflow overflow;
    Seed seed;
  };

  template <class... Values>
  [[nodiscard]] static Picked picked(Values const&... values) {
    Choice::template check_values<3, Values...>();
    return {Choice::template pick<Precision>(values...),
            Choice::template pick<Rule>(values...),
            Choice::template pick<Memory>(values...),
            Choice::template pick<Bucket>(values...),
            Choice::template pick<Prefetch>(values...),
            Choice::template pick<Overflow>(values...),
            Choice::template pick<Seed>(values...)};
  }

  // Mistakes have a sentence each, in the body of a private template: a call of it is an error, and
  // a concept that asks whether there is such a call gets a no.
  template <class First, class... Values>
    requires(detail::NoGroup<First, Policies...>)
  explicit ShardedOptimizer(First&&, std::vector<Tensor>, Values&&...)
      : ShardedOptimizer(detail::NoCommunicator()) {
    static_assert(!detail::not_the_communicator<1, First>,
                  "zero: the first argument is this optimizer's communicator, or a grid: an object "
                  "that has a name and is not const; then come tensors, then policies");
  }
  template <class Tensors = std::vector<Tensor>, class... Values>
    requires(sizeof...(Policies) != 0)
  explicit ShardedOptimizer(std::vector<Tensor>, Values&&...)
      : ShardedOptimizer(detail::NoCommunicator()) {
    static_assert(!detail::not_the_communicator<1, Tensors>,
                  "zero: the first argument is this optimizer's communicator, or a grid: an object "
                  "that has a name and is not const; then come tensors, then policies");
  }
  explicit ShardedOptimizer(detail::NoCommunicator);
  template <class... Lent>
    requires(!borrowed)
  void bind(Lent&&...) {
    static_assert(Memory::borrowed,
                  "zero: bind() is for an optimizer that works in the trainer's memory: name "
                  "zero::Borrowed<> among its policies");
  }
  template <std::convertible_to<int>... Root>
    requires(form.refresh == StorageForm::Refresh::gather)
  void broadcast_parameters(Root...) {
    static_assert(!Stage::sharding.parameters,
                  "zero: no rank has all parameters under Pos+g+p: call "
                  "broadcast_parameters(values), with values as for load_parameters");
  }
  template <std::same_as<UnitGradients<ShardedOptimizer>> Guard>
  void reduce(Guard const&) {
    static_assert(!detail::not_moved<1, Guard>,
                  "zero: reduce() takes gradients away from whoever has them: pass "
                  "std::move(gradients)");
  }

  ShardedOptimizer(Communicator const& comm,
                   Axes const& groups,
                   std::vector<Tensor> tensors,
                   Picked const& picked)
      : Kept{detail::space_of(comm), picked.memory.allocator},
        Base(setup(groups, picked), std::move(tensors)) {}

  [[nodiscard]] detail::EngineSetup setup(Axes const& groups, Picked const& picked) {
    constexpr bool sums = form.reduced == StorageForm::Reduced::sums;
    detail::EngineSetup setup{
        .policies = Choice::facts,
        .comm = groups.comm,
        .world = groups.world,
        .model = groups.model,
        .space_calls = &detail::space_calls<Space>,
        .space = &this->space,
        .kernels = detail::kernel_tables<Space, Rule, sums, Precisions>.data(),
        .rule_calls = &detail::rule_calls<Rule>,
        .rule = &picked.rule,
        .allocator = detail::ref(this->allocator),
        .loss_scale = nullptr,
        .bucket = picked.bucket,
        .prefetch = picked.prefetch,
        .overflow = picked.overflow,
        .seed = picked.seed};
    if constexpr (Precision::loss_scaled) setup.loss_scale = &picked.precision.loss_scale;
    return setup;
  }

  /// Calls `work` with the precision of a kind, as a `std::type_identity`: nvcc takes no lambda
  /// with a list of template parameters here.
  template <class... P, class Work>
  static void with_precision(detail::PrecisionList<P...>, std::size_t kind, Work const& work) {
    std::size_t number = 0;
    static_cast<void>(((number++ == kind && (work(std::type_identity<P>()), true)) || ...));
  }
  /// What the engine calls to have `visit` called, with elements that are `As<...>`.
  template <template <class> class As, class Visit>
  [[nodiscard]] static auto gradients_for(Visit& visit) {
    return [&visit](detail::GradientRun const& run) {
      with_precision(PrecisionsOfKinds(), run.kind, [&](auto of) {
        auto* const sums = static_cast<As<GradientOf<typename decltype(of)::type>>*>(run.gradients);
        visit(*run.tensor, run.first, std::span(sums, run.count), run.scale);
      });
    };
  }
  template <template <class> class As, class Visit>
  [[nodiscard]] static auto owned_for(Visit& visit) {
    return [&visit](detail::OwnedRun const& run) {
      with_precision(PrecisionsOfKinds(), run.kind, [&](auto of) {
        using P = typename decltype(of)::type;
        auto* const master = static_cast<As<typename P::Master>*>(run.master);
        std::array<std::span<As<typename P::State>>, state_arrays> states{};
        for (std::size_t k = 0; k != state_arrays; ++k) {
          states[k] = {static_cast<As<typename P::State>*>(run.states[k]), run.count};
        }
        visit(*run.tensor, run.first, std::span(master, run.count), states);
      });
    };
  }

  template <class Lent>
  static void refuse_half() {
    static_assert(std::is_void_v<Lent>,
                  "zero: what is lent is of zero::bf16 or zero::fp16, as the precision says: cast "
                  "the pointers of std::uint16_t, which these may alias, and compile with "
                  "-fno-strict-aliasing where they are of another type, such as _Float16");
  }

  friend class UnitParameters<ShardedOptimizer>;
  friend class UnitGradients<ShardedOptimizer>;
  friend struct detail::EngineAccess;

  [[nodiscard]] detail::UnitTensors unit_view(int unit) const { return {engine_.model(), unit}; }
  template <class T>
  [[nodiscard]] std::span<T const> parameter_view(int unit, std::size_t t) {
    engine_.require_type(t, &StorageTypes::parameter, dtype_of<T>);
    return engine_.parameter(unit, t).template as<T const>();
  }
  template <class T>
  [[nodiscard]] std::span<T> gradient_view(int unit, std::uint64_t epoch, std::size_t t) {
    engine_.require_type(t, &StorageTypes::wire, dtype_of<T>);
    return engine_.gradient(unit, epoch, t).template as<T>();
  }
  void release_parameters(int unit) noexcept { engine_.release(unit); }

  using Base::engine_;
};

/// Policies from the constructor's arguments.
template <Communicator C, class... Values>
ShardedOptimizer(C&, std::vector<Tensor>, Values...)
    -> ShardedOptimizer<C, detail::PolicyOrNone<Values>...>;
/// @overload
template <ProcessGrid G, class... Values>
ShardedOptimizer(G&, std::vector<Tensor>, Values...)
    -> ShardedOptimizer<typename G::Communicator, detail::PolicyOrNone<Values>...>;
/// @cond
// Whose constructors say what is wrong.
template <class First, class... Values>
  requires(!detail::is_group<First>)
ShardedOptimizer(First&&, std::vector<Tensor>, Values&&...)
->ShardedOptimizer<detail::NoCommunicator>;
template <class... Values>
ShardedOptimizer(std::vector<Tensor>, Values&&...) -> ShardedOptimizer<detail::NoCommunicator>;
/// @endcond

}  // namespace zero::inline ZERO_NAMESPACE
