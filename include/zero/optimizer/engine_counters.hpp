/// @file
/// The engine's rules and counters: what is set between steps, saved and restored.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/rank_words.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

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
  if (!RankWords(parts_->groups.world(), parts_->arena).unanimous(hash.value())) {
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
