/// @file
/// Policies by number: what a trainer in C asks for, and what ZERO_C_DEFINE has instantiated.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/structs.hpp"
#include "zero/concepts/accumulation.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/concepts/stage.hpp"
#include "zero/precision/bf16.hpp"
#include "zero/precision/fp32.hpp"
#include "zero/precision/fp64.hpp"
#include "zero/precision/mixed.hpp"
#include "zero/rule/adagrad.hpp"
#include "zero/rule/adam.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/amsgrad.hpp"
#include "zero/rule/eight_bit.hpp"
#include "zero/rule/lamb.hpp"
#include "zero/rule/lars.hpp"
#include "zero/rule/lion.hpp"
#include "zero/rule/nadam.hpp"
#include "zero/rule/rmsprop.hpp"
#include "zero/rule/sgd.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::c {

/// Every slot that the C interface chooses in.
enum class PolicySlot : std::uint8_t {
  stage,         ///< what is partitioned
  precision,     ///< types
  rule,          ///< of the update
  accumulation,  ///< of micro-batches
  memory         ///< whose
};
/// How many these are.
inline constexpr int slots = 5;

/// What messages call the slot.
[[nodiscard]] constexpr std::string_view name(PolicySlot slot) noexcept {
  constexpr std::string_view names[slots] = {
      "stage", "precision", "rule", "accumulation", "memory"};
  return names[static_cast<int>(slot)];
}

/// The number by which the C interface asks for a policy. One of the trainer's own gets one in the
/// file that has ZERO_C_DEFINE, before it:
///
///     template <>
///     inline constexpr std::int32_t zero::c::number<MyRule> = 1000;
template <class Policy>
inline constexpr std::int32_t number = -1;

/// All that zero/c.h has numbers for: slot, number, policy, which may have commas.
#define ZERO_C_POLICIES(X)                                             \
  X(stage, ZERO_REPLICATED, stage::Replicated)                         \
  X(stage, ZERO_POS, stage::Pos)                                       \
  X(stage, ZERO_POS_G, stage::PosG)                                    \
  X(stage, ZERO_POS_G_P, stage::PosGP)                                 \
  X(precision, ZERO_FP32, Fp32)                                        \
  X(precision, ZERO_BF16, Mixed<zero::bf16>)                           \
  X(precision, ZERO_FP16, Mixed<zero::fp16>)                           \
  X(precision, ZERO_FP64, Fp64)                                        \
  X(precision, ZERO_BF16_HALF_AWAY, Mixed<zero::bf16, zero::HalfAway>) \
  X(precision, ZERO_BF16_REST16, Mixed<zero::bf16, zero::Rest16>)      \
  X(precision, ZERO_BF16_REST8, Mixed<zero::bf16, zero::Rest8>)        \
  X(precision, ZERO_BF16_STOCHASTIC, Bf16<zero::StochasticRounding>)   \
  X(rule, ZERO_ADAMW, AdamW)                                           \
  X(rule, ZERO_ADAM, Adam)                                             \
  X(rule, ZERO_SGD, Sgd)                                               \
  X(rule, ZERO_PLAIN_SGD, PlainSgd)                                    \
  X(rule, ZERO_AMSGRAD, AmsGrad)                                       \
  X(rule, ZERO_NADAM, NAdam)                                           \
  X(rule, ZERO_ADAGRAD, Adagrad)                                       \
  X(rule, ZERO_RMSPROP, RmsProp<>)                                     \
  X(rule, ZERO_LION, Lion)                                             \
  X(rule, ZERO_ADAMW8BIT, AdamW8bit)                                   \
  X(rule, ZERO_ADAM8BIT, Adam8bit)                                     \
  X(rule, ZERO_LION8BIT, Lion8bit)                                     \
  X(rule, ZERO_LAMB, Lamb)                                             \
  X(rule, ZERO_LARS, Lars)                                             \
  X(accumulation, ZERO_ACCUMULATE_NONE, AccumulateNone)                \
  X(accumulation, ZERO_ACCUMULATE_FULL, AccumulateFull)                \
  X(accumulation, ZERO_ACCUMULATE_SHARD, AccumulateShard)              \
  X(memory, ZERO_OWNED, Owned<>)                                       \
  X(memory, ZERO_BORROWED, Borrowed<>)

/// @cond
#define ZERO_C_NUMBER(slot, value, ...) \
  template <>                           \
  inline constexpr std::int32_t number<__VA_ARGS__> = value;
ZERO_C_POLICIES(ZERO_C_NUMBER)
#undef ZERO_C_NUMBER
/// @endcond

/// How C++ spells the policy of that number; a description of it for the trainer's own.
[[nodiscard]] inline std::string spelling(PolicySlot slot, std::int32_t number) {
/// @cond
#define ZERO_C_SPELLING(of, value, ...) \
  if (slot == PolicySlot::of && number == value) return "zero::" #__VA_ARGS__;
  ZERO_C_POLICIES(ZERO_C_SPELLING)
#undef ZERO_C_SPELLING
  /// @endcond
  return "the " + std::string(name(slot)) + " of number " + std::to_string(number);
}
#undef ZERO_C_POLICIES

