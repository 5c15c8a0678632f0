/// @file
/// The way through a step: what each call of a trainer does to the parts.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"
#include "zero/optimizer/api/step.hpp"
#include "zero/optimizer/assembly.hpp"
#include "zero/optimizer/failure_text.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/outcome.hpp"
#include "zero/optimizer/setup/same_values.hpp"
#include "zero/optimizer/stations/control.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a step was told to do, as far as it was.
/// @param rate    the rule's, where the options have none
/// @param rules   digest of what updates each tensor
/// @param scaled  whether there is a loss scale
/// @throws Error (invalid_argument) for numbers that make no sense
ZERO_APART [[nodiscard]] Decide decision(
    StepOptions const& options, double scale, float rate, std::uint64_t rules, bool scaled);

/// The count of the run.
/// @throws Error (invalid_argument) unless each tensor has one from 0 to there
ZERO_APART [[nodiscard]] ZERO_COLD long steps_in(Counters const& counters,
                                                 std::vector<Tensor> const& tensors,
                                                 bool scaled);

/// One rank's steps. What a step decides (norm, clipping, loss scale, whether to skip) is decided
/// in the space; the host reads the outcome when somebody asks for it. `ShardedOptimizer` documents
/// what the functions do.
template <class Slots>
class Stepper {
 public:
  using Space = typename Slots::Space;
  using Parameter = typename Slots::Parameter;

  explicit Stepper(Assembly<Slots>& parts)
      : parts_(&parts),
        outcome_(*parts.groups.world, parts.control, parts.space()),
        readers_(parts.units.size()) {}
  Stepper(Stepper const&) = delete;
  Stepper& operator=(Stepper const&) = delete;

  [[nodiscard]] Outcome<typename Slots::Communicator>& outcome() noexcept { return outcome_; }
  [[nodiscard]] Outcome<typename Slots::Communicator> const& outcome() const noexcept {
    return outcome_;
  }

