/// @file
/// Policies by the names that people type: from a stage, a precision and a rule to their plan.
#pragma once

#include "zero/base/error.hpp"
#include "zero/concepts/accumulation.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/stage.hpp"
#include "zero/kernel/root_state.hpp"
#include "zero/layout/plan.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/make_tables.hpp"
#include "zero/optimizer/setup/choice.hpp"
#include "zero/optimizer/setup/plan_of.hpp"
#include "zero/precision/bf16.hpp"
#include "zero/precision/by_tensor.hpp"
#include "zero/precision/fp32.hpp"
#include "zero/precision/fp64.hpp"
#include "zero/precision/mixed.hpp"
#include "zero/rule/adagrad.hpp"
#include "zero/rule/adam.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/amsgrad.hpp"
#include "zero/rule/eight_bit.hpp"
#include "zero/rule/lamb.hpp"
#include "zero/rule/lion.hpp"
#include "zero/rule/nadam.hpp"
#include "zero/rule/rmsprop.hpp"
#include "zero/rule/sgd.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace plan {

using namespace zero;

/// One policy per slot, by name: as plans call it, in lower case, with '-' for a space.
struct PolicyNames {
  std::string stage = "pos+g";        ///< replicated, pos, pos+g, pos+g+p
  std::string precision = "bf16";     ///< such as fp32, bf16 or bf16-rest16
  std::string rule = "adamw";         ///< such as adamw or plain-sgd
  std::string accumulation = "none";  ///< none, full, shard
  friend bool operator==(PolicyNames const&, PolicyNames const&) = default;
};

namespace detail {

template <class... T>
struct Types {};
using Stages = Types<stage::Replicated, stage::Pos, stage::PosG, stage::PosGP>;
using Precisions = Types<Fp32,
                         Mixed<bf16>,
                         Mixed<fp16>,
                         Mixed<bf16, HalfAway>,
                         Mixed<bf16, Rest16>,
                         Mixed<bf16, Rest8>,
                         Bf16<StochasticRounding>>;
/// What nobody has asked to plan a cluster for, and what is planned for one number alone.
using OtherPrecisions = Types<MixedFloatGradients<bf16>,
                              MixedFloatGradients<fp16>,
                              Bf16<StochasticRounding, float>,
                              Fp64>;
using Rules = Types<AdamW, Adam, AmsGrad, NAdam, Adagrad, RmsProp<>, Lion, Sgd, PlainSgd>;
/// Likewise.
using OtherRules = Types<AdamW8bit, Adam8bit, Lion8bit, Lamb>;
using Accumulations = Types<AccumulateNone, AccumulateFull, AccumulateShard>;

[[nodiscard]] inline std::string typed(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    if (c == ' ') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

template <class... T>
[[nodiscard]] std::vector<std::string> names_of(Types<T...> /*all*/) {
  return {typed(T::name)...};
}

/// `visit` of the type that a name means.
template <class First, class... T, class Visit>
[[nodiscard]] auto visit_named(Types<First, T...> /*all*/,
                               std::string_view slot,
                               std::string_view name,
                               Visit const& visit) {
  std::invoke_result_t<Visit const&, std::type_identity<First>> result{};
  auto const is = [&]<class U>(std::type_identity<U> type) {
    if (typed(U::name) != name) return false;
    result = visit(type);
    return true;
  };
  if (is(std::type_identity<First>{}) || (is(std::type_identity<T>{}) || ...)) return result;
  std::string known;
  for (std::string const& one : names_of(Types<First, T...>{}))
    known += (known.empty() ? "" : ", ") + one;
  fail(ErrorKind::invalid_argument, {"there is no ", slot, " '", name, "': it is one of ", known});
}

}  // namespace detail

/// What `PolicyNames::stage` may be, from the least partitioned on.
[[nodiscard]] inline std::vector<std::string> stage_names() {
  return detail::names_of(detail::Stages{});
}
/// What `PolicyNames::precision` may be.
[[nodiscard]] inline std::vector<std::string> precision_names() {
  return detail::names_of(detail::Precisions{});
}
/// What `PolicyNames::rule` may be.
[[nodiscard]] inline std::vector<std::string> rule_names() {
  return detail::names_of(detail::Rules{});
}
/// What `PolicyNames::accumulation` may be.
[[nodiscard]] inline std::vector<std::string> accumulation_names() {
  return detail::names_of(detail::Accumulations{});
}

/// `ShardedOptimizer<...>::plan` of the policies that have these names, with memory that the
/// library owns. Local; no communicator is needed, and no element is ever there.
/// @param names     the policies
/// @param options   ranks, and micro-steps in a step
/// @param tensors   the model, or a rank's part of it; trained ones of 32 bits are of `Fp32`
/// @param bucket    bytes that travel together
/// @param prefetch  units gathered ahead
/// @throws Error (invalid_argument) for a name that no policy has, and as `plan`
/// @par Cost  milliseconds for thousands of tensors, whatever their size and the number of ranks
[[nodiscard]] inline Plan plan_of(PolicyNames const& names,
                                  PlanOptions const& options,
                                  std::vector<Tensor> const& tensors,
                                  Bucket const& bucket = {},
                                  Prefetch const& prefetch = {}) {
  using namespace detail;
  bool const wide = std::any_of(tensors.begin(), tensors.end(), [](Tensor const& tensor) {
    return !tensor.frozen && tensor.dtype == DType::f32;
  });
  // Pair by pair, since every combination of all four would be twelve times as many types.
  using Facts = zero::detail::PolicyFacts;
  using Rest = Facts (*)(Facts);
  auto const rest = visit_named(Stages{}, "stage", names.stage, [&](auto stage) {
    return visit_named(
        Accumulations{}, "accumulation", names.accumulation, [&](auto accumulation) -> Rest {
          return zero::detail::policy_facts<typename decltype(stage)::type,
                                            typename decltype(accumulation)::type,
                                            Owned<>>;
        });
  });
  return visit_named(Precisions{}, "precision", names.precision, [&](auto precision) {
    return visit_named(Rules{}, "rule", names.rule, [&](auto rule) {
      using P = typename decltype(precision)::type;
      using Rule = typename decltype(rule)::type;
      using Both = std::conditional_t<std::is_same_v<P, Fp32>, P, ByTensor<P, Fp32>>;
      return zero::detail::plan_of(rest(wide ? zero::detail::arithmetic_facts<Both, Rule>()
                                             : zero::detail::arithmetic_facts<P, Rule>()),
                                   zero::detail::rule_calls<Rule>,
                                   options,
                                   tensors,
                                   bucket,
                                   prefetch);
    });
  });
}

}  // namespace plan