/// One choice, by its numbers.
struct PolicyNumbers {
  std::int32_t numbers[slots];  ///< by slot
  friend bool operator==(PolicyNumbers const&, PolicyNumbers const&) = default;
};
/// What options ask for.
[[nodiscard]] inline PolicyNumbers choice_of(zero_options const& options) noexcept {
  return {{options.stage,
           options.precision,
           options.rule.number,
           options.accumulation,
           options.memory}};
}

/// Takes over one hyper-parameter, if it is given.
#define ZERO_C_HYPER(field)                                                         \
  if (from.field != ZERO_DEFAULT) {                                                 \
    if constexpr (requires { rule.field; }) {                                       \
      rule.field = static_cast<decltype(rule.field)>(from.field);                   \
    } else {                                                                        \
      fail(ErrorKind::invalid_argument, {"the rule ", R::name, " has no " #field}); \
    }                                                                               \
  }

/// The rule with the hyper-parameters that are given, on top of others.
/// @throws Error (invalid_argument) for one that the rule does not have
template <class R>
[[nodiscard]] R rule_of(zero_rule const& from, R rule = {}) {
  require_struct(&from, "zero_rule");
  require_flag(from.eps_hat, "eps_hat");
  if (from.number != number<R>) {
    fail(ErrorKind::invalid_argument,
         {"a rule of number ",
          from.number,
          " is given to an optimizer whose rule is ",
          R::name,
          ": another rule has other states; make another optimizer"});
  }
  ZERO_C_HYPER(lr)
  ZERO_C_HYPER(weight_decay)
  ZERO_C_HYPER(beta1)
  ZERO_C_HYPER(beta2)
  ZERO_C_HYPER(eps)
  ZERO_C_HYPER(momentum)
  ZERO_C_HYPER(dampening)
  ZERO_C_HYPER(nesterov)
  ZERO_C_HYPER(alpha)
  ZERO_C_HYPER(lr_decay)
  ZERO_C_HYPER(initial_accumulator_value)
  ZERO_C_HYPER(momentum_decay)
  ZERO_C_HYPER(decoupled)
  ZERO_C_HYPER(maximize)
  ZERO_C_HYPER(min_ratio)
  ZERO_C_HYPER(max_ratio)
  ZERO_C_HYPER(trust)
  if (from.eps_hat != 0) {
    if constexpr (requires { rule.eps_hat; }) {
      rule.eps_hat = true;
    } else {
      fail(ErrorKind::invalid_argument, {"the rule ", R::name, " has no eps_hat"});
    }
  }
  return rule;
}
#undef ZERO_C_HYPER

/// The precision, with the loss scale that is asked for.
template <class P>
[[nodiscard]] P precision_of(zero_options const& options) {
  P precision{};
  if constexpr (requires { precision.loss_scale; }) {
    LossScaleOptions& scale = precision.loss_scale;
    if (options.loss_scale != 0.) scale.initial = static_cast<float>(options.loss_scale);
    if (options.loss_scale_interval != 0) scale.growth_interval = options.loss_scale_interval;
    if (options.loss_scale_patience != 0) scale.patience = options.loss_scale_patience;
  }
  return precision;
}

/// How many bytes travel together.
[[nodiscard]] inline Bucket bucket_of(zero_options const& options) {
  if (options.bucket_bytes == 0) return {};
  return {unsigned_of(options.bucket_bytes, "zero_options::bucket_bytes")};
}

/// Some types.
template <class... T>
struct Types {};

/// In the list of ZERO_C_DEFINE: each of some precisions with each of some rules, whatever else is
/// listed. What is listed by itself is compiled with all of the other slot.
/// @tparam Precisions, Rules  some `Types` each
template <class Precisions, class Rules>
struct Pairs;
/// @cond
template <Precision... P, Rule... R>
struct Pairs<Types<P...>, Types<R...>> {
  /// Says that this is no policy.
  using IsExtension = void;
  static_assert(((number<P> >= 0) && ...) && ((number<R> >= 0) && ...),
                "zero: a policy of zero::c::Pairs needs a number, as one of ZERO_C_DEFINE");
};
/// @endcond

/// Those that fit a slot, or its default.
template <template <class> class Fits, class Found, class Default, class... Policies>
struct Fitting {
  using Result = Found;  ///< a Types
};
/// @cond
template <template <class> class Fits, class Default>
struct Fitting<Fits, Types<>, Default> {
  using Result = Types<Default>;
};
template <template <class> class Fits, class... Found, class Default, class First, class... Rest>
struct Fitting<Fits, Types<Found...>, Default, First, Rest...>
    : Fitting<Fits,
              std::conditional_t<Fits<First>::value, Types<Found..., First>, Types<Found...>>,
              Default,
              Rest...> {};
/// @endcond

}  // namespace zero::inline ZERO_NAMESPACE::c
