/// @file
/// What the engine's functions do.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/base/number.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/full_parameters.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/agreement.hpp"
#include "zero/optimizer/setup/broadcast.hpp"
#include "zero/optimizer/setup/loading.hpp"
#include "zero/optimizer/setup/owned.hpp"
#include "zero/optimizer/setup/same_values.hpp"
#include "zero/optimizer/step/failure_text.hpp"
#include "zero/optimizer/step/unwritten.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

ZERO_BODY Engine::Engine(EngineSetup const& setup, std::vector<Tensor> tensors) {
  parts_ = new Parts(agree(setup, std::move(tensors)));
  model_ = parts_;
  end_ = [](Parts* parts) noexcept { delete parts; };
}

ZERO_BODY Plan Engine::plan(std::uint64_t micro_steps) const {
  return make_plan(parts_->partition,
                   parts_->policies.choice(parts_->prefetch.depth, parts_->comm().held()),
                   plan_names(parts_->policies, parts_->rules.calls()),
                   micro_steps);
}

ZERO_BODY MemoryBytes Engine::held() const {
  MemoryBytes bytes = parts_->arena.held();
  bytes[Role::communicator] = parts_->comm().held();
  return bytes;
}

// Lent memory.

ZERO_BODY void Engine::prepare_to_bind() {
  if (parts_->reduction.order().opened()) {
    fail(ErrorKind::invalid_argument,
         "bind() while gradients are being reduced: from the first gradients(unit) until "
         "reduce_all(), step() or discard_gradients()");
  }
  parts_->refresh.settle();
}

ZERO_BODY void Engine::end_bind(bool all_gradients) {
  LentTensors& gradients = parts_->gradients.lent();
  if (!gradients.bound()) gradients.bind_none();
  parts_->parameters.lent().refuse_overlap_with(gradients);
  if (all_gradients) parts_->reduction.lent_units().use_all();
}

ZERO_BODY void Engine::bind(LentSpans const* parameters, LentSpans const* gradients) {
  prepare_to_bind();
  if (parameters != nullptr) parts_->parameters.lent().bind(*parameters, *parts_, true);
  if (gradients != nullptr) parts_->gradients.lent().bind(*gradients, *parts_, false);
  end_bind(gradients != nullptr);
}

ZERO_BODY void Engine::bind_flat(std::optional<Elements> parameters,
                                 std::optional<Elements> gradients) {
  prepare_to_bind();
  if (parameters) parts_->parameters.lent().bind_flat(*parameters, true);
  if (gradients) parts_->gradients.lent().bind_flat(*gradients, false);
  end_bind(gradients.has_value());
}

ZERO_BODY void Engine::bind_unit(int unit, LentSpans const& gradients) {
  parts_->require_unit(unit);
  parts_->require_bound();
  parts_->reduction.lend(unit);
  parts_->gradients.lent().bind_unit(parts_->unit_tensors[static_cast<std::size_t>(unit)],
                                     gradients,
                                     parts_->policies.full_gradients,
                                     parts_->parameters.lent());
}

ZERO_BODY bool Engine::gradients_free(int unit) const {
  parts_->require_unit(unit);
  return !parts_->reduction.lent_units().in_use(unit);
}

ZERO_BODY void Engine::on_gradients_free(FunctionRef<void(int)> told) {
  parts_->reduction.lent_units().tell(told);
}

// Values that a run starts from.

ZERO_BODY void Engine::begin_values(std::string_view call) {
  parts_->require_bound();
  require_no_readers(call);
  parts_->refresh.settle();
}

ZERO_BODY void Engine::end_values(bool confirmed) {
  end_load({}, false);
  values_are_set(confirmed);
}

ZERO_BODY void Engine::load(ValueSource values) {
  begin_values("load_parameters");
  auto const go_on = [] {};
  detail::load(*parts_, values, nullptr, FunctionRef<void()>(go_on));
  end_values(true);
}

ZERO_BODY void Engine::load(std::span<std::span<float const> const> values) {
  check_value_sizes(parts_->described, values);
  auto const copy = [&](Tensor const& tensor, std::size_t first, std::span<float> out) {
    auto const t = static_cast<std::size_t>(&tensor - parts_->described.data());
    std::copy_n(values[t].data() + first, out.size(), out.data());
  };
  load(ValueSource(copy));
}

