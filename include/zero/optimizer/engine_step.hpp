/// @file
/// What the engine does in a step: gradients, the exchange, the decision and the updates.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/base/hash.hpp"
#include "zero/base/number.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/step/failure_text.hpp"
#include "zero/optimizer/step/unwritten.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

// Gradients.

ZERO_BODY Elements Engine::whole_gradient(std::size_t tensor, std::optional<DType> asked) {
  parts_->require_tensor(tensor);
  DType const dtype = parts_->gradients.dtype(parts_->kind_of(tensor));
  require_type(parts_->slices_of(tensor).first, &StorageTypes::wire, asked);
  Elements const all =
      parts_->whole(tensor, dtype, [&](std::size_t t) { return parts_->gradients.tensor(t); });
  auto const slices = parts_->slices_of(tensor);
  for (std::size_t t = slices.first; t < slices.second; ++t) parts_->presence.hold(t);
  return all;
}

ZERO_BODY std::uint64_t Engine::open(int unit, bool overwritten, bool checked) {
  if (checked && parts_->policies.borrowed) {
    fail(ErrorKind::invalid_argument,
         "gradients that are lent are the trainer's, so that none can be marked as not written");
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
    DType const dtype = parts_->gradients.dtype(parts_->partition.place(t).kind);
    detail::mark_unwritten(
        parts_->space(), {static_cast<std::byte*>(gradient.first), dtype}, gradient.count);
  }
}

ZERO_BODY void Engine::require_written(int unit, std::uint64_t epoch) const {
  parts_->reduction.order().require_live(unit, epoch);
  for (std::size_t const t : parts_->unit_tensors[static_cast<std::size_t>(unit)]) {
    if (parts_->is_tied(t) || parts_->presence.absent_now(t)) continue;
    Elements const gradient = parts_->gradients.tensor(t);
    DType const dtype = parts_->gradients.dtype(parts_->partition.place(t).kind);
    std::size_t const first = first_unwritten(
        parts_->space(), {static_cast<std::byte*>(gradient.first), dtype}, gradient.count);
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

ZERO_BODY void Engine::conclude(RankOptions const& options) {
  if (options.known && !parts_->now.confirmed()) confirm_values();
  bool const all = !parts_->now.gradients.concluded;
  double const weight =
      parts_->reduction.order().micro_steps() == 0 ? 1. : parts_->now.gradients.weight;
  Presence& presence = parts_->presence;
  TensorCounts const& counts = parts_->tensor_counts;
  if (all) {
    presence.conclude();
    auto const present = [&](std::size_t t) { return presence.gives(t); };
    auto const silent = [&](std::size_t t) { return presence.silent(t); };
    auto const unsaid = [&](std::size_t t) { return presence.unsaid(t); };
    for (std::size_t t = 0; t < counts.tensors; t += TensorBits::capacity) {
      parts_->kernels.call(WriteTensorCounts{counts,
                                             {t, counts.tensors, present},
                                             {t, counts.tensors, silent},
                                             {t, counts.tensors, unsaid}});
    }
  }
  // All ranks' squares, overflows, weights, options and wishes to stop, and the gradients of each
  // tensor, are added up as integers: exact in any order. Ranks of a model axis have the same
  // micro-batches.
  Ranks& ranks = parts_->groups.world();
  StepControl* const control = parts_->control;
  parts_->kernels.call(WriteStepWords{control,
                                      options,
                                      all,
                                      parts_->counts() ? weight : 0.,
                                      presence.silent_count(),
                                      presence.all_empty()});
  std::int64_t* const words = control->words + (all ? 0 : StepControl::failed_word);
  ranks.run({.op = Op::all_reduce,
             .dtype = DType::i64,
             .accumulate = DType::i64,
             .count = all ? StepControl::word_count + counts.tensors : StepControl::repeated_words,
             .send = words,
             .recv = words});
  parts_->kernels.call(Conclude{control, ranks.size(), all, counts});
  parts_->now.gradients.concluded = true;
  parts_->outcome.expect();
}

ZERO_BODY double Engine::grad_norm() {
  reduce_all();
  if (!parts_->now.gradients.concluded) conclude({});
  StepOutcome const& now = parts_->outcome.get(true);
  if (now.differ != 0) refuse_other_call();
  return now.terms.grad_norm;
}

ZERO_BODY void Engine::visit_gradients(GradientVisitor visit) {
  static_cast<void>(grad_norm());
  walk_gradients(visit, false);
}

ZERO_BODY void Engine::change_gradients(GradientVisitor change) {
  bool& concluded = parts_->now.gradients.concluded;
  if (concluded) {
    fail(ErrorKind::invalid_argument,
         "change_gradients() after grad_norm() or visit_gradients(): the norm of what is to be "
         "changed is known to all ranks already; change first");
  }
  if (parts_->space().capturing()) {
    fail(ErrorKind::invalid_argument,
         "change_gradients() while a step is captured: what it is told is of this step alone");
  }
  // The mean is known once all have told each other their weights.
  static_cast<void>(grad_norm());
  // What is not finite stays, for all ranks to find it in the step.
  if (terms().overflow == 0) {
    parts_->norm.reset();
    walk_gradients(change, true);
  }
  concluded = false;
}

ZERO_BODY void Engine::walk_gradients(GradientVisitor visit, bool changes) {
  Parts& parts = *parts_;
  StepTerms const of = terms();
  double const scale = 1. / (of.weight * static_cast<double>(of.loss_scale));
  // A copy of what ranks have added up.
  std::vector<std::int64_t> words(parts.tensor_counts.tensors);
  TensorCounts counts;
  counts.words = words.data();
  if (parts.presence.any_may_rest()) {
    parts.space().download(
        words.data(), parts.tensor_counts.words, words.size() * sizeof(words[0]));
  }
  int const rank = parts.comm().rank();
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    Array const own = parts.reduction.own(bucket);
    parts.partition.for_each_segment(bucket.share(rank), [&](Segment const& piece) {
      if (parts.presence.may_rest(piece.tensor) && counts.present(piece.tensor) == 0) return;
      Slice const& slice = parts.slices[piece.tensor];
      visit({.tensor = &parts.described[slice.described],
             .first = static_cast<std::size_t>(slice.first + piece.in_tensor.offset()),
             .count = static_cast<std::size_t>(piece.count),
             .gradients = own.at(piece.in_range),
             .scale = scale,
             .kind = bucket.kind()});
    });
    if (changes) parts.reduction.changed(bucket, own);
  });
}