  void prepare_to_bind() {
    if (parts_->reduction.order().opened()) {
      fail(ErrorKind::invalid_argument,
           "bind() while gradients are being reduced: from the first gradients(unit) until "
           "reduce_all(), step() or discard_gradients()");
    }
    parts_->refresh.settle();
  }
  /// Parameters were lent, or gradients, or both.
  void end_bind(bool all_gradients = true) {
    auto& gradients = parts_->gradients.lent();
    if (!gradients.bound()) gradients.bind_none();
    parts_->parameters.lent().refuse_overlap_with(gradients);
    if (all_gradients) parts_->reduction.lent_units().use_all();
  }
  /// Lends a unit's gradients for this step, or micro-step.
  void bind_unit(int unit, std::span<std::span<typename Slots::Wire> const> gradients) {
    parts_->require_unit(unit);
    parts_->require_bound();
    parts_->reduction.lend(unit);
    parts_->gradients.lent().bind_unit(parts_->unit_tensors[static_cast<std::size_t>(unit)],
                                       gradients,
                                       Slots::Accumulation::full_gradients,
                                       parts_->parameters.lent());
  }
  /// Parameters, and master weights with them, have got values.
  /// @param confirmed  whether all ranks are known to have got the same
  /// @param all        frozen tensors, too
  void values_are_set(bool confirmed, bool all = true) noexcept {
    values_set_ = values_set_ || all || parts_->elements.frozen == 0;
    // Ranks of a data axis know nothing of those of a model axis.
    values_confirmed_ = confirmed && parts_->groups.model == nullptr;
  }
  /// Of these tensors, values and perhaps states are about to be replaced. They are lost, and
  /// nothing steps or saves, until a load has replaced as much of each of them.
  /// @param tensors  the same on all ranks
  ZERO_COLD void begin_load(std::vector<bool> const& tensors, bool states) {
    lost_.resize(tensors.size());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      TensorPlace const& place = parts_->partition.placement().places()[t];
      if (!tensors[t] || place.storage != t || place.count == 0) continue;
      lost_[t] |= lost_values;
      if (states && Slots::state_arrays > 0 && !place.frozen) lost_[t] |= lost_states;
    }
  }
  /// They have been replaced.
  /// @param tensors  as above; empty: all
  /// @param frozen   whether tensors that are frozen are among them
  ZERO_COLD void end_load(std::vector<bool> const& tensors, bool states, bool frozen = true) {
    bool any = false;
    for (std::size_t t = 0; t < lost_.size(); ++t) {
      bool const replaced = tensors.empty() || tensors[t];
      if (replaced && (frozen || !parts_->tensors[t].frozen)) {
        lost_[t] &= states ? 0 : lost_states;
      }
      any = any || lost_[t] != 0;
    }
    if (!any) lost_.clear();
  }
  /// Is there anything to save? Lent parameters have values, but their masters may have none.
  void require_values() const {
    require_found();
    if (values_set_) return;
    fail(ErrorKind::invalid_argument,
         "the optimizer has no values yet: call load_parameters(), broadcast_parameters() or "
         "adopt_parameters() first");
  }
  /// @param call  what a trainer called
  void require_between_steps(std::string_view call) const {
    if (!parts_->reduction.order().begun()) return;
    fail(ErrorKind::invalid_argument,
         {call, "() in the middle of a step; call step() or discard_gradients() first"});
  }
  /// A guard would go on to show what was there before.
  /// @param call  what a trainer called, which replaces parameters
  void require_no_readers(std::string_view call) const { readers_.require_none(call); }
  /// Do all ranks have the same values? Collective.
  ZERO_COLD void confirm_values() {
    parts_->require_bound();
    if constexpr (RecordingSpace<Space>) {
      if (parts_->space().capturing()) {
        fail(ErrorKind::invalid_argument,
             "ranks cannot compare what they start from while a step is captured; call "
             "check_parameters() before");
      }
    }
    parts_->refresh.settle();
    compare_held(*parts_, values_set_ || Slots::Memory::borrowed);
    if (parts_->groups.model != nullptr) compare_replicated(*parts_);
    values_confirmed_ = true;
  }

  [[nodiscard]] ZERO_COLD Counters counters() const {
    StepControl now;
    parts_->space().download(&now, parts_->control, sizeof(now));
    Counters counters{.steps = std::vector<long>(parts_->tensors.size(), now.outcome.terms.step),
                      .loss_scale = now.loss_scale.value(),
                      .loss_scale_streak = now.loss_scale.streak(),
                      .step = now.outcome.terms.step};
    for (std::size_t t = 0; t < counters.steps.size(); ++t) counters.steps[t] -= missed(t);
    return counters;
  }
  /// Updates that a tensor has missed.
  [[nodiscard]] ZERO_COLD long missed(std::size_t tensor) const {
    std::size_t const storage = parts_->partition.placement().places()[tensor].storage;
    if (!parts_->presence.may_have_rested(storage)) return 0;
    std::int64_t missed = 0;
    parts_->space().download(&missed, parts_->tensor_counts.missed + storage, sizeof(missed));
    return static_cast<long>(missed);
  }
  ZERO_COLD void restore(Counters const& counters) {
    require_between_steps("restore");
    parts_->refresh.settle();
    long const steps = steps_in(counters, parts_->tensors, Slots::Precision::loss_scaled);
    Hash hash;
    hash.add(static_cast<std::uint64_t>(steps));
    std::vector<std::int64_t> missed;
    for (long const own : counters.steps) {
      hash.add(static_cast<std::uint64_t>(own));
      missed.push_back(steps - own);
    }
    hash.add(std::bit_cast<std::uint32_t>(counters.loss_scale));
    hash.add(static_cast<std::uint64_t>(counters.loss_scale_streak));
    if (!unanimous(*parts_->groups.world, parts_->arena, hash.value())) {
      fail(ErrorKind::invalid_argument,
           {"ranks restore different counters; here ", steps, " steps"},
           parts_->groups.here("restore"));
    }
    StepControl now;
    parts_->space().download(&now, parts_->control, sizeof(now));
    now.loss_scale =
        LossScale(now.loss_scale.options(), counters.loss_scale, counters.loss_scale_streak);
    now.outcome.terms.step = steps;
    now.outcome.terms.next_loss_scale = counters.loss_scale;
    parts_->space().upload(parts_->control, &now, sizeof(now));
    parts_->space().upload(
        parts_->tensor_counts.missed, missed.data(), missed.size() * sizeof(missed[0]));
    for (std::size_t t = 0; t < missed.size(); ++t) {
      parts_->presence.set_rested(t, missed[t] != 0);
    }
    outcome_.expect();
  }

  void acquire_parameters(int unit) {
    parts_->require_unit(unit);
    parts_->require_bound();
#if defined(__cpp_exceptions)
    try {
      parts_->refresh.before_read(unit);
    } catch (Error const& error) {
      if (error.kind() != ErrorKind::communication) throw;
      parts_->refuse_read(unit, error);
    }
#else
    parts_->refresh.before_read(unit);
#endif
    readers_.enter(unit);
  }
  void release_parameters(int unit) noexcept {
    readers_.leave(unit);
    parts_->refresh.after_read(unit);
  }
  /// Says that somebody reads parameters of all units, which `full_parameters` has brought.
  void acquire_all() noexcept {
    for (int const unit : parts_->units) readers_.enter(unit);
  }
  void release_all() noexcept {
    for (int const unit : parts_->units) readers_.leave(unit);
  }
  /// A tensor of an acquired unit.
  [[nodiscard]] std::span<Parameter const> parameter_view(int unit, std::size_t t) {
    TensorPlace const& place = parts_->partition.placement().places()[t];
    auto const count = static_cast<std::size_t>(place.count);
    if (count == 0) return {};
    return {place.frozen ? parts_->parameters.tensor(t) : parts_->refresh.tensor(unit, t), count};
  }

  void open_gradients(int unit, bool overwritten) {
    parts_->require_unit(unit);
    parts_->require_bound();
    if constexpr (Slots::Memory::borrowed) {
      for (std::size_t const t : parts_->unit_tensors[static_cast<std::size_t>(unit)]) {
        parts_->gradients.lent().require_lent(t);
      }
    }
    parts_->reduction.open(unit, overwritten);
  }
  void declare_absent(int unit) {
    parts_->require_unit(unit);
    parts_->require_bound();
    parts_->reduction.declare(unit);
  }
  void declare_absent(Tensor const& tensor) {
    parts_->require_bound();
    auto const slices = parts_->slices_of(parts_->index_of(tensor));
    for (std::size_t t = slices.first; t < slices.second; ++t) {
      parts_->reduction.declare(parts_->tensors[t].unit, t);
    }
  }
  void micro_step(MicroStep const& micro) {
    if (!is_finite(micro.weight) || micro.weight < 0. || micro.weight > 0x1p60) {
      fail(ErrorKind::invalid_argument, "a micro-step's weight must be in [0, 2^60]");
    }
    parts_->reduction.begin_micro_step(micro.last);
    weight_ += micro.weight;
  }
  void reduce_all() {
    parts_->require_bound();
    parts_->reduction.finish();
  }
  void reduce_all(double weight) {
    parts_->require_bound();
    require_between_steps("reduce_all");
    micro_step({.weight = weight, .last = true});
    reduce_all();
  }

  /// Reduces what is left, then brings ranks' squares, overflows, weights and what they were told
  /// together. Collective.
  void conclude(Told const& told = {}) {
    if (concluded_) return;
    reduce_all();
    outcome_.expect();
    double const weight = parts_->reduction.order().micro_steps() == 0 ? 1. : weight_;
    auto& presence = parts_->presence;
    presence.conclude();
    for_tensor_bits(
        parts_->tensors.size(),
        [&](std::size_t t) { return presence.gives(t); },
        [&](TensorBits const& given) {
          parts_->space().call(BringTensors{parts_->tensor_counts, given});
        });
    // Ranks of a model axis have the same micro-batches.
    exchange_terms(*parts_->groups.world,
                   parts_->space(),
                   parts_->control,
                   parts_->tensors.size(),
                   parts_->counts() ? weight : 0.,
                   told,
                   presence.unsaid());
    concluded_ = true;
  }

  /// The norm of the mean gradient. Collective.
  [[nodiscard]] double grad_norm() {
    conclude();
    StepOutcome const& now = outcome_.confirmed();
    if (now.differ != 0) refuse_other_call();
    return now.terms.grad_norm;
  }

  /// One step: exchange, decision, update, refresh. `taken()` or `discard_gradients()` ends it.
  /// Where the host can read the space it sees a step that is skipped and leaves; elsewhere all is
  /// queued, and the space skips what it must.
  /// @param scale  what to multiply the mean gradient by where `max_norm` does not
  void step(StepOptions const& options, double scale) {
    require_masters();
    require_no_readers("step");
    auto& rules = parts_->rules;
    Decide decide = decision(options,
                             scale,
                             static_cast<float>(rules.common().lr),
                             rules.digest(),
                             Slots::Precision::loss_scaled);
    decide.control = parts_->control;
    decide.ended = ended();
    // Ranks may have reduced more or less by now; from here on all do the same.
    reduce_all();
    if (!values_confirmed_) confirm_values();
    if (concluded_) {
      exchange_options(*parts_->groups.world, parts_->space(), parts_->control, decide.told);
    } else {
      conclude(decide.told);
    }
    parts_->update.decide(decide);
    outcome_.expect();
    told_ = decide;
    if constexpr (Space::host_accessible) {
      if (outcome_.get().terms.skipped != 0) return;
    }
    parts_->refresh.settle();
    if (parts_->presence.any_may_rest() || options.count) {
      for_tensor_bits(
          parts_->tensors.size(),
          [&](std::size_t t) { return parts_->presence.may_rest(t); },
          [&](TensorBits const& may_rest) {
            parts_->space().call(CountMissed{
                parts_->control, parts_->tensor_counts, may_rest, options.count.has_value()});
          });
    }
    parts_->partition.for_each_bucket([&](BucketSpan const& bucket) {
      parts_->update.apply(bucket, parts_->reduction.reduced(bucket));
      parts_->refresh.after_update(bucket);
      progress(*parts_->comm);
    });
    if (!options.overlap_publish) parts_->refresh.settle();
  }

  /// What the step just taken did, for a trainer that waits for it. Where it failed, all ranks have
  /// found that in the same exchange, and tell each other what they were told, or have found.
  /// @par Collective  where it failed; blocks
  [[nodiscard]] StepResult taken() {
    StepResult result = verdict();
    discard_gradients();
    return result;
  }

  void discard_gradients() {
    parts_->reduction.reset();
    concluded_ = false;
    weight_ = 0.;
  }

 private:
  [[nodiscard]] StepResult verdict() {
    StepFailure const failure = outcome_.take_failure();
    if (failure == StepFailure::none) return outcome_.last();
    return explain_failure(*parts_, failure, told_, outcome_.get().terms.learning_rate);
  }
  /// Others are in `step()`. Where the host can read the space they have seen it as well, and tell
  /// this rank; elsewhere they have queued all of the step, which this rank will never join.
  [[noreturn]] ZERO_COLD void refuse_other_call() {
    constexpr StepFailure failure = StepFailure::options_differ;
    Error const error = Space::host_accessible
                            ? explain_failure(*parts_, failure, {}, 0.f)
                            : error_of(failure, "the call: 'grad_norm' here, 'step' elsewhere");
    discard_gradients();
    fail_again(error);
  }
  void require_found() const {
    if (!lost_.empty()) refuse_lost();
  }
  [[noreturn]] ZERO_COLD void refuse_lost() const {
    auto const lost = [](unsigned char what) { return what != 0; };
    auto const first = std::find_if(lost_.begin(), lost_.end(), lost);
    auto const others = std::count_if(first, lost_.end(), lost) - 1;
    fail(ErrorKind::invalid_argument,
         {"a load failed halfway: ",
          (*first & lost_values) != 0 ? "the values" : "the states",
          " of tensor '",
          parts_->tensors[static_cast<std::size_t>(first - lost_.begin())].name,
          others > 0 ? Message({"' and of ", others, " more"}) : Message("'"),
          " are neither the old nor the new; load a checkpoint or a model that has them"});
  }
  /// Lent parameters have values of their own, which masters that were never set would replace.
  void require_masters() const {
    parts_->require_bound();
    require_found();
    if (values_set_ || !Slots::Memory::borrowed) return;
    fail(ErrorKind::invalid_argument,
         "step() before adopt_parameters() or load_parameters(): the master weights would replace "
         "the lent parameters, and have no values yet");
  }
  [[nodiscard]] std::int64_t const* ended() const {
    if constexpr (ConfirmingCommunicator<typename Slots::Communicator> && !Space::host_accessible)
      return parts_->groups.world->ended();
    return nullptr;
  }

  Assembly<Slots>* parts_;
  Outcome<typename Slots::Communicator> outcome_;
  UnitReaders readers_;
  double weight_ = 0.;
  bool values_set_ = Slots::Memory::borrowed && !Slots::has_master;
  bool values_confirmed_ = false;
  bool concluded_ = false;
  static constexpr unsigned char lost_values = 1;
  static constexpr unsigned char lost_states = 2;
  std::vector<unsigned char> lost_;  ///< of each tensor, by loads that failed; empty if nothing is
  Decide told_{};                    ///< what the last step was told
};

