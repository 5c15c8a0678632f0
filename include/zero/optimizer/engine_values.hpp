/// @file
/// What the engine does between steps: lent memory, values that a run starts
/// from, parameters.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/optimizer/api/full_parameters.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/broadcast.hpp"
#include "zero/optimizer/setup/owned.hpp"
#include "zero/optimizer/setup/same_values.hpp"
#include "zero/optimizer/setup/value_limits.hpp"
#include "zero/optimizer/setup/value_loading.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
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
                   parts_->types,
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
  bool const holds = parts_->form.reduced == StorageForm::Reduced::lent;
  ReductionOrder const& order = parts_->reduction.order();
  if (order.opened() || (holds && order.finished())) {
    fail(ErrorKind::invalid_argument,
         {holds ? "bind() while lent gradients hold reduced ones"
                : "bind() while gradients are being reduced",
          ": from the first gradients(unit) until ",
          holds ? "" : "reduce_all(), ",
          "step() or discard_gradients()"});
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

ZERO_BODY void Engine::on_gradients_free(FunctionRef<void(int)> callback) {
  parts_->reduction.lent_units().on_free(callback);
}

// Values that a run starts from.

inline constexpr unsigned char lost_values = 1;
inline constexpr unsigned char lost_states = 2;
/// Never had any, unlike others.
inline constexpr unsigned char no_values = 4;

ZERO_BODY void Engine::begin_values(std::string_view call) {
  parts_->require_bound();
  require_no_readers(call);
  parts_->refresh.settle();
}

template <class Work>
void Engine::replace(Content content, Work const& work) {
  std::vector<bool> const& those = parts_->tensors_of(content);
  begin_load(those, false);
  work(those.empty() ? nullptr : &those);
  end_load(those, false);
  values_are_set(content, true);
}

ZERO_BODY void Engine::load(Content content, ValueSource values) {
  begin_values(content == Content::bytes ? "load_bytes" : "load_parameters");
  replace(content, [&](std::vector<bool> const* those) {
    detail::load(*parts_, values, parts_->overflow, those);
  });
}

ZERO_BODY void Engine::load(LentSpans const& values) {
  std::vector<Tensor> const& tensors = parts_->described;
  if (tensors.size() != values.size()) {
    fail(ErrorKind::invalid_argument,
         {tensors.size(), " tensors are described but values of ", values.size(), " are given"});
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::uint64_t const count = element_count(tensors[t]);
    if (!tensors[t].tied_to.empty() || values[t].count == count) continue;
    if (parts_->types[parts_->kind_of(t)].opaque()) continue;
    Message const given{" has ", count, " elements, but values for ", values[t].count};
    fail(ErrorKind::invalid_argument, {"tensor '", tensors[t].name, "'", given, " are given"});
  }
  DType const type = parts_->kernels.types().value();
  auto const copy = [&](Tensor const& tensor, std::size_t first, Elements out) {
    auto const t = static_cast<std::size_t>(&tensor - tensors.data());
    Array const from{static_cast<std::byte*>(values[t].first), type};
    std::memcpy(out.first, from.at(first), from.bytes(out.count));
  };
  load(Content::numbers, ValueSource(copy));
}

ZERO_BODY void Engine::begin_broadcast(int root, std::string_view call) {
  int const ranks = parts_->comm().size();
  if (root < 0 || root >= ranks) {
    fail(ErrorKind::invalid_argument,
         {"there is no rank ", root, " to broadcast from; ranks are [0, ", ranks, ")"});
  }
  if (!parts_->now.confirmed() && parts_->reduction.order().begun()) {
    fail(ErrorKind::invalid_argument,
         {call,
          "() after gradients were asked for, or lent for this step: they are of the values that "
          "ranks had before; call it before the first backward pass, or discard_gradients() "
          "first"});
  }
  begin_values(call);
}

ZERO_BODY void Engine::broadcast(int root) {
  begin_broadcast(root, "broadcast_parameters");
  broadcast_held(*parts_, root);
  detail::adopt(*parts_);
  end_load({}, false);
  values_are_set(true);
}

ZERO_BODY void Engine::broadcast(Content content, ValueSource values, int root) {
  begin_broadcast(root, content == Content::bytes ? "broadcast_bytes" : "broadcast_parameters");
  replace(content,
          [&](std::vector<bool> const* those) { broadcast_values(*parts_, values, root, those); });
}

ZERO_BODY void Engine::adopt() {
  begin_values("adopt_parameters");
  detail::adopt(*parts_);
  for (unsigned char& each : parts_->now.lost) each &= lost_values | lost_states;
  end_load(std::vector<bool>(parts_->tensors.size()), true);
  values_are_set(false);
}

template <class Fill>
void Engine::fill_with(std::string_view call, Fill const& fill) {
  begin_values(call);
  fill();
  begin_load({}, true, false);
  require_fit(*parts_);
  follow({});
  end_load({}, true, false);
  values_are_set(Content::numbers, false, false);
}

ZERO_BODY void Engine::fill(OwnedVisitor fill) {
  fill_with("fill_owned", [&] { visit_owned(*parts_, true, fill); });
}

ZERO_BODY void Engine::visit(OwnedVisitor visit) const {
  parts_->require_bound();
  if (watch_) (*watch_)(WatchedUse::any);
  visit_owned(*parts_, false, visit);
}

ZERO_BODY void Engine::fill_held(HeldVisitor fill) {
  fill_with("fill_held", [&] { detail::visit_held(*parts_, true, fill); });
}

ZERO_BODY void Engine::visit_held(HeldVisitor visit) const {
  parts_->require_bound();
  if (watch_) (*watch_)(WatchedUse::any);
  detail::visit_held(*parts_, false, visit);
}

ZERO_BODY void Engine::confirm_values() {
  parts_->require_bound();
  if (parts_->space().capturing()) {
    fail(ErrorKind::invalid_argument,
         "ranks cannot compare what they start from while a step is captured; call "
         "check_parameters() before");
  }
  parts_->refresh.settle();
  compare_held(*parts_);
  if (parts_->groups.model() != nullptr) compare_replicated(*parts_);
  for (StepState::Values& each : parts_->now.values) each.confirmed = true;
}

ZERO_BODY void Engine::check_values() {
  parts_->require_bound();
  if (watch_) (*watch_)(WatchedUse::any);
  confirm_values();
  compare_masters(*parts_);
}

ZERO_BODY void Engine::begin_load(std::vector<bool> const& tensors, bool states, bool frozen) {
  parts_->refresh.settle();
  auto& lost = parts_->now.lost;
  bool const has_states = !parts_->kernels.types().states().empty();
  lost.resize(parts_->tensors.size());
  for (std::size_t t = 0; t < lost.size(); ++t) {
    TensorPlace const& place = parts_->partition.place(t);
    if (!tensors.empty() && !tensors[t]) continue;
    if (place.storage != t || place.count == 0 || (place.frozen && !frozen)) continue;
    lost[t] |= lost_values;
    if (states && has_states && !place.frozen) lost[t] |= lost_states;
  }
}

ZERO_BODY void Engine::follow(std::vector<bool> const& tensors) {
  parts_->refresh.settle();
  parts_->partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts_->held.of_bucket(bucket, Extent::updated, [&](HeldPiece const& piece) {
      bool const follows = tensors.empty() || tensors[piece.tensor()];
      if (!follows || !piece.types().has_whole_master()) return;
      parts_->kernels.of(piece.kind())
          .parameter_from_master(piece.parameter().first, piece.master().first, piece.count());
    });
    parts_->refresh.after_update(bucket);
  });
  parts_->refresh.settle();
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