ZERO_BODY void Engine::step(StepOptions const& options, double scale) {
  Decide const decided = prepare(options, scale);
  // Ranks may have reduced more or less by now; from here on all do the same.
  reduce_all();
  conclude(decided.options);
  update(decided, options);
}

ZERO_BODY void Engine::update(Decide const& decide, StepOptions const& options) {
  parts_->update.decide(decide);
  parts_->outcome.expect();
  parts_->now.decided = decide;
  if (parts_->space().host_accessible() && parts_->outcome.get().terms.skipped != 0) return;
  parts_->refresh.settle();
  if (decide.unsaid == Unsaid::rest) parts_->presence.rest_unsaid();
  if (parts_->presence.any_may_rest() || options.count) {
    count_missed(options);
    parts_->outcome.expect();
  }
  if (parts_->kernels.measures()) measure();
  parts_->partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts_->update.apply(bucket, parts_->reduction.reduced(bucket));
    parts_->refresh.after_update(bucket);
    parts_->comm().progress();
  });
  if (!options.overlap_publish) parts_->refresh.settle();
}

ZERO_BODY void Engine::measure() {
  parts_->norms.reset();
  parts_->partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts_->norms.add(bucket, parts_->reduction.own(bucket));
    parts_->comm().progress();
  });
  parts_->norms.sum(parts_->comm());
  if (parts_->groups.model() != nullptr) parts_->norms.sum(*parts_->groups.model());
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
  StepResult result = failure == StepFailure::none
                          ? StepResult(report)
                          : StepResult(explain_failure({&parts_, 1}, failure));
  discard_gradients();
  return result;
}

ZERO_BODY StepResult Engine::result() {
  StepReport report;
  StepFailure const failure = parts_->outcome.take(report);
  return failure == StepFailure::none
             ? StepResult(report)
             : StepResult(error_of(failure, unsaid_values(*parts_, failure)));
}

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
  parts_->now.decided = {};
  Error const error =
      parts_->space().host_accessible()
          ? explain_failure({&parts_, 1}, failure)
          : error_of(failure, "options to step(): the call: 'grad_norm' here, 'step' elsewhere");
  discard_gradients();
  fail_again(error);
}

ZERO_BODY Decide Engine::prepare(StepOptions const& options, double scale) {
  parts_->require_bound();
  require_found();
  if (parts_->policies.borrowed && !parts_->now.of(Content::numbers).set) refuse_no_masters();
  require_no_readers("step");
  if (watch_) (*watch_)(WatchedUse::masters);
  bool const scaled = parts_->policies.loss_scaled;
  Decide decide{.control = parts_->control,
                .ended = parts_->groups.world().ended(),
                .max_norm = options.max_norm.value_or(Decide::no_limit),
                .scale = scale,
                .loss_scaled = scaled,
                .skip_non_finite = scaled || options.non_finite == NonFinite::skip,
                .unsaid = options.unsaid,
                .count = options.count.value_or(0),
                .rules = parts_->rules.digest()};
  Hash digest;  // of what numbers depend on besides the learning rate
  digest.add(std::bit_cast<std::uint64_t>(decide.max_norm));
  digest.add(std::bit_cast<std::uint64_t>(decide.scale));
  digest.add(decide.skip_non_finite ? 1u : 0u);
  digest.add(static_cast<std::uint64_t>(decide.unsaid));
  digest.add(static_cast<std::uint64_t>(decide.count));
  digest.add(decide.rules);
  parts_->now.float_mode = FloatMode::now();
  digest.add(parts_->now.float_mode.bits);
  decide.options = {.known = true,
                    .digest = digest.value(),
                    .learning_rate = options.learning_rate.value_or(parts_->rules.common_rate()),
                    .address = options.learning_rate_address,
                    .wide_address = options.learning_rate_address_double,
                    .in_double = parts_->kernels.in_double(),
                    .stop = options.stop};
  require_number({"the learning rate of a step"}, decide.options.learning_rate, 0.);
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
  bool const has_rate = options.learning_rate || options.learning_rate_address != nullptr ||
                        options.learning_rate_address_double != nullptr;
  parts_->now.rate_from = has_rate ? SetBy::options : parts_->rules.rate_from();
  return decide;
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
