/// @file
/// The parts of an optimizer put together, and the mechanics of its steps.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/optimizer/arena.hpp"
#include "zero/optimizer/consensus.hpp"
#include "zero/optimizer/control.hpp"
#include "zero/optimizer/gather.hpp"
#include "zero/optimizer/gradient_store.hpp"
#include "zero/optimizer/norm.hpp"
#include "zero/optimizer/parameter_store.hpp"
#include "zero/optimizer/publish.hpp"
#include "zero/optimizer/reduction.hpp"
#include "zero/optimizer/staging.hpp"
#include "zero/optimizer/step.hpp"
#include "zero/optimizer/step_result.hpp"
#include "zero/optimizer/update.hpp"
#include "zero/optimizer/update_source.hpp"
#include "zero/precision/loss_scale.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline v0_1::detail {

/// The values behind the policies.
template <class Slots>
struct PolicyValues {
  typename Slots::Precision precision;
  typename Slots::Rule rule;
  typename Slots::Memory memory;
  Bucket bucket;
  Prefetch prefetch;
};

/// One rank's stores and stations, and the order in which a step passes through them.
///
/// All array memory is the space's: it is reached through the space only, and what a step decides
/// (norm, clipping, loss scale, whether to skip) is decided there. The host reads the outcome when
/// somebody asks for it. `ShardedOptimizer` documents what the functions do.
template <class Slots>
class Engine {
 public:
  using Communicator = typename Slots::Communicator;
  using Space = typename Slots::Space;
  using Parameter = typename Slots::Parameter;
  static constexpr Sharding sharding = Slots::sharding;