#if ZERO_BODIES

ZERO_BODY Decide
decision(StepOptions const& options, double scale, float rate, std::uint64_t rules, bool scaled) {
  Decide decide{.max_norm = options.max_norm.value_or(Decide::no_limit),
                .scale = scale,
                .loss_scaled = scaled,
                .skip_non_finite = scaled || options.non_finite == NonFinite::skip,
                .count = options.count.value_or(0),
                .rules = rules};
  decide.told = {.known = true,
                 .options = hash(decide),
                 .learning_rate = options.learning_rate.value_or(rate),
                 .address = options.learning_rate_address,
                 .stop = options.stop};
  require_number({"the learning rate of a step"}, decide.told.learning_rate, 0.);
  require_number({"the scale of a step"}, scale, 0.);
  if (options.count && (*options.count < 1 || *options.count > most_steps)) {
    fail(ErrorKind::invalid_argument,
         {"the count of a step is ", *options.count, ", but updates count from 1 to ", most_steps});
  }
  if (is_nan(decide.max_norm) || !(decide.max_norm > 0.)) {
    fail(ErrorKind::invalid_argument,
         {"max_norm is ",
          decide.max_norm,
          ", but must be greater than 0; a learning rate of 0 freezes the model"});
  }
  return decide;
}

ZERO_BODY long steps_in(Counters const& counters, std::vector<Tensor> const& tensors, bool scaled) {
  auto const refuse = [](Message const& why) {
    fail(ErrorKind::invalid_argument, {"restore(): ", why});
  };
  if (counters.steps.size() != tensors.size()) {
    refuse({tensors.size(),
            " tensors are described but the steps of ",
            counters.steps.size(),
            " are given"});
  }
  long steps = counters.step < 0 ? 0 : counters.step;
  for (long const own : counters.steps) {
    if (counters.step < 0 && own > steps) steps = own;
  }
  if (steps > most_steps) refuse({steps, " steps are more than a run can have"});
  for (std::size_t t = 0; t < counters.steps.size(); ++t) {
    if (counters.steps[t] >= 0 && counters.steps[t] <= steps) continue;
    refuse({"tensor '",
            tensors[t].name,
            "' has ",
            counters.steps[t],
            " steps, but must have at least 0 and at most the ",
            steps,
            " of the run"});
  }
  if (!scaled && (counters.loss_scale != 1.f || counters.loss_scale_streak != 0)) {
    refuse("there is a loss scale, but this precision has none");
  }
  if (!usable_scale(counters.loss_scale)) {
    refuse("the loss scale must be finite and at least 2^-126");
  }
  if (!usable_streak(counters.loss_scale_streak)) {
    refuse({"no step can go on from a streak of ", counters.loss_scale_streak});
  }
  return steps;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