ZERO_BODY void Engine::broadcast(int root) {
  begin_values("broadcast_parameters");
  broadcast_held(*parts_, root);
  detail::adopt(*parts_);
  end_values(true);
}

ZERO_BODY void Engine::broadcast(ValueSource values, int root) {
  begin_values("broadcast_parameters");
  broadcast_values(*parts_, values, root);
  end_values(true);
}

ZERO_BODY void Engine::adopt() {
  begin_values("adopt_parameters");
  detail::adopt(*parts_);
  values_are_set(false);
}

ZERO_BODY void Engine::fill(OwnedVisitor fill) {
  parts_->require_bound();
  require_no_readers("fill_owned");
  fill_owned(*parts_, fill);
  end_load({}, true, false);
  values_are_set(false, false);
}

ZERO_BODY void Engine::visit(OwnedVisitor visit) const {
  parts_->require_bound();
  visit_owned(*parts_, visit);
}

ZERO_BODY void Engine::confirm_values() {
  parts_->require_bound();
  if (parts_->space().capturing()) {
    fail(ErrorKind::invalid_argument,
         "ranks cannot compare what they start from while a step is captured; call "
         "check_parameters() before");
  }
  parts_->refresh.settle();
  compare_held(*parts_, parts_->now.values_set || parts_->policies.borrowed);
  if (parts_->groups.model() != nullptr) compare_replicated(*parts_);
  parts_->now.values_confirmed = true;
}

inline constexpr unsigned char lost_values = 1;
inline constexpr unsigned char lost_states = 2;

ZERO_BODY void Engine::begin_load(std::vector<bool> const& tensors, bool states) {
  parts_->refresh.settle();
  auto& lost = parts_->now.lost;
  lost.resize(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    TensorPlace const& place = parts_->partition.place(t);
    if (!tensors[t] || place.storage != t || place.count == 0) continue;
    lost[t] |= lost_values;
    if (states && parts_->policies.state_arrays > 0 && !place.frozen) lost[t] |= lost_states;
  }
}

ZERO_BODY void Engine::follow(std::vector<bool> const& tensors) {
  follow_masters(*parts_, [&](BucketSpan const&, Segment const& piece) {
    return bool{tensors[piece.tensor]};
  });
}

ZERO_BODY void Engine::end_load(std::vector<bool> const& tensors, bool states, bool frozen) {
  auto& lost = parts_->now.lost;
  bool any = false;
  for (std::size_t t = 0; t < lost.size(); ++t) {
    bool const replaced = tensors.empty() || tensors[t];
    if (replaced && (frozen || !parts_->tensors[t].frozen)) {
      lost[t] &= states ? 0 : lost_states;
    }
    any = any || lost[t] != 0;
  }
  if (!any) lost.clear();
}

ZERO_BODY void Engine::values_are_set(bool confirmed, bool all) noexcept {
  StepState& now = parts_->now;
  now.values_set = now.values_set || all || parts_->elements.frozen == 0;
  // Ranks of a data axis know nothing of those of a model axis.
  now.values_confirmed = confirmed && parts_->groups.model() == nullptr;
}

ZERO_BODY void Engine::require_values() const {
  require_found();
  if (parts_->now.values_set) return;
  fail(ErrorKind::invalid_argument,
       "the optimizer has no values yet: call load_parameters(), broadcast_parameters() or "
       "adopt_parameters() first");
}

ZERO_BODY void Engine::require_bound() const { parts_->require_bound(); }

ZERO_BODY void Engine::require_between_steps(std::string_view call) const {
  if (!parts_->reduction.order().begun()) return;
  fail(ErrorKind::invalid_argument,
       {call, "() in the middle of a step; call step() or discard_gradients() first"});
}

ZERO_BODY void Engine::require_no_readers(std::string_view call) const {
  parts_->readers.require_none(call);
}

ZERO_BODY void Engine::require_found() const {
  if (!parts_->now.lost.empty()) refuse_lost();
}

