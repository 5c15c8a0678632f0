/// @file
/// One step of several optimizers: one norm, one clip, one decision.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/sharded_optimizer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// One of several optimizers that step together.
struct Together {
  Engine* engine = nullptr;
  Decide decide{};
};

/// Reduces, decides and updates. Where the host can read the space and sees that ranks were told
/// different options, those that have not exchanged theirs by then stay as they are.
/// @returns how many have exchanged, and decided
/// @par Collective  yes
ZERO_APART std::size_t start_together(std::span<Together> all, StepOptions const& options);
/// `start_together`, and what it did.
/// @par Collective  yes; blocks
ZERO_APART [[nodiscard]] StepResult step_together(std::span<Together> all,
                                                  StepOptions const& options);

template <class... Optimizers>
[[nodiscard]] StepResult step_together_of(StepOptions const& options, Optimizers&... optimizers) {
  Together all[] = {{&EngineAccess::engine(optimizers)}...};
  return step_together(all, options);
}

}  // namespace detail

/// One step of several optimizers over one communicator, as of one that has all their tensors: one
/// norm of all gradients, one clip, one decision about overflow. All of them update, or none does.
/// Their precisions, rules and stages may differ.
///
///     zero::StepReport const report = zero::step_together({.max_norm = 1.}, generator, critic);
///
/// Where precision and weights are the same, and each unit is in one of them, parameters, norm and
/// report have the bits of one optimizer. Where tensors of a unit are in several, the norm may
/// differ in its last bit: squares are added in blocks of neighbours.
///
/// The gradients of all carry one loss scale, that of those that have one. These need the same
/// options and step together only, or a step fails once their scales differ. An optimizer without
/// one is told by nobody: a trainer asks one that has it for `loss_scale()`.
///
/// The gradients of each are divided by its own weight. Each counts its own updates.
/// @param options     as of `step()`; `learning_rate` is for all that have no rates of their own
/// @param optimizers  different ones over one communicator, or grid; in the same order on all ranks
/// @returns the report of the first; norm, clipping, loss scale and `skipped` are those of all
/// @par Collective  yes; blocks
/// @par Cost  that of a `step()` of each: each exchanges words of its own
/// @throws Error as `step()`; nothing is changed then. (invalid_argument) also if an optimizer is
///   named twice, or lives over another communicator; on every rank, if loss scales differ
template <class... Optimizers>
StepReport step_together(StepOptions const& options,
                         Optimizers&... optimizers) requires(sizeof...(Optimizers) > 0) {
  return detail::report_of(detail::step_together_of(options, optimizers...));
}

/// `step_together` that throws nothing, as `try_step()`.
template <class... Optimizers>
StepResult try_step_together(StepOptions const& options, Optimizers&... optimizers) noexcept
    requires(sizeof...(Optimizers) > 0) {
  return detail::attempt([&] { return detail::step_together_of(options, optimizers...); });
}

/// `step_together` that reports nothing, as `enqueue_step()`: nothing waits where work is queued.
/// `report()` of each optimizer has the outcome. After a failure all have to be asked.
/// @par Collective  yes; blocks only where the communicator does
template <class... Optimizers>
void enqueue_step_together(StepOptions const& options,
                           Optimizers&... optimizers) requires(sizeof...(Optimizers) > 0) {
  detail::Together all[] = {{&detail::EngineAccess::engine(optimizers)}...};
  detail::start_together(all, options);
  (optimizers.discard_gradients(), ...);
}

#if ZERO_BODIES

namespace detail {

/// @throws Error (invalid_argument) for optimizers that cannot step together
ZERO_APART void require_joinable(std::span<Together const> all);
ZERO_BODY void require_joinable(std::span<Together const> all) {
  auto const comm_of = [](Together const& each) {
    return each.engine->parts().groups.world().ref().comm;
  };
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (all[k].engine != all[i].engine) continue;
      fail(ErrorKind::invalid_argument,
           {"step_together() is given one optimizer twice: as number ", k + 1, " and ", i + 1});
    }
    if (comm_of(all[i]) == comm_of(all[0])) continue;
    fail(ErrorKind::invalid_argument,
         {"step_together() needs optimizers over one communicator; that of number ",
          i + 1,
          " is another than that of the first"});
  }
}

ZERO_BODY std::size_t start_together(std::span<Together> all, StepOptions const& options) {
  require_joinable(all);
  for (Together& each : all) each.decide = each.engine->prepare(options, 1.);
  // Ranks may have reduced more or less of any of them by now.
  for (Together& each : all) each.engine->reduce_all();
  // One whose gradients carry a loss scale decides, for those that know of none.
  auto const scaled = [](Together const& each) { return each.decide.loss_scaled; };
  bool const any_scaled = std::any_of(all.begin(), all.end(), scaled);
  std::size_t brought = 0;
  for (bool differ = false; brought < all.size() && !differ; ++brought) {
    auto& [engine, decide] = all[brought];
    decide.together = static_cast<std::int64_t>(all.size());
    decide.options.digest += all.size() - 1;
    decide.skip_non_finite = decide.skip_non_finite || any_scaled;
    engine->conclude(decide.options);
    // Who steps otherwise leaves now, and will not be there for the others' exchanges.
    Parts& parts = engine->parts();
    differ = parts.space().host_accessible() && parts.outcome.get().differ != 0;
  }
  all = all.first(brought);
  auto lead = std::find_if(all.begin(), all.end(), scaled);
  if (lead == all.end()) lead = all.begin();
  Parts& leading = lead->engine->parts();
  for (Together& each : all) {
    if (each.engine == lead->engine) continue;
    leading.kernels.call(Join{leading.control, each.decide.control, each.decide.loss_scaled});
    each.decide.lead = leading.control;
  }
  lead->engine->update(lead->decide, options);
  for (Together& each : all) {
    if (each.engine != lead->engine) each.engine->update(each.decide, options);
  }
  return brought;
}

ZERO_BODY StepResult step_together(std::span<Together> all, StepOptions const& options) {
  std::span<Together> const stepped = all.first(start_together(all, options));
  StepReport report;
  StepFailure failure = StepFailure::none;
  for (std::size_t i = stepped.size(); i-- > 0;) {
    // The last one taken is the first, whose report and failure count.
    StepFailure const own = stepped[i].engine->parts().outcome.take(report);
    if (own != StepFailure::none) failure = own;
  }
  auto const failed = [&] {
    std::vector<Parts*> parts;
    for (Together const& each : stepped) parts.push_back(&each.engine->parts());
    return StepResult(explain_failure(parts, failure));
  };
  StepResult result = failure == StepFailure::none ? StepResult(report) : failed();
  for (Together const& each : all) each.engine->discard_gradients();
  return result;
}

}  // namespace detail

#endif

}  // namespace zero::inline ZERO_NAMESPACE
