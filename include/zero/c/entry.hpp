/// @file
/// One choice of policies by their numbers, as an engine is made from it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/c.h"
#include "zero/c/c_policies.hpp"
#include "zero/concepts/accumulation.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/stage.hpp"
#include "zero/optimizer/make_tables.hpp"
#include "zero/optimizer/setup/choice.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"
#include "zero/space/host.hpp"

#include <cstdint>
#include <memory>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::c {

/// A rule by its number.
struct RuleEntry {
  std::int32_t number;                   ///< by which it is asked for
  zero::detail::RuleCalls const* calls;  ///< what can be done with it
  /// A rule with the hyper-parameters that are given, on top of those of another, or the defaults.
  std::unique_ptr<zero::detail::RuleCopy> (*made)(zero_rule const& from, void const* others);
};
/// That of one type.
template <Rule R>
[[nodiscard]] RuleEntry rule_entry() {
  return {number<R>, &zero::detail::rule_calls<R>, [](zero_rule const& from, void const* others) {
            R const rule =
                rule_of<R>(from, others != nullptr ? *static_cast<R const*>(others) : R{});
            return std::make_unique<zero::detail::RuleCopy>(zero::detail::rule_calls<R>, &rule);
          }};
}

/// One optimizer that can be made.
struct OptimizerEntry {
  PolicyNumbers choice;                ///< by which it is found
  zero::detail::PolicyFacts policies;  ///< what it decides
  RuleEntry rule;                      ///< its rule
  /// Of its rule and precision, one for each of the types of `policies`.
  zero::detail::KernelCalls const* const* kernels;
  /// Of its precision; null where nothing is scaled.
  LossScaleOptions (*loss_scale)(zero_options const&);
};

/// A precision and a rule by their numbers, with kernels for each type that reduced gradients may
/// be of: all that is compiled for them.
struct ArithmeticEntry {
  std::int32_t precision;                                ///< its number
  RuleEntry rule;                                        ///< the rule
  zero::detail::PolicyFacts policies;                    ///< what they decide
  zero::detail::KernelCalls const* const* kernels;       ///< of gradients as they travel
  zero::detail::KernelCalls const* const* sums_kernels;  ///< of sums over micro-steps
  LossScaleOptions (*loss_scale)(zero_options const&);   ///< null where nothing is scaled
};
/// That of two types.
template <Precision P, Rule R>
[[nodiscard]] ArithmeticEntry arithmetic() {
  using zero::detail::kernel_tables;
  using List = zero::detail::Precisions<P>;
  ArithmeticEntry result{number<P>,
                         rule_entry<R>(),
                         zero::detail::arithmetic_facts<P, R>(),
                         kernel_tables<space::Host, R, false, List>.data(),
                         kernel_tables<space::Host, R, true, List>.data(),
                         nullptr};
  if constexpr (P::loss_scaled) {
    result.loss_scale = [](zero_options const& options) {
      return precision_of<P>(options).loss_scale;
    };
  }
  return result;
}

}  // namespace zero::inline ZERO_NAMESPACE::c