ZERO_BODY void Engine::refuse_lost() const {
  auto const& losses = parts_->now.lost;
  auto const lost = [](unsigned char what) { return what != 0; };
  auto const first = std::find_if(losses.begin(), losses.end(), lost);
  auto const others = std::count_if(first, losses.end(), lost) - 1;
  fail(ErrorKind::invalid_argument,
       {"a load failed halfway: ",
        (*first & lost_values) != 0 ? "the values" : "the states",
        " of tensor '",
        parts_->tensors[static_cast<std::size_t>(first - losses.begin())].name,
        others > 0 ? Message({"' and of ", others, " more"}) : Message("'"),
        " are neither the old nor the new; load a checkpoint or a model that has them"});
}

ZERO_BODY void Engine::refuse_no_masters() const {
  fail(ErrorKind::invalid_argument,
       "step() before adopt_parameters() or load_parameters(): the master weights would replace "
       "the lent parameters, and have no values yet");
}

// Parameters.

ZERO_BODY Elements Engine::whole_parameter(std::size_t tensor) {
  parts_->require_bound();
  return parts_->whole(tensor, parts_->parameters.dtype(), [&](std::size_t t) -> Elements {
    auto const count = static_cast<std::size_t>(parts_->partition.place(t).count);
    return {count > 0 ? parts_->parameters.tensor(t).first : nullptr, count};
  });
}

ZERO_BODY void Engine::acquire(int unit) {
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
  parts_->readers.enter(unit);
}

ZERO_BODY void Engine::release(int unit) noexcept {
  parts_->readers.leave(unit);
  parts_->refresh.after_read(unit);
}

ZERO_BODY void Engine::acquire_all() noexcept {
  for (int const unit : parts_->units) parts_->readers.enter(unit);
}

ZERO_BODY void Engine::release_all() noexcept {
  for (int const unit : parts_->units) parts_->readers.leave(unit);
}

ZERO_BODY Elements Engine::parameter(int unit, std::size_t t) {
  TensorPlace const& place = parts_->partition.place(t);
  auto const count = static_cast<std::size_t>(place.count);
  if (count == 0) return {};
  return {place.frozen ? parts_->parameters.tensor(t).first : parts_->refresh.tensor(unit, t),
          count};
}

ZERO_BODY void Engine::settle() { parts_->refresh.settle(); }

ZERO_BODY WholeModel::WholeModel(Engine& engine) : engine_(&engine) {
  Parts& parts = engine.parts();
  auto const& places = parts.partition.placement().places();
  DType const dtype = parts.parameters.dtype();
  // Is there no memory in which all of a tensor lies?
  auto const copies = [&](std::size_t t) {
    bool const apart =
        !parts.policies.borrowed && parts.described[parts.slices[t].described].stacked;
    return apart || (parts.form.refresh == StorageForm::Refresh::gather && !places[t].frozen);
  };
  // Every copy begins at a cache line; slices of one tensor lie one after the other.
  std::uint64_t const line = 64 / size_of(dtype);
  std::vector<std::uint64_t> offsets(places.size());
  std::uint64_t end = 0;
  std::size_t described = parts.described.size();
  for (std::size_t t = 0; t < places.size(); ++t) {
    if (!copies(t) || places[t].storage != t) continue;
    if (parts.slices[t].described != described) end = round_up(end, line);
    described = parts.slices[t].described;
    offsets[t] = end;
    end = checked_add(end, places[t].count);
  }
  if (end > 0) {
    auto const bytes = static_cast<std::size_t>(checked_mul(end, size_of(dtype)));
    memory_.emplace(parts.arena, bytes, Role::gather_pool);
  }
  Array const memory{memory_ ? static_cast<std::byte*>(memory_->data()) : nullptr, dtype};
  std::vector<Elements> slices(places.size());
  for (int const unit : parts.units) {
    engine.acquire(unit);
    for (std::size_t const t : parts.unit_tensors[static_cast<std::size_t>(unit)]) {
      slices[t] = engine.parameter(unit, t);
      if (!copies(t)) continue;
      std::byte* const copy = memory.at(offsets[places[t].storage]);
      if (places[t].storage == t) {
        parts.space().copy(copy, slices[t].first, memory.bytes(slices[t].count));
      }
      slices[t].first = copy;
    }
    engine.release(unit);
  }
  for (std::size_t d = 0; d < parts.described.size(); ++d) {
    views_.push_back(parts.whole(d, dtype, [&](std::size_t t) { return slices[t]; }));
  }
  engine.acquire_all();
  end_ = [](Engine& held) noexcept { held.release_all(); };
}

