/// @file
/// The optimizer a trainer instantiates: one algorithm for every stage.
#pragma once

#include "zero/base/error.hpp"
#include "zero/layout/plan.hpp"
#include "zero/optimizer/agreement.hpp"
#include "zero/optimizer/arena.hpp"
#include "zero/optimizer/choice.hpp"
#include "zero/optimizer/consensus.hpp"
#include "zero/optimizer/gather.hpp"
#include "zero/optimizer/gradient_store.hpp"
#include "zero/optimizer/guards.hpp"
#include "zero/optimizer/loading.hpp"
#include "zero/optimizer/norm.hpp"
#include "zero/optimizer/parameter_store.hpp"
#include "zero/optimizer/publish.hpp"
#include "zero/optimizer/reduction.hpp"
#include "zero/optimizer/slots.hpp"
#include "zero/optimizer/staging.hpp"
#include "zero/optimizer/step.hpp"
#include "zero/optimizer/update.hpp"
#include "zero/optimizer/update_source.hpp"
#include "zero/precision/loss_scale.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline v0_1 {

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
///
/// An optimizer ends between steps: one that is destroyed while reductions are under way withdraws
/// from them, which ends the communicator with an error. `step()` and `discard_gradients()` finish
/// them.
/// @par Collective  construction and every call marked so: all ranks, in the same order
/// @par Cost        memory as `plan()` says; no allocation after construction
/// @par Source      ZeRO, arXiv 1910.02054, §5 (stages) and §7 (traffic)
template <class... Policies>
class ShardedOptimizer {
  using Choice = detail::Choice<Policies...>;

 public:
  using Stage = typename Choice::Stage;  ///< what is partitioned
  /// How ranks move data.
  // Not through Choice: deduction tries the constructor with no policies at all, and must fail
  // softly there.
  using Communicator = detail::Selected<detail::FitsCommunicator, void, Policies...>;
  using Precision = typename Choice::Precision;        ///< which type holds what
  using Rule = typename Choice::Rule;                  ///< how a parameter follows its gradient
  using Accumulation = typename Choice::Accumulation;  ///< where micro-batches add up
  using Memory = typename Choice::Memory;              ///< who owns parameters and gradients
  using Slots = typename Choice::Slots;                ///< the whole choice as one type
  using Parameter = typename Precision::Parameter;     ///< what forward and backward read
  using Wire = typename Precision::Wire;               ///< gradients, here and on their way
  using Master = typename Precision::Master;           ///< what the update works on
  using State = typename Precision::State;             ///< optimizer states

  static constexpr Sharding sharding = Stage::sharding;  ///< which model states are partitioned
  static constexpr bool borrowed = Memory::borrowed;     ///< does the trainer lend its memory?
  /// State arrays per element.
  static constexpr std::size_t state_arrays = static_cast<std::size_t>(Rule::state_count);

  /// What a rank will hold and send, before anything is allocated.
  /// @param world_size   ranks
  /// @param tensors      the model
  /// @param values       bucket, prefetch, ... as for the constructor
  /// @param micro_steps  forward and backward passes in a step
  template <class... Values>
  [[nodiscard]] static Plan plan(int world_size,
                                 std::vector<Tensor> const& tensors,
                                 std::uint64_t micro_steps,
                                 Values const&... values) {
    Bucket const bucket = Choice::template pick<Bucket>(values...);
    Prefetch const prefetch = Choice::template pick<Prefetch>(values...);
    return make_plan(Partition(tensors, Choice::partition_options(world_size, bucket)),
                     Slots::storage_choice(prefetch.depth),
                     Choice::names(),
                     micro_steps);
  }