ZERO_BODY void Engine::values_are_set(Content content, bool confirmed, bool all) noexcept {
  StepState::Values& now = parts_->now.of(content);
  bool const lent = parts_->form.parameters == StorageForm::Parameters::lent;
  bool trained_alone = true;
  for (std::size_t const t : parts_->partition.placement().by_offset()) {
    bool const frozen = parts_->partition.place(t).frozen && parts_->has(Content::numbers, t);
    trained_alone = trained_alone && !frozen;
  }
  now.set = now.set || all || lent || trained_alone;
  // Ranks of a data axis know nothing of those of a model axis.
  now.confirmed = now.none || (confirmed && parts_->groups.model() == nullptr);
  if (watch_) (*watch_)(WatchedUse::set);
}

ZERO_BODY void Engine::values_are_set(bool confirmed) noexcept {
  values_are_set(Content::numbers, confirmed);
  values_are_set(Content::bytes, confirmed);
}

ZERO_BODY void Engine::values_are_set(std::vector<bool> const& given, bool confirmed) {
  bool const lent = parts_->form.parameters == StorageForm::Parameters::lent;
  for (Content const content : {Content::numbers, Content::bytes}) {
    std::vector<std::size_t> without;
    bool any = false;
    bool all = true;
    for (std::size_t const t : parts_->partition.placement().by_offset()) {
      if (!parts_->has(content, t)) continue;
      any = any || given[t];
      all = all && given[t];
      if (!given[t] && !(lent && parts_->tensors[t].frozen)) without.push_back(t);
    }
    if (!without.empty() && (!any || parts_->now.of(content).set)) continue;
    if (!without.empty()) parts_->now.lost.resize(parts_->tensors.size());
    for (std::size_t const t : without) parts_->now.lost[t] |= no_values;
    values_are_set(content, confirmed && all);
  }
}