  ZERO_COLD Engine(Communicator& comm,
                   std::vector<Tensor> tensors,
                   PolicyValues<Slots> const& values,
                   PartitionOptions const& options)
      : comm_(&comm),
        tensors_(std::move(tensors)),
        rule_(values.rule),
        prefetch_(values.prefetch),
        partition_(tensors_, options),
        arena_(values.memory.allocator, space_of(comm)),
        elements_(agreed_elements(values)),
        parameters_(tensors_, partition_, elements_, arena_),
        gradients_(tensors_, partition_, comm.rank(), elements_, arena_),
        control_(arena_.template take<StepControl>(Role::control, 1).data()),
        update_(tensors_, partition_, comm.rank(), elements_, &control_->outcome.terms, arena_),
        staging_(partition_, elements_, arena_),
        norm_(partition_, comm.rank(), gradients_, &control_->squares, space()),
        reduction_(comm, partition_, gradients_, norm_, staging_, space()),
        refresh_(make_refresh()) {
    auto const units = static_cast<std::size_t>(partition_.placement().unit_count());
    unit_tensors_.resize(units);
    unit_users_.assign(units, 0);
    for (std::size_t unit = 0; unit < units; ++unit) units_.push_back(static_cast<int>(unit));
    units_backward_.assign(units_.rbegin(), units_.rend());
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      unit_tensors_[static_cast<std::size_t>(tensors_[t].unit)].push_back(t);
    }
    begin_control(values.precision);
  }

  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;

  [[nodiscard]] Communicator& comm() const noexcept { return *comm_; }
  [[nodiscard]] Space const& space() const noexcept { return arena_.space(); }
  [[nodiscard]] std::vector<Tensor> const& tensors() const noexcept { return tensors_; }
  [[nodiscard]] Partition const& partition() const noexcept { return partition_; }
  [[nodiscard]] Prefetch const& prefetch() const noexcept { return prefetch_; }
  [[nodiscard]] typename Slots::Rule const& rule() const noexcept { return rule_; }
  [[nodiscard]] MemoryBytes const& held() const noexcept { return arena_.held(); }
  [[nodiscard]] std::vector<int> const& units() const noexcept { return units_; }
  [[nodiscard]] std::vector<int> const& units_backward() const noexcept { return units_backward_; }
  [[nodiscard]] ParameterStore<Slots>& parameters() noexcept { return parameters_; }
  [[nodiscard]] ParameterStore<Slots> const& parameters() const noexcept { return parameters_; }
  [[nodiscard]] GradientStore<Slots>& gradients() noexcept { return gradients_; }
  [[nodiscard]] Update<Slots> const& update() const noexcept { return update_; }
  [[nodiscard]] Reduction<Slots>& reduction() noexcept { return reduction_; }
  [[nodiscard]] StepControl const* control() const noexcept { return control_; }

  void require_tensor(std::size_t tensor) const {
    if (tensor < tensors_.size()) return;
    fail(ErrorKind::invalid_argument,
         {"there is no tensor ", tensor, "; ", tensors_.size(), " are described"});
  }
  void require_bound() const {
    if constexpr (Slots::borrowed) {
      if (parameters_.lent().bound() && gradients_.lent().bound()) return;
      fail(ErrorKind::invalid_argument, "Borrowed<> memory is used before bind()");
    }
  }
  /// Master weights have been made from parameters or values.
  void masters_are_set() noexcept { masters_set_ = true; }
  /// Lent parameters have values of their own, which masters that were never set would replace.
  void require_masters() const {
    require_bound();
    if (masters_set_) return;
    fail(ErrorKind::invalid_argument,
         "step() before adopt_parameters() or load_parameters(): the master weights would replace "
         "the lent parameters, and have no values yet");
  }
  void prepare_to_bind() {
    if (reduction_.busy()) {
      fail(ErrorKind::invalid_argument, "bind() while gradients are being reduced");
    }
    settle();
  }

  [[nodiscard]] std::vector<std::size_t> const& tensors_of(int unit) const noexcept {
    return unit_tensors_[static_cast<std::size_t>(unit)];
  }
  void acquire_parameters(int unit) {
    require_unit(unit);
    require_bound();
    if constexpr (sharding.parameters) {
      refresh_.acquire(unit);
    } else if constexpr (sharding.optimizer) {
      refresh_.wait(last_bucket(unit));
    }
    ++unit_users_[static_cast<std::size_t>(unit)];
  }
  void release_parameters(int unit) noexcept {
    --unit_users_[static_cast<std::size_t>(unit)];
    if constexpr (sharding.parameters) refresh_.release(unit);
  }
  /// Parameters of a tensor, of an acquired unit where they are sharded.
  [[nodiscard]] std::span<Parameter const> parameter_view(int unit, std::size_t t) {
    TensorPlace const& place = partition_.placement().places()[t];
    auto const count = static_cast<std::size_t>(place.count);
    if (count == 0) return {};
    if constexpr (sharding.parameters) {
      if (!place.frozen) return {refresh_.tensor(unit, t), count};
    }
    return {parameters_.tensor(t), count};
  }

  void open_gradients(int unit) {
    require_unit(unit);
    require_bound();
    reduction_.open(unit);
  }
  void reduce_all() {
    require_bound();
    reduction_.finish();
  }
  void micro_step(MicroStep const& micro) {
    if (!(micro.weight >= 0.) || micro.weight > 0x1p60) {
      fail(ErrorKind::invalid_argument, "a micro-step's weight must be in [0, 2^60]");
    }
    reduction_.begin_micro_step(micro.last);
    weight_ += micro.weight;
  }

  /// Reduces what is left, then lets the ranks agree on norm, overflow and weight, and on having
  /// been told the same. Collective.
  void agree(Told const& told = {}) {
    if (agreed_) return;
    reduce_all();
    expect_outcome();
    detail::agree(*comm_, space(), control_, reduction_.micro_steps() == 0 ? 1. : weight_, told);
    agreed_ = true;
  }

  /// One step: agreement, decision, update, publication. Where the host can read the space it sees
  /// a step that is skipped and leaves; elsewhere all is queued, and the space skips what it must.
  /// @param scale  what to multiply the mean gradient by where `max_norm` does not
  void step(StepOptions const& options, double scale) {
    require_masters();
    constexpr bool scaled = Slots::Precision::loss_scaled;
    Decide decide{.control = control_,
                  .ended = ended(),
                  .max_norm = options.max_norm.value_or(Decide::no_limit),
                  .scale = scale,
                  .loss_scaled = scaled,
                  .skip_non_finite = scaled || options.non_finite == NonFinite::skip};
    for (int const unit : units_) {
      if (unit_users_[static_cast<std::size_t>(unit)] == 0) continue;
      fail(ErrorKind::invalid_argument,
           {"step() while the parameters of unit ", unit, " are in use"});
    }
    decide.told = {.known = true,
                   .options = hash(decide),
                   .learning_rate = options.learning_rate.value_or(rule_.lr),
                   .address = options.learning_rate_address};
    decide.agreed_before = agreed_;
    agree(decide.told);
    space().call(decide);
    expect_outcome();
    if constexpr (Space::host_accessible) {
      if (outcome().terms.skipped != 0) {
        discard_gradients();
        return;
      }
    }
    settle();
    for (std::size_t b = 0; b < partition_.buckets().size(); ++b) {
      BucketSpan const& bucket = partition_.buckets()[b];
      auto const* const source = update_source(*comm_, gradients_, staging_, bucket, b);
      update_.apply(rule_, bucket, source, parameters_);
      if constexpr (sharding.optimizer && !sharding.parameters) refresh_.start(b);
      progress(*comm_);
    }
    if (!options.overlap_publish) settle();
    discard_gradients();
  }

  /// What the last step did. Blocks if that is not known yet.
  /// @throws Error (data, invalid_argument) once for a step that failed
  [[nodiscard]] StepReport report() {
    if (StepFailure const failure = take_failure(); failure != StepFailure::none) refuse(failure);
    return last_report();
  }
  /// The same, but a step that failed is a value.
  [[nodiscard]] StepResult result() {
    if (StepFailure const failure = take_failure(); failure != StepFailure::none) {
      return error_of(failure);
    }
    return last_report();
  }

  /// The host's copy of what the space decided; fetched when it may be out of date, which after a
  /// step that was recorded is always.
  [[nodiscard]] StepOutcome const& outcome() const {
    if (stale_ || recorded_) {
      space().download(&outcome_, &control_->outcome, sizeof(StepOutcome));
      stale_ = confirmed_ = false;
    }
    return outcome_;
  }
  /// The same of a step that took place; what counts steps and scales stands even where one did
  /// not.
  /// @throws Error (communication) if the group has ended meanwhile
  [[nodiscard]] StepOutcome const& confirmed() const {
    StepOutcome const& now = outcome();
    if (!confirmed_) confirm(*comm_);
    confirmed_ = true;
    return now;
  }

  void discard_gradients() {
    reduction_.reset();
    agreed_ = false;
    weight_ = 0.;
  }

  void settle() {
    if constexpr (sharding.parameters) {
      refresh_.invalidate();
    } else if constexpr (sharding.optimizer) {
      refresh_.wait();
    }
  }

 private:
  [[nodiscard]] std::int64_t const* ended() const {
    if constexpr (ConfirmingCommunicator<Communicator> && !Space::host_accessible)
      return comm_->ended();
    return nullptr;
  }

  using Refresh = std::conditional_t<sharding.parameters, GatherPool<Slots>, Publish<Slots>>;

  /// The host's copy of the outcome is out of date, or will be whenever a recording is run.
  void expect_outcome() {
    stale_ = true;
    if constexpr (RecordingSpace<Space>) recorded_ = recorded_ || space().capturing();
  }

  /// Why a step since the last report failed, which counts as reported now.
  /// @throws Error (communication) if the group has ended meanwhile
  [[nodiscard]] StepFailure take_failure() {
    StepFailure const failure = confirmed().failure;
    if (failure != StepFailure::none) {
      space().call(Forgive{control_});
      stale_ = true;
    }
    return failure;
  }
  /// Of an outcome that is up to date.
  [[nodiscard]] StepReport last_report() const noexcept {
    StepTerms const& terms = outcome_.terms;
    return {.step = terms.step,
            .skipped = terms.skipped != 0,
            .grad_norm = terms.grad_norm,
            .clip_coefficient = terms.clip_coefficient,
            .loss_scale = terms.loss_scale,
            .weight = terms.weight};
  }

  void require_unit(int unit) const {
    if (unit >= 0 && static_cast<std::size_t>(unit) < units_.size()) return;
    fail(ErrorKind::invalid_argument,
         {"there is no unit ", unit, "; units are [0, ", units_.size(), ")"});
  }
  StorageElements agreed_elements(PolicyValues<Slots> const& values) {
    if constexpr (Slots::Precision::loss_scaled) require_valid(values.precision.loss_scale);
    require_consensus<Slots>(
        *comm_, arena_, tensors_, partition_, values.precision, rule_, values.bucket, prefetch_);
    return storage_elements(partition_, Slots::storage_choice(prefetch_.depth));
  }
  Refresh make_refresh() {
    if constexpr (sharding.parameters) {
      return Refresh(*comm_, partition_, parameters_, elements_, prefetch_.depth, arena_);
    } else {
      return Refresh(*comm_, partition_, parameters_, staging_, space());
    }
  }
  void begin_control(typename Slots::Precision const& precision) {
    StepControl initial;
    if constexpr (Slots::Precision::loss_scaled) {
      initial.loss_scale = LossScale(precision.loss_scale);
    } else {
      initial.loss_scale = LossScale({.initial = 1.f});
    }
    initial.outcome.terms.loss_scale = initial.loss_scale.value();
    initial.outcome.terms.next_loss_scale = initial.loss_scale.value();
    space().upload(control_, &initial, sizeof(initial));
    outcome_ = initial.outcome;
  }

  [[nodiscard]] std::size_t last_bucket(int unit) const {
    std::size_t last = 0;
    for (std::size_t const g : partition_.groups_of(unit)) {
      Group const& group = partition_.groups()[g];
      last = std::max(last, group.first_bucket + group.bucket_count);
    }
    return last;
  }

  Communicator* comm_;
  std::vector<Tensor> tensors_;
  typename Slots::Rule rule_;
  Prefetch prefetch_;
  Partition partition_;
  Arena<decltype(Slots::Memory::allocator), Space> arena_;
  StorageElements elements_;
  ParameterStore<Slots> parameters_;
  GradientStore<Slots> gradients_;
  StepControl* control_;
  Update<Slots> update_;
  Staging<Slots> staging_;
  GradientNorm<Slots> norm_;
  Reduction<Slots> reduction_;
  Refresh refresh_;
  std::vector<int> units_;
  std::vector<int> units_backward_;
  std::vector<int> unit_users_;
  std::vector<std::vector<std::size_t>> unit_tensors_;
  double weight_ = 0.;
  bool masters_set_ = !(Slots::borrowed && Slots::has_master);
  bool agreed_ = false;
  mutable bool stale_ = false;
  mutable bool confirmed_ = true;
  bool recorded_ = false;
  mutable StepOutcome outcome_;
};

}  // namespace zero::inline v0_1::detail