ZERO_BODY Elements WholeModel::operator[](std::string_view name) const {
  for (std::size_t t = 0; t < views_.size(); ++t) {
    if (engine_->model().described[t].name == name) return views_[t];
  }
  fail(ErrorKind::invalid_argument, {"the model has no tensor '", name, "'"});
}

// Gradients.

ZERO_BODY Elements Engine::whole_gradient(std::size_t tensor) {
  return parts_->whole(tensor, parts_->gradients.dtype(), [&](std::size_t t) {
    return parts_->gradients.tensor(t);
  });
}

ZERO_BODY std::uint64_t Engine::open(int unit, bool overwritten, bool checked) {
  if (checked && parts_->policies.borrowed) {
    fail(ErrorKind::invalid_argument,
         "gradients that are lent are only read, so that none can be marked as not written");
  }
  parts_->require_unit(unit);
  parts_->require_bound();
  if (parts_->policies.borrowed) {
    for (std::size_t const t : parts_->unit_tensors[static_cast<std::size_t>(unit)]) {
      parts_->gradients.lent().require_lent(t);
    }
  }
  parts_->reduction.open(unit, overwritten);
  if (checked) mark_unwritten(unit);
  return parts_->reduction.order().epoch();
}

ZERO_BODY void Engine::mark_unwritten(int unit) {
  for (std::size_t const t : parts_->unit_tensors[static_cast<std::size_t>(unit)]) {
    if (parts_->is_tied(t)) continue;
    Elements const gradient = parts_->gradients.tensor(t);
    detail::mark_unwritten(parts_->space(),
                           {static_cast<std::byte*>(gradient.first), parts_->gradients.dtype()},
                           gradient.count);
  }
}

ZERO_BODY void Engine::require_written(int unit, std::uint64_t epoch) const {
  parts_->reduction.order().require_live(unit, epoch);
  for (std::size_t const t : parts_->unit_tensors[static_cast<std::size_t>(unit)]) {
    if (parts_->is_tied(t) || parts_->presence.absent_now(t)) continue;
    Elements const gradient = parts_->gradients.tensor(t);
    std::size_t const first =
        first_unwritten(parts_->space(),
                        {static_cast<std::byte*>(gradient.first), parts_->gradients.dtype()},
                        gradient.count);
    if (first != gradient.count) parts_->refuse_unwritten(unit, t, first);
  }
}

ZERO_BODY Elements Engine::gradient(int unit, std::uint64_t epoch, std::size_t t) const {
  parts_->reduction.order().require_live(unit, epoch);
  return parts_->gradients.tensor(t);
}

ZERO_BODY void Engine::reduce(int unit, std::uint64_t epoch) {
  parts_->reduction.close(unit, epoch);
}

ZERO_BODY void Engine::declare_absent(int unit) {
  parts_->require_unit(unit);
  parts_->require_bound();
  parts_->reduction.declare(unit);
}

ZERO_BODY void Engine::declare_absent(Tensor const& tensor) {
  parts_->require_bound();
  auto const slices = parts_->slices_of(parts_->index_of(tensor));
  for (std::size_t t = slices.first; t < slices.second; ++t) {
    parts_->reduction.declare(parts_->tensors[t].unit, t);
  }
}

ZERO_BODY void Engine::micro_step(MicroStep const& micro) {
  if (!is_finite(micro.weight) || micro.weight < 0. || micro.weight > 0x1p60) {
    fail(ErrorKind::invalid_argument, "a micro-step's weight must be in [0, 2^60]");
  }
  parts_->reduction.begin_micro_step(micro.last);
  parts_->now.gradients.weight += micro.weight;
}

ZERO_BODY void Engine::reduce_all() {
  parts_->require_bound();
  parts_->reduction.finish();
}

ZERO_BODY void Engine::reduce_all(double weight) {
  parts_->require_bound();
  require_between_steps("reduce_all");
  micro_step({.weight = weight, .last = true});
  reduce_all();
}

ZERO_BODY void Engine::discard_gradients() {
  parts_->reduction.reset();
  parts_->now.gradients = {};
}

// A step.

/// What a step was told to do, as far as it was.
/// @param rate    the rule's, where the options have none
/// @param rules   digest of what updates each tensor
/// @param scaled  whether there is a loss scale
/// @throws Error (invalid_argument) for numbers that make no sense
ZERO_APART [[nodiscard]] Decide decision(
    StepOptions const& options, double scale, float rate, std::uint64_t rules, bool scaled);