  /// Agrees with all ranks on model and policies, then allocates what `plan()` says.
  ///
  /// @param comm     must outlive the optimizer, like what the tensors of `Borrowed<>` point to
  /// @param tensors  the model; copied
  /// @param values   policies with values (rule, precision, bucket, prefetch, memory), in any order
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument) for a model that makes no sense; (communication), on every
  ///   rank, naming what the ranks disagree on; (resource) if memory is refused
  template <class... Values>
  explicit ShardedOptimizer(Communicator& comm,
                            std::vector<Tensor> tensors,
                            Values const&... values)
      : comm_(&comm),
        tensors_(std::move(tensors)),
        precision_(Choice::template pick<Precision>(values...)),
        rule_(Choice::template pick<Rule>(values...)),
        bucket_(Choice::template pick<Bucket>(values...)),
        prefetch_(Choice::template pick<Prefetch>(values...)),
        partition_(tensors_, Choice::partition_options(comm.size(), bucket_)),
        elements_(agreed_elements()),
        arena_(Choice::template pick<Memory>(values...).allocator),
        parameters_(tensors_, partition_, elements_, arena_),
        gradients_(tensors_, partition_, comm.rank(), elements_, arena_),
        update_(tensors_, partition_, comm.rank(), elements_, arena_),
        staging_(partition_,
                 arena_.template take<std::byte>(Role::staging, elements_.staging_bytes)),
        norm_(partition_, comm.rank(), gradients_),
        reduction_(comm, partition_, gradients_, norm_, staging_),
        refresh_(make_refresh()),
        loss_scale_(initial_loss_scale()) {
    unit_tensors_.resize(static_cast<std::size_t>(partition_.placement().unit_count()));
    unit_users_.assign(unit_tensors_.size(), 0);
    for (int unit = 0; unit < partition_.placement().unit_count(); ++unit) units_.push_back(unit);
    units_backward_.assign(units_.rbegin(), units_.rend());
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      unit_tensors_[static_cast<std::size_t>(tensors_[t].unit)].push_back(t);
    }
  }

  ShardedOptimizer(ShardedOptimizer const&) = delete;
  ShardedOptimizer& operator=(ShardedOptimizer const&) = delete;

  /// Units in the order of the forward pass, from 0; a number that no tensor names is empty.
  [[nodiscard]] std::span<int const> units() const noexcept { return units_; }
  /// The same units in the order of the backward pass.
  [[nodiscard]] std::span<int const> units_backward() const noexcept { return units_backward_; }
  /// The model as it was described.
  [[nodiscard]] std::vector<Tensor> const& tensors() const noexcept { return tensors_; }
  /// Who owns which element.
  [[nodiscard]] Partition const& partition() const noexcept { return partition_; }
  /// What this rank holds and sends in a step of so many micro-steps.
  [[nodiscard]] Plan plan(std::uint64_t micro_steps = 1) const {
    return make_plan(
        partition_, Slots::storage_choice(prefetch_.depth), Choice::names(), micro_steps);
  }
  /// Bytes this rank holds now, by role: equal to `plan().memory`.
  [[nodiscard]] MemoryBytes const& held() const noexcept { return arena_.held(); }

  /// Lends the trainer's memory: one span per tensor in registration order. A tied tensor's span
  /// may be empty; so may a frozen tensor's gradient. Call again when pointers change; allocates
  /// nothing. Gradients are read, never written; parameters are written where a tensor is, nowhere
  /// else. Local, but waits for a refresh that is under way in the memory lent before.
  /// @throws Error (invalid_argument) for wrong sizes, null pointers, overlaps, or while gradients
  ///   are being reduced
  void bind(std::span<std::span<Parameter> const> parameters,
            std::span<std::span<Wire> const> gradients) requires borrowed {
    prepare_to_bind();
    parameters_.lent().bind(parameters, true);
    gradients_.lent().bind(gradients, false);
    parameters_.lent().refuse_overlap_with(gradients_.lent());
  }

  /// Lends two flat buffers in which the tensors lie one after the other, in registration order and
  /// without gaps; tied tensors do not lie there again. Frozen tensors have gradients' room too.
  /// Otherwise as above.
  /// @par Shapes  both [sum of element counts of tensors that are not tied to another]
  void bind(std::span<Parameter> parameters, std::span<Wire> gradients) requires borrowed {
    prepare_to_bind();
    parameters_.lent().bind_flat(parameters, true);
    gradients_.lent().bind_flat(gradients, false);
    parameters_.lent().refuse_overlap_with(gradients_.lent());
  }

  /// Lends other gradients and keeps the parameters that are lent: for trainers whose gradients
  /// move from step to step. Otherwise as `bind`.
  void bind_gradients(std::span<std::span<Wire> const> gradients) requires borrowed {
    prepare_to_bind();
    gradients_.lent().bind(gradients, false);
    parameters_.lent().refuse_overlap_with(gradients_.lent());
  }
  /// The same for one flat buffer.
  void bind_gradients(std::span<Wire> gradients) requires borrowed {
    prepare_to_bind();
    gradients_.lent().bind_flat(gradients, false);
    parameters_.lent().refuse_overlap_with(gradients_.lent());
  }

  /// Sets parameters and master weights from `values(Tensor const&, first, std::span<float>)`,
  /// which fills elements [first, first + size) of a tensor. It is asked, chunk by chunk, for what
  /// this rank holds only, so it must give every rank the same values. Resets nothing else. Local.
  template <std::invocable<Tensor const&, std::size_t, std::span<float>> Values>
  void load_parameters(Values&& values) {
    require_bound();
    settle();
    detail::load<Slots>(tensors_, partition_, comm_->rank(), parameters_, update_, values);
  }
  /// Sets parameters and master weights from whole tensors in registration order; spans of tied
  /// tensors are not read. Local.
  void load_parameters(std::span<std::span<float const> const> values) {
    detail::check_value_sizes(tensors_, partition_.placement(), values);
    load_parameters([&](Tensor const& tensor, std::size_t first, std::span<float> out) {
      auto const t = static_cast<std::size_t>(&tensor - tensors_.data());
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = values[t][first + i];
    });
  }
  /// Takes the lent parameters' present values as they are; master weights start from them. Local.
  void adopt_parameters() requires borrowed {
    require_bound();
    settle();
    detail::adopt<Slots>(partition_, parameters_, update_);
  }

  /// A tensor's parameters where every rank holds all of them: memory that stays where it is, to
  /// point the trainer's own tensors at. [element count]
  [[nodiscard]] std::span<Parameter> parameter(std::size_t tensor) requires(!sharding.parameters) {
    require_tensor(tensor);
    require_bound();
    auto const count = static_cast<std::size_t>(partition_.placement().places()[tensor].count);
    return {count > 0 ? parameters_.tensor(tensor) : nullptr, count};
  }
  /// A tensor's full gradients where the library holds all of them, to add to between steps: zero
  /// after construction and after every step. [element count], empty for frozen tensors
  [[nodiscard]] std::span<Wire> gradient(std::size_t tensor) requires(Slots::keeps_full_gradients) {
    require_tensor(tensor);
    return gradients_.tensor(tensor);
  }

  /// Full parameters of a unit.
  /// @par Collective  where parameters are partitioned: gathers this unit, blocks for it, and
  ///   requests the next one. Elsewhere local, but for a refresh that is still under way
  /// @par Cost        the unit's elements times (N-1)/N sent, where partitioned
  [[nodiscard]] UnitParameters<ShardedOptimizer> parameters(int unit) {
    require_unit(unit);
    require_bound();
    if constexpr (sharding.parameters) {
      refresh_.acquire(unit);
    } else if constexpr (sharding.optimizer) {
      refresh_.wait(last_bucket(unit));
    }
    ++unit_users_[static_cast<std::size_t>(unit)];
    return {*this, unit_view(unit)};
  }

  /// Full-size gradient buffers of a unit, to add to; zeroed by the library where it owns them.
  /// Local, but may wait for an earlier unit's reduction.
  /// @throws Error (invalid_argument) if the unit was reduced in this micro-step already
  [[nodiscard]] UnitGradients<ShardedOptimizer> gradients(int unit) {
    require_unit(unit);
    require_bound();
    reduction_.open(unit);
    return {*this, unit_view(unit)};
  }

  /// The unit's gradients are complete: starts what can travel. The buffers are spent.
  /// @par Collective  yes, in the sense that every rank must reduce before `step()` ends
  /// @par Cost        the unit's elements times (N-1)/N sent, once its bucket is complete
  void reduce(UnitGradients<ShardedOptimizer>&& gradients) {
    static_cast<void>(gradients.live());
    gradients.optimizer_ = nullptr;
    reduction_.close(gradients.unit());
  }

  /// Begins the next micro-batch of a step; not needed where a step has one of weight 1.
  /// @par Collective  yes: it finishes the reductions of the micro-step before
  void micro_step(MicroStep const& micro = {}) {
    if (!(micro.weight >= 0.) || micro.weight > 0x1p60) {
      fail(ErrorKind::invalid_argument, "a micro-step's weight must be in [0, 2^60]");
    }
    reduction_.begin_micro_step(micro.last);
    weight_ += micro.weight;
  }

  /// What to multiply the loss by in this step's backward pass; 1 without a loss scale.
  [[nodiscard]] float loss_scale() const noexcept { return loss_scale_.value(); }

  /// Reduces what is left; units without gradients count as zeros. Collective; blocks.
  void reduce_all() {
    require_bound();
    reduction_.finish();
  }

  /// L2 norm of the mean gradient, the same bits on every rank and under every stage; infinity if
  /// it is not finite, not a number if all weights are 0. Reduces what is left first. Collective;
  /// blocks.
  [[nodiscard]] double grad_norm() {
    agree();
    return agreement_.norm_of_sum / (agreement_.weight * loss_scale_.value());
  }

  /// Unscales, agrees on overflow and norm, clips, updates, casts and publishes.
  /// @par Collective  yes; blocks
  /// @throws Error (data), on every rank, if gradients are not finite, no loss scale watches for
  ///   that and the options do not say to skip; or if all weights are 0. Nothing is changed
  StepReport step(StepOptions const& options = {}) {
    double const norm = grad_norm();
    double clip = 1.;
    if (options.max_norm && norm > *options.max_norm) clip = *options.max_norm / norm;
    return finish_step(options, norm, clip);
  }
  /// The same for trainers that clip on their own: the mean gradient is multiplied by `scale`,
  /// which is not rounded before it meets the weights, so that `max_norm / grad_norm()` gives the
  /// bits of `StepOptions::max_norm`.
  StepReport step(float learning_rate, double scale) {
    double const norm = grad_norm();
    return finish_step({.learning_rate = learning_rate}, norm, scale);
  }

  /// Forgets the gradients of this step; the alternative to `step()`. Every rank must do it.
  void discard_gradients() {
    reduction_.reset();
    agreed_ = false;
    weight_ = 0.;
  }

  /// Waits for what was started ahead of its use: a refresh left under way by
  /// `StepOptions::overlap_publish`, or gathers of the next units. Needed before the optimizer is
  /// destroyed in the middle of a pass: destructors never wait, and a collective that one rank
  /// drops ends the group. Collective; blocks.
  void settle() {
    if constexpr (sharding.parameters) {
      refresh_.invalidate();
    } else if constexpr (sharding.optimizer) {
      refresh_.wait();
    }
  }

  /// Updates applied so far; skipped steps do not count.
  [[nodiscard]] long steps() const noexcept { return steps_; }
  /// The rule and its hyper-parameters.
  [[nodiscard]] Rule const& rule() const noexcept { return rule_; }

  /// Calls `visit(Tensor const&, first, std::span<Master const>, std::array<std::span<State const>,
  /// K>)` for every run of master weights and states that this rank holds. Local.
  template <class Visit>
  void visit_owned(Visit&& visit) const {
    require_bound();
    for (BucketSpan const& bucket : partition_.buckets()) {
      partition_.for_each_segment(
          update_.begin(bucket), update_.count(bucket), [&](Segment const& piece) {
            auto const count = static_cast<std::size_t>(piece.count);
            std::array<std::span<State const>, state_arrays> states{};
            auto const from = update_.states(bucket, piece);
            for (std::size_t k = 0; k < state_arrays; ++k) states[k] = {from[k], count};
            visit(tensors_[piece.tensor],
                  static_cast<std::size_t>(piece.tensor_offset),
                  std::span<Master const>(update_.master(bucket, piece, parameters_), count),
                  states);
          });
    }
  }

 private:
  using Refresh =
      std::conditional_t<sharding.parameters, detail::GatherPool<Slots>, detail::Publish<Slots>>;
  friend class UnitParameters<ShardedOptimizer>;
  friend class UnitGradients<ShardedOptimizer>;

  LossScale initial_loss_scale() const {
    if constexpr (Precision::loss_scaled) {
      return LossScale(precision_.loss_scale);
    } else {
      return LossScale({.initial = 1.f});
    }
  }
  StorageElements agreed_elements() {
    detail::require_consensus<Slots>(
        *comm_, tensors_, partition_, precision_, rule_, bucket_, prefetch_);
    return storage_elements(partition_, Slots::storage_choice(prefetch_.depth));
  }
  Refresh make_refresh() {
    if constexpr (sharding.parameters) {
      return Refresh(*comm_, partition_, parameters_, elements_, prefetch_.depth, arena_);
    } else {
      return Refresh(*comm_, partition_, parameters_, staging_);
    }
  }

  void require_unit(int unit) const {
    if (unit >= 0 && static_cast<std::size_t>(unit) < units_.size()) return;
    fail(ErrorKind::invalid_argument,
         {"there is no unit ", unit, "; units are [0, ", units_.size(), ")"});
  }
  void require_tensor(std::size_t tensor) const {
    if (tensor < tensors_.size()) return;
    fail(ErrorKind::invalid_argument,
         {"there is no tensor ", tensor, "; ", tensors_.size(), " are described"});
  }
  void require_bound() const {
    if constexpr (borrowed) {
      if (parameters_.lent().bound() && gradients_.lent().bound()) return;
      fail(ErrorKind::invalid_argument, "Borrowed<> memory is used before bind()");
    }
  }

  void prepare_to_bind() requires borrowed {
    if (reduction_.busy()) {
      fail(ErrorKind::invalid_argument, "bind() while gradients are being reduced");
    }
    settle();
  }

  detail::UnitTensors unit_view(int unit) const {
    return {tensors_, unit_tensors_[static_cast<std::size_t>(unit)], unit};
  }
  std::span<Parameter const> parameter_view(int unit, std::size_t t) {
    TensorPlace const& place = partition_.placement().places()[t];
    auto const count = static_cast<std::size_t>(place.count);
    if (count == 0) return {};
    if constexpr (sharding.parameters) {
      if (!place.frozen) return {refresh_.tensor(unit, t), count};
    }
    return {parameters_.tensor(t), count};
  }
  std::span<Wire> gradient_view(std::size_t t) { return gradients_.tensor(t); }
  void release_parameters(int unit) noexcept {
    --unit_users_[static_cast<std::size_t>(unit)];
    if constexpr (sharding.parameters) refresh_.release(unit);
  }
  std::size_t last_bucket(int unit) const {
    std::size_t last = 0;
    for (std::size_t const g : partition_.groups_of(unit)) {
      Group const& group = partition_.groups()[g];
      last = std::max(last, group.first_bucket + group.bucket_count);
    }
    return last;
  }

  void agree() {
    if (agreed_) return;
    reduce_all();
    double const weight = reduction_.micro_steps() == 0 ? 1. : weight_;
    agreement_ = exchange_.agree(*comm_, norm_.squares(), norm_.overflows(), weight);
    agreed_ = true;
  }

  StepReport finish_step(StepOptions const& options, double norm, double clip) {
    for (int const unit : units_) {
      if (unit_users_[static_cast<std::size_t>(unit)] == 0) continue;
      fail(ErrorKind::invalid_argument,
           {"step() while the parameters of unit ", unit, " are in use"});
    }
    StepReport report{.step = steps_,
                      .grad_norm = norm,
                      .clip_coefficient = clip,
                      .loss_scale = loss_scale_.value(),
                      .weight = agreement_.weight};
    if (agreement_.overflow || agreement_.weight == 0.) {
      report.skipped = true;
      bool const expected = Precision::loss_scaled || options.non_finite == NonFinite::skip;
      bool const overflow = agreement_.overflow;
      discard_gradients();
      if (!overflow) fail(ErrorKind::data, "all micro-batches of this step have weight 0");
      if (!expected) fail(ErrorKind::data, "gradients are not finite");
      if constexpr (Precision::loss_scaled) loss_scale_.update(true);
      return report;
    }
    settle();
    report.step = ++steps_;
    detail::UpdateTerms const terms{
        .step = steps_,
        .learning_rate = options.learning_rate.value_or(rule_.lr),
        .gradient_scale = static_cast<float>(
            clip / (agreement_.weight * static_cast<double>(report.loss_scale)))};
    for (std::size_t b = 0; b < partition_.buckets().size(); ++b) {
      BucketSpan const& bucket = partition_.buckets()[b];
      auto const* const source = detail::update_source(*comm_, gradients_, staging_, bucket, b);
      update_.apply(rule_, terms, bucket, source, parameters_);
      if constexpr (sharding.optimizer && !sharding.parameters) refresh_.start(b);
    }
    if (!options.overlap_publish) settle();
    if constexpr (Precision::loss_scaled) loss_scale_.update(false);
    discard_gradients();
    return report;
  }

  Communicator* comm_;
  std::vector<Tensor> tensors_;
  Precision precision_;
  Rule rule_;
  Bucket bucket_;
  Prefetch prefetch_;
  Partition partition_;
  StorageElements elements_;
  detail::Arena<decltype(Memory::allocator), typename Slots::Space> arena_;
  detail::ParameterStore<Slots> parameters_;
  detail::GradientStore<Slots> gradients_;
  detail::Update<Slots> update_;
  detail::Staging<Slots> staging_;
  detail::GradientNorm<Slots> norm_;
  detail::Reduction<Slots> reduction_;
  Refresh refresh_;
  detail::AgreementExchange exchange_;
  detail::Agreement agreement_;
  LossScale loss_scale_;
  std::vector<int> units_;
  std::vector<int> units_backward_;
  std::vector<int> unit_users_;
  std::vector<std::vector<std::size_t>> unit_tensors_;
  double weight_ = 0.;
  long steps_ = 0;
  bool agreed_ = false;
};

/// Policies from the constructor's arguments.
template <Communicator C, class... Values>
ShardedOptimizer(C&, std::vector<Tensor>, Values...) -> ShardedOptimizer<C, Values...>;

}  // namespace zero::inline v0_1