ZERO_BODY void Engine::require_values() const {
  require_found();
  if (watch_) (*watch_)(WatchedUse::masters);
  if (!parts_->now.of(Content::numbers).set) {
    fail(ErrorKind::invalid_argument,
         "the optimizer has no values yet: call load_parameters(values), "
         "broadcast_parameters(values) or adopt_parameters() first");
  }
  if (!parts_->now.of(Content::bytes).set) {
    fail(ErrorKind::invalid_argument,
         {"tensor '",
          first_opaque(*parts_),
          "' has no values yet: call load_bytes(values), broadcast_bytes(values) or "
          "adopt_parameters() first"});
  }
}

ZERO_BODY void Engine::require_bound() const { parts_->require_bound(); }

ZERO_BODY void Engine::require_between_steps(std::string_view call) const {
  if (!parts_->reduction.order().begun()) return;
  fail(ErrorKind::invalid_argument,
       {call, "() in the middle of a step; call step() or discard_gradients() first"});
}

ZERO_BODY void Engine::require_no_readers(std::string_view call) const {
  parts_->readers.require_none(call);
  if (watch_) (*watch_)(WatchedUse::any);
}

ZERO_BODY void Engine::require_found() const {
  if (!parts_->now.lost.empty()) refuse_lost();
}

ZERO_BODY void Engine::refuse_lost() const {
  auto const& losses = parts_->now.lost;
  auto const lost = [](unsigned char what) { return what != 0; };
  auto const first = std::find_if(losses.begin(), losses.end(), lost);
  auto const others = std::count_if(first, losses.end(), lost) - 1;
  bool const missing = *first == no_values;
  fail(ErrorKind::invalid_argument,
       {missing ? "some tensors have no values yet: " : "a load failed halfway: ",
        *first == lost_states ? "the states" : "the values",
        " of tensor '",
        parts_->tensors[static_cast<std::size_t>(first - losses.begin())].name,
        others > 0 ? Message({"' and of ", others, " more"}) : Message("'"),
        missing ? " are missing" : " are neither the old nor the new",
        "; load a checkpoint or a model that has them",
        missing ? ", or call load_parameters(values) or load_bytes(values)" : ""});
}

ZERO_BODY void Engine::refuse_no_masters() const {
  fail(ErrorKind::invalid_argument,
       "step() before adopt_parameters() or load_parameters(): the master weights would replace "
       "the lent parameters, and have no values yet");
}

// Parameters.

