/// @file
/// From a list of policies to one policy per slot, with a sentence for each mistake.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"
#include "zero/precision/fp32.hpp"
#include "zero/rule/adamw.hpp"

#include <concepts>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Can the default allocator serve this communicator? Yes where none is named: that is another
/// mistake, with a sentence of its own.
template <class C>
inline constexpr bool uses_host_memory = true;
template <Communicator C>
inline constexpr bool uses_host_memory<C> = C::Space::host_accessible;

/// Where a communicator's buffers live; nowhere, where none is named.
template <class C>
struct SpaceOf {
  struct Space {
    static constexpr bool host_accessible = true;
  };
};
template <Communicator C>
struct SpaceOf<C> {
  using Space = typename C::Space;
};

/// What a precision and a rule decide.
template <class Precision, class Rule>
[[nodiscard]] constexpr PolicyFacts arithmetic_facts() noexcept {
  return {.precision = Precision::name,
          .loss_scaled = Precision::loss_scaled,
          .types = {.parameter = dtype_of<typename Precision::Parameter>,
                    .wire = dtype_of<typename Precision::Wire>,
                    .accumulate = dtype_of<typename Precision::Accumulate>,
                    .master = dtype_of<typename Precision::Master>,
                    .state = dtype_of<typename Precision::State>},
          .state_arrays = Rule::states.size()};
}
/// What all policies decide.
/// @param facts  of the arithmetic
template <class Stage, class Accumulation, class Memory>
[[nodiscard]] constexpr PolicyFacts policy_facts(PolicyFacts facts) noexcept {
  facts.stage = Stage::name;
  facts.accumulation = Accumulation::name;
  facts.sharding = Stage::sharding;
  facts.full_gradients = Accumulation::full_gradients;
  facts.reduced_shard = Accumulation::reduced_shard;
  facts.borrowed = Memory::borrowed;
  facts.in_place = reduces_in_place<Memory>;
  return facts;
}

/// The choice that a list of policies makes, defaults filled in.
template <class... Policies>
struct Choice {
  static_assert(((Rule<Policies> || !RuleThatMayThrow<Policies>)&&...),
                "zero: scalars and update of a rule must be noexcept: nobody could catch what they "
                "throw");
  static_assert(
      ((zero::Precision<Policies> || !NamesFiveTypes<Policies>)&&...),
      "zero: a precision's five types are float, double, bf16 or fp16; Accumulate is float "
      "for 16 bits, float or double for float, double for double; Master is at least as "
      "wide as Parameter; it has a name, loss_scaled and, where that is true, loss_scale");
  static_assert(((slots_of<Policies> == 1 || NamesFiveTypes<Policies>)&&...),
                "zero: a policy models no slot, or more than one (stage, communicator, precision, "
                "rule, bucket, accumulation, memory, prefetch)");
  static_assert(named<FitsStage, Policies...> <= 1, "zero: two stages are named");
  static_assert(named<FitsCommunicator, Policies...> == 1,
                "zero: exactly one communicator must be named");
  static_assert(named<FitsPrecision, Policies...> <= 1, "zero: two precisions are named");
  static_assert(named<FitsRule, Policies...> <= 1, "zero: two rules are named");
  static_assert(named<FitsBucket, Policies...> <= 1, "zero: two buckets are named");
  static_assert(named<FitsAccumulation, Policies...> <= 1, "zero: two accumulations are named");
  static_assert(named<FitsMemory, Policies...> <= 1, "zero: two memory policies are named");
  static_assert(named<FitsPrefetch, Policies...> <= 1, "zero: two prefetches are named");

  using Stage = Selected<FitsStage, stage::PosG, Policies...>;
  using Communicator = Selected<FitsCommunicator, void, Policies...>;
  using Precision = Selected<FitsPrecision, Fp32, Policies...>;
  using Rule = Selected<FitsRule, AdamW, Policies...>;
  using Accumulation = Selected<FitsAccumulation, AccumulateNone, Policies...>;
  using Memory = Selected<FitsMemory, Owned<>, Policies...>;
  using Space = typename SpaceOf<Communicator>::Space;
  /// Of the values that a trainer loads.
  using Value = std::conditional_t<std::same_as<typename Precision::Master, double>, double, float>;
  static_assert(RuleInDouble<Rule> ||
                    std::same_as<RuleReal<Precision, Accumulation::reduced_shard>, float>,
                "zero: this precision computes in double and this rule in float: its scalars and "
                "update must be templates over the number, as RuleInDouble says");
  static_assert(named<FitsMemory, Policies...> == 1 || uses_host_memory<Communicator>,
                "zero: name an allocator of device memory: Owned{...}, or Borrowed{...}");
  static_assert(!(Memory::borrowed && Stage::sharding.parameters),
                "zero: borrowed memory cannot be partitioned; use a stage up to Pos+g or Owned<>");
  static_assert(!(reduces_in_place<Memory> && Accumulation::reduced_shard),
                "zero: AccumulateShard keeps sums beside the lent gradients: use Borrowed<>, not "
                "BorrowedInPlace<>");

  /// What follows for the engine.
  static constexpr PolicyFacts facts =
      policy_facts<Stage, Accumulation, Memory>(arithmetic_facts<Precision, Rule>());

  /// The value of type T among the arguments, or a default one.
  template <class T>
  static T pick() {
    return T{};
  }
  template <class T, class First, class... Rest>
  static T pick(First const& first, Rest const&... rest) {
    static_assert(is_chosen<First>, "zero: a value's type is none of this optimizer's policies");
    if constexpr (std::same_as<T, First>) {
      return first;
    } else {
      return pick<T>(rest...);
    }
  }

 private:
  template <class T>
  static constexpr bool is_chosen =
      std::same_as<T, Stage> || std::same_as<T, Precision> || std::same_as<T, Rule> ||
      std::same_as<T, Accumulation> || std::same_as<T, Memory> || std::same_as<T, Bucket> ||
      std::same_as<T, Prefetch>;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