ZERO_BODY void Engine::conclude(Told const& told) {
  bool const all = !parts_->now.gradients.concluded;
  double const weight =
      parts_->reduction.order().micro_steps() == 0 ? 1. : parts_->now.gradients.weight;
  Presence& presence = parts_->presence;
  TensorCounts const& counts = parts_->tensor_counts;
  if (all) {
    presence.conclude();
    auto const given = [&](std::size_t t) { return presence.gives(t); };
    auto const silent = [&](std::size_t t) { return presence.silent(t); };
    for (std::size_t t = 0; t < counts.tensors; t += TensorBits::capacity) {
      parts_->kernels.call(
          BringTensors{counts, {t, counts.tensors, given}, {t, counts.tensors, silent}});
    }
  }
  // All ranks' squares, overflows, weights, options and wishes to stop, and the gradients of each
  // tensor, are added up as integers: exact in any order. Ranks of a model axis have the same
  // micro-batches.
  Ranks& ranks = parts_->groups.world();
  StepControl* const control = parts_->control;
  parts_->kernels.call(
      Seal{control, told, all, parts_->counts() ? weight : 0., presence.silent_count()});
  std::int64_t* const words = control->words + (all ? 0 : StepControl::failed_word);
  ranks.run({.op = Op::all_reduce,
             .dtype = DType::i64,
             .accumulate = DType::i64,
             .count = all ? StepControl::word_count + counts.tensors
                          : StepControl::silent_word - StepControl::failed_word,
             .send = words,
             .recv = words});
  parts_->kernels.call(Conclude{control, ranks.size(), all, counts});
  parts_->now.gradients.concluded = true;
  parts_->outcome.expect();
}

ZERO_BODY double Engine::grad_norm() {
  reduce_all();
  if (!parts_->now.gradients.concluded) conclude({});
  StepOutcome const& now = parts_->outcome.confirmed();
  if (now.differ != 0) refuse_other_call();
  return now.terms.grad_norm;
}

ZERO_BODY void Engine::step(StepOptions const& options, double scale) {
  parts_->require_bound();
  require_found();
  if (parts_->policies.borrowed && !parts_->now.values_set) refuse_no_masters();
  require_no_readers("step");
  Decide decide = decision(options,
                           scale,
                           static_cast<float>(parts_->rules.common_rate()),
                           parts_->rules.digest(),
                           parts_->policies.loss_scaled);
  decide.control = parts_->control;
  decide.ended = parts_->groups.world().ended();
  // Ranks may have reduced more or less by now; from here on all do the same.
  reduce_all();
  if (!parts_->now.values_confirmed) confirm_values();
  conclude(decide.told);
  parts_->update.decide(decide);
  parts_->outcome.expect();
  parts_->now.told = decide;
  if (parts_->space().host_accessible() && parts_->outcome.get().terms.skipped != 0) return;
  parts_->refresh.settle();
  if (parts_->presence.any_may_rest() || options.count) count_missed(options);
  parts_->partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts_->update.apply(bucket, parts_->reduction.reduced(bucket));
    parts_->refresh.after_update(bucket);
    parts_->comm().progress();
  });
  if (!options.overlap_publish) parts_->refresh.settle();
}

ZERO_BODY void Engine::count_missed(StepOptions const& options) const {
  TensorCounts const& counts = parts_->tensor_counts;
  auto const may_rest = [&](std::size_t t) { return parts_->presence.may_rest(t); };
  for (std::size_t t = 0; t < counts.tensors; t += TensorBits::capacity) {
    parts_->kernels.call(CountMissed{
        parts_->control, counts, {t, counts.tensors, may_rest}, options.count.has_value()});
  }
}

ZERO_BODY StepResult Engine::taken() {
  StepReport report;
  StepFailure const failure = parts_->outcome.take(report);
  StepResult result =
      failure == StepFailure::none
          ? StepResult(report)
          : StepResult(explain_failure(*parts_, failure, parts_->now.told, terms().learning_rate));
  discard_gradients();
  return result;
}

ZERO_BODY StepResult Engine::result() { return parts_->outcome.result(); }

ZERO_BODY StepTerms const& Engine::terms() const { return parts_->outcome.get().terms; }