ZERO_BODY Elements Engine::whole_parameter(std::size_t tensor, std::optional<DType> asked) {
  parts_->require_bound();
  parts_->require_tensor(tensor);
  DType const dtype = parts_->parameters.dtype(parts_->kind_of(tensor));
  require_type(parts_->slices_of(tensor).first, &StorageTypes::parameter, asked);
  return parts_->whole(tensor, dtype, [&](std::size_t t) -> Elements {
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

ZERO_BODY void Engine::require_type(std::size_t t,
                                    DType StorageTypes::*of,
                                    std::optional<DType> asked) const {
  DType const type = parts_->types[parts_->partition.place(t).kind].*of;
  if (asked.value_or(type) != type) refuse_type(t, of, type, *asked);
}

ZERO_BODY void Engine::refuse_type(std::size_t t,
                                   DType StorageTypes::*of,
                                   DType type,
                                   DType asked) const {
  bool const gradients = of == &StorageTypes::wire;
  if (gradients && parts_->tensors[t].frozen) return;
  Message const is{name(type), ", not of ", name(asked), ": name their type, with as<T>"};
  char const* const what = gradients ? "gradients" : "parameters";
  fail(ErrorKind::invalid_argument,
       {"tensor '", parts_->tensors[t].name, "' has ", what, " of ", is});
}

ZERO_BODY Elements Engine::parameter(int unit, std::size_t t) {
  TensorPlace const& place = parts_->partition.place(t);
  auto const count = static_cast<std::size_t>(place.count);
  if (count == 0) return {};
  bool const gathered = parts_->parameters.shares(place.kind);
  return {gathered ? parts_->refresh.tensor(unit, t) : parts_->parameters.tensor(t).first, count};
}

ZERO_BODY void Engine::settle() { parts_->refresh.settle(); }

ZERO_BODY WholeModel::WholeModel(Engine& engine) : engine_(&engine) {
  Parts& parts = engine.parts();
  auto const& places = parts.partition.placement().places();
  auto const bytes_of = [&](std::size_t t) {
    return checked_mul(places[t].count, size_of(parts.parameters.dtype(places[t].kind)));
  };
  // Is there no memory in which all of a tensor lies?
  auto const copies = [&](std::size_t t) {
    bool const apart =
        !parts.policies.borrowed && parts.described[parts.slices[t].described].stacked;
    return apart || parts.parameters.shares(places[t].kind);
  };
  // Every copy begins at a cache line; slices of one tensor lie one after the other.
  constexpr std::uint64_t line = 64;
  std::vector<std::uint64_t> offsets(places.size());
  std::uint64_t end = 0;
  std::size_t described = parts.described.size();
  for (std::size_t t = 0; t < places.size(); ++t) {
    if (!copies(t) || places[t].storage != t) continue;
    if (parts.slices[t].described != described) end = round_up(end, line);
    described = parts.slices[t].described;
    offsets[t] = end;
    end = checked_add(end, bytes_of(t));
  }
  if (end > 0) memory_.emplace(parts.arena, static_cast<std::size_t>(end), Role::gather_pool);
  auto* const memory = static_cast<std::byte*>(memory_ ? memory_->data() : nullptr);
  std::vector<Elements> slices(places.size());
  for (int const unit : parts.units) {
    engine.acquire(unit);
    for (std::size_t const t : parts.unit_tensors[static_cast<std::size_t>(unit)]) {
      slices[t] = engine.parameter(unit, t);
      if (!copies(t) || slices[t].count == 0) continue;
      std::byte* const copy = memory + offsets[places[t].storage];
      if (places[t].storage == t) {
        parts.space().copy(copy, slices[t].first, static_cast<std::size_t>(bytes_of(t)));
      }
      slices[t].first = copy;
    }
    engine.release(unit);
  }
  for (std::size_t d = 0; d < parts.described.size(); ++d) {
    DType const dtype = parts.parameters.dtype(parts.kind_of(d));
    views_.push_back(parts.whole(d, dtype, [&](std::size_t t) { return slices[t]; }));
  }
  engine.acquire_all();
  end_ = [](Engine& held) noexcept { held.release_all(); };
}

ZERO_BODY Elements WholeModel::of(std::size_t tensor, DType asked) const {
  Parts const& parts = engine_->parts();
  parts.require_tensor(tensor);
  engine_->require_type(parts.slices_of(tensor).first, &StorageTypes::parameter, asked);
  return views_[tensor];
}

ZERO_BODY Elements WholeModel::of(std::string_view name, DType asked) const {
  Model const& model = engine_->model();
  std::size_t const t = model.by_name.find(model.described, name);
  if (t < views_.size()) return of(t, asked);
  fail(ErrorKind::invalid_argument, {"the model has no tensor '", name, "'"});
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
