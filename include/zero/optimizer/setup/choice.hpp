/// @file
/// From a list of policies to one policy per slot, with a sentence for each mistake.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/grid_communicator.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/optimizer/make_tables.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"
#include "zero/precision/fp32.hpp"
#include "zero/rule/adamw.hpp"

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Stands where a communicator is missing, so that nothing but that is reported.
struct NoCommunicator {};
template <>
struct FitsCommunicator<NoCommunicator> : std::true_type {};
/// Stands for a value whose type is no policy: the constructor reports it, by its own arguments.
struct NoPolicy {};

/// Can an optimizer be constructed over an argument of that type?
template <class T>
inline constexpr bool is_group = false;
template <class T>
inline constexpr bool is_group<T&> = Communicator<T> || ProcessGrid<T>;

/// Is it in the place of the communicator, and is none? False while policies are being deduced.
template <class T, class... Policies>
concept NoGroup = sizeof...(Policies) != 0 && named<FitsCommunicator, Policies...> != 0 &&
                  !std::is_convertible_v<T, Selected<FitsCommunicator, void, Policies...>&> &&
                  !ProcessGrid<std::remove_reference_t<T>>;

/// What has a slot, or a sentence of its own that says why it has none.
template <class T>
inline constexpr bool is_policy =
    slots_of<T> == 1 || NamesFiveTypes<T> || RuleThatMayThrow<T> || std::same_as<T, NoPolicy>;
template <class T>
using PolicyOrNone = std::conditional_t<is_policy<T>, T, NoPolicy>;

// These stand in the line after a sentence, with the number of an argument and its type.
template <std::size_t Number, class T>
inline constexpr bool not_the_communicator = true;
template <std::size_t Number, class T>
inline constexpr bool not_a_policy = !is_policy<T>;

/// Has a sentence for an argument that is no policy.
template <std::size_t N, class T>
struct PolicyCheck {
  static_assert(!not_a_policy<N, T>,
                "zero: a policy models no slot, or more than one (stage, communicator, precision, "
                "rule, bucket, accumulation, memory, prefetch, overflow, seed)");
};
template <std::size_t N, FloatElement T>
struct PolicyCheck<N, T> {
  static_assert(
      !not_a_policy<N, T>,
      "zero: the type of an element is no policy: the precision is zero::Mixed<zero::bf16>, "
      "zero::Mixed<zero::fp16>, zero::Fp32 or zero::Fp64, and a learning rate belongs to a "
      "rule, as in zero::AdamW{.lr = 1e-3f}");
};
template <std::size_t N, std::integral T>
struct PolicyCheck<N, T> {
  static_assert(!not_a_policy<N, T>,
                "zero: a number is no policy: it belongs to the policy that it is for, as in "
                "zero::Bucket{1 << 20} or zero::Prefetch{2}");
};
template <std::size_t N, std::convertible_to<std::string_view> T>
struct PolicyCheck<N, T> {
  static_assert(!not_a_policy<N, T>,
                "zero: a string is no policy: policies are types and their values, such as "
                "zero::stage::PosG or zero::AdamW{.lr = 1e-3f}");
};

/// The checks of arguments that have the numbers from `First` on.
template <std::size_t First, class Indices, class... T>
struct PolicyChecks;
template <std::size_t First, std::size_t... I, class... T>
struct PolicyChecks<First, std::index_sequence<I...>, T...> : PolicyCheck<First + I, T>... {};
/// Complete if all are policies, or else an error.
template <std::size_t First, class... T>
using CheckedPolicies =
    std::conditional_t<(is_policy<T> && ...),
                       std::true_type,
                       PolicyChecks<First, std::index_sequence_for<T...>, T...>>;

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

/// Can states of each precision of a list be codes?
template <class List>
inline constexpr bool states_are_float = false;
template <class... P>
inline constexpr bool states_are_float<PrecisionList<P...>> =
    ((std::same_as<typename P::State, float> && std::same_as<RuleReal<P, true>, float>)&&...);

/// What a precision and a rule decide.
template <class Precision, class Rule>
[[nodiscard]] constexpr PolicyFacts arithmetic_facts() noexcept {
  return {.precision = Precision::name,
          .loss_scaled = Precision::loss_scaled,
          .types = listed_types<Rule, Precisions<Precision>>,
          .state = dtype_of<typename Precision::State>,
          .measures = MeasuringRule<Rule>};
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
  static_assert(sizeof(CheckedPolicies<1, Policies...>) != 0);
  static_assert(named<FitsStage, Policies...> <= 1, "zero: two stages are named");
  static_assert(named<FitsCommunicator, Policies...> == 1,
                "zero: exactly one communicator must be named");
  static_assert(named<FitsPrecision, Policies...> <= 1, "zero: two precisions are named");
  static_assert(named<FitsRule, Policies...> <= 1, "zero: two rules are named");
  static_assert(named<FitsBucket, Policies...> <= 1, "zero: two buckets are named");
  static_assert(named<FitsAccumulation, Policies...> <= 1, "zero: two accumulations are named");
  static_assert(named<FitsMemory, Policies...> <= 1, "zero: two memory policies are named");
  static_assert(named<FitsPrefetch, Policies...> <= 1, "zero: two prefetches are named");
  static_assert(named<FitsOverflow, Policies...> <= 1, "zero: two overflows are named");
  static_assert(named<FitsSeed, Policies...> <= 1, "zero: two seeds are named");

  using Stage = Selected<FitsStage, stage::PosG, Policies...>;
  using Communicator = Selected<FitsCommunicator, NoCommunicator, Policies...>;
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
  static_assert(MeasuringRule<Rule> || !NamesMeasure<Rule>,
                "zero: a rule with measure() needs adjust() too, and both must be noexcept, as "
                "MeasuringRule says");
  static_assert(coded_states<Rule> == 0 || states_are_float<Precisions<Precision>>,
                "zero: states of 8 bits stand for float: this rule's are not for a precision whose "
                "State is another type, or that computes in double");
  static_assert(coded_states<Rule> == 0 || !MeasuringRule<Rule>,
                "zero: a rule with measure() has its states in full: what is measured is not "
                "decoded");
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

  /// Compiles if all values are of these policies.
  /// @tparam First  the number of the first as an argument
  template <std::size_t First, class... Values>
  static void check_values() {
    static_assert(sizeof(CheckedPolicies<First, Values...>) != 0);
    static_assert(((is_chosen<Values> || !is_policy<Values>)&&...),
                  "zero: a value's type is none of this optimizer's policies");
  }
  /// The value of type T among the arguments, or a default one.
  template <class T>
  static T pick() {
    return T{};
  }
  template <class T, class First, class... Rest>
  static T pick(First const& first, Rest const&... rest) {
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
      std::same_as<T, Prefetch> || std::same_as<T, Overflow> || std::same_as<T, Seed>;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