ZERO_BODY StepTerms const* Engine::terms_address() const noexcept {
  return &parts_->control->outcome.terms;
}

ZERO_BODY long Engine::steps(std::size_t tensor) const {
  parts_->require_tensor(tensor);
  auto const slices = parts_->slices_of(tensor);
  long least = missed(slices.first);
  for (std::size_t t = slices.first; ++t < slices.second;) least = (std::min)(least, missed(t));
  return terms().step - least;
}

ZERO_BODY long Engine::missed(std::size_t tensor) const {
  std::size_t const storage = parts_->partition.place(tensor).storage;
  if (!parts_->presence.may_have_rested(storage)) return 0;
  std::int64_t missed = 0;
  parts_->space().download(&missed, parts_->tensor_counts.missed + storage, sizeof(missed));
  return static_cast<long>(missed);
}

ZERO_BODY void Engine::refuse_other_call() {
  constexpr StepFailure failure = StepFailure::options_differ;
  Error const error = parts_->space().host_accessible()
                          ? explain_failure(*parts_, failure, {}, 0.f)
                          : error_of(failure, "the call: 'grad_norm' here, 'step' elsewhere");
  discard_gradients();
  fail_again(error);
}

ZERO_BODY Decide
decision(StepOptions const& options, double scale, float rate, std::uint64_t rules, bool scaled) {
  Decide decide{.max_norm = options.max_norm.value_or(Decide::no_limit),
                .scale = scale,
                .loss_scaled = scaled,
                .skip_non_finite = scaled || options.non_finite == NonFinite::skip,
                .count = options.count.value_or(0),
                .rules = rules};
  Hash told;  // of what numbers depend on besides the learning rate
  told.add(std::bit_cast<std::uint64_t>(decide.max_norm));
  told.add(std::bit_cast<std::uint64_t>(decide.scale));
  told.add(decide.skip_non_finite ? 1u : 0u);
  told.add(static_cast<std::uint64_t>(decide.count));
  told.add(rules);
  decide.told = {.known = true,
                 .options = told.value(),
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

// Rules and counters.

ZERO_BODY void const* Engine::rule() const noexcept { return parts_->rules.common(); }

ZERO_BODY void const* Engine::rule(std::size_t tensor) const {
  parts_->require_tensor(tensor);
  std::size_t const first = parts_->slices_of(tensor).first;
  return parts_->rules.of(parts_->partition.place(first).storage);
}

ZERO_BODY void Engine::set_rule(std::string_view name, void const* rule) {
  parts_->rules.set(name, rule);
}

ZERO_BODY void Engine::set_rate(std::string_view name, double rate) {
  parts_->rules.set_rate(name, rate);
}

ZERO_BODY Counters Engine::counters() const {
  StepControl now;
  parts_->space().download(&now, parts_->control, sizeof(now));
  Counters counters{.steps = std::vector<long>(parts_->tensors.size(), now.outcome.terms.step),
                    .loss_scale = now.loss_scale.value(),
                    .loss_scale_streak = now.loss_scale.streak(),
                    .step = now.outcome.terms.step};
  for (std::size_t t = 0; t < counters.steps.size(); ++t) counters.steps[t] -= missed(t);
  return counters;
}

/// The count of the run.
/// @throws Error (invalid_argument) unless each tensor has one from 0 to there
ZERO_APART [[nodiscard]] ZERO_COLD long steps_in(Counters const& counters,
                                                 std::vector<Tensor> const& tensors,
                                                 bool scaled);

ZERO_BODY void Engine::restore(Counters const& counters) {
  require_between_steps("restore");
  parts_->refresh.settle();
  long const steps = steps_in(counters, parts_->tensors, parts_->policies.loss_scaled);
  Hash hash;
  hash.add(static_cast<std::uint64_t>(steps));
  std::vector<std::int64_t> missed;
  for (long const own : counters.steps) {
    hash.add(static_cast<std::uint64_t>(own));
    missed.push_back(steps - own);
  }
  hash.add(std::bit_cast<std::uint32_t>(counters.loss_scale));
  hash.add(static_cast<std::uint64_t>(counters.loss_scale_streak));
  if (!unanimous(parts_->groups.world(), parts_->arena, hash.value())) {
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
  parts_->outcome.expect();
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

}  // namespace zero::inline ZERO_NAMESPACE::detail
