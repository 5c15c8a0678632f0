/// @file
/// All optimizers that ZERO_C_DEFINE makes, and which of them a trainer in C has asked for.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/c_policies.hpp"
#include "zero/c/entry.hpp"
#include "zero/c/structs.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/layout/storage_types.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// All that a program has: what ZERO_C_DEFINE defines.
[[nodiscard]] std::vector<OptimizerEntry> entries();

/// Does it say nothing of policies?
template <class T>
    struct IsExtension : std::bool_constant < requires {
  typename T::IsExtension;
} > {};

/// The policies of ZERO_C_DEFINE.
template <class... Policies>
class Definition {
  static_assert(((zero::detail::slots_of<Policies> == 1 || IsExtension<Policies>::value) && ...),
                "zero: a policy of ZERO_C_DEFINE models no slot");
  static_assert(((number<Policies> >= 0 || IsExtension<Policies>::value) && ...),
                "zero: a policy of your own needs a number: template <> inline constexpr "
                "std::int32_t zero::c::number<MyRule> = 1000;");
  template <template <class> class Fits, class Default>
  using Of = typename Fitting<Fits, Types<>, Default, Policies...>::Result;

  template <class... P, class... R>
  [[nodiscard]] static std::vector<ArithmeticEntry> arithmetics(Types<P...>, Types<R...> rules) {
    std::vector<ArithmeticEntry> all;
    (append<P>(all, rules), ...);
    return all;
  }
  template <class P, class... R>
  static void append(std::vector<ArithmeticEntry>& all, Types<R...> /*rules*/) {
    auto const one = [&]<class Each>() {
      // What the library refuses to compile is not offered.
      constexpr bool real = RuleInDouble<Each> || std::is_same_v<RuleReal<P, true>, float>;
      constexpr bool coded = zero::detail::coded_states<Each> != 0;
      if constexpr (coded ? zero::detail::states_are_float<zero::detail::Precisions<P>> : real) {
        all.push_back(arithmetic<P, Each>());
      }
    };
    (one.template operator()<R>(), ...);
  }
  template <class Policy>
  static void append_pairs(std::vector<ArithmeticEntry>&, std::type_identity<Policy>) {}
  template <class... P, class Rules>
  static void append_pairs(std::vector<ArithmeticEntry>& all,
                           std::type_identity<Pairs<Types<P...>, Rules>>) {
    (append<P>(all, Rules{}), ...);
  }
  template <class... S, class Visit>
  static void for_each(Types<S...> /*all*/, Visit const& visit) {
    (visit.template operator()<S>(), ...);
  }

 public:
  /// All of them.
  [[nodiscard]] static std::vector<OptimizerEntry> entries() {
    std::vector<OptimizerEntry> result;
    auto arithmetic =
        arithmetics(Of<zero::detail::FitsPrecision, Fp32>{}, Of<zero::detail::FitsRule, AdamW>{});
    (append_pairs(arithmetic, std::type_identity<Policies>{}), ...);
    for_each(Of<zero::detail::FitsStage, stage::PosG>{}, [&]<class S>() {
      for_each(Of<zero::detail::FitsAccumulation, AccumulateNone>{}, [&]<class A>() {
        for_each(Of<zero::detail::FitsMemory, Owned<>>{}, [&]<class M>() {
          // What the library refuses to compile is not offered.
          if (M::borrowed && S::sharding.parameters) return;
          if (reduces_in_place<M> && A::reduced_shard) return;
          for (ArithmeticEntry const& each : arithmetic) {
            auto const policies = zero::detail::policy_facts<S, A, M>(each.policies);
            bool const sums = policies.form().reduced == StorageForm::Reduced::sums;
            result.push_back({{{number<S>, each.precision, each.rule.number, number<A>, number<M>}},
                              policies,
                              each.rule,
                              sums ? each.sums_kernels : each.kernels,
                              each.loss_scale});
          }
        });
      });
    });
    return result;
  }
};

/// The entry for a choice.
/// @throws CodedError (ZERO_NOT_DEFINED), saying what to add
[[nodiscard]] inline OptimizerEntry entry_of(PolicyNumbers const& wanted) {
  if (wanted.numbers[static_cast<int>(PolicySlot::stage)] == ZERO_POS_G_P &&
      wanted.numbers[static_cast<int>(PolicySlot::memory)] == ZERO_BORROWED) {
    fail(ErrorKind::invalid_argument,
         "lent memory cannot be partitioned: ZERO_BORROWED goes up to the stage ZERO_POS_G");
  }
  std::vector<OptimizerEntry> const all = entries();
  for (OptimizerEntry const& entry : all) {
    if (entry.choice == wanted) return entry;
  }
  std::string missing;
  for (int i = 0; i < slots; ++i) {
    auto const slot = static_cast<PolicySlot>(i);
    bool listed = false;
    for (OptimizerEntry const& entry : all) listed |= entry.choice.numbers[i] == wanted.numbers[i];
    if (listed) continue;
    missing += (missing.empty() ? "" : ", ") + spelling(slot, wanted.numbers[i]);
  }
  if (missing.empty()) {
    constexpr int precision = static_cast<int>(PolicySlot::precision);
    constexpr int rule = static_cast<int>(PolicySlot::rule);
    bool together = false;
    for (OptimizerEntry const& entry : all) {
      auto const& numbers = entry.choice.numbers;
      together |=
          numbers[precision] == wanted.numbers[precision] && numbers[rule] == wanted.numbers[rule];
    }
    if (!together) {
      fail_with(ZERO_NOT_DEFINED,
                {"zero: not defined: ",
                 spelling(PolicySlot::rule, wanted.numbers[rule]),
                 " with ",
                 spelling(PolicySlot::precision, wanted.numbers[precision]),
                 "; add the pair to ZERO_C_DEFINE, by zero::c::Pairs, unless the two do not go "
                 "together: doubles need a rule in double, and states of 8 bits a precision whose "
                 "states are float"});
    }
    fail_with(
        ZERO_NOT_DEFINED,
        "zero: not defined: these policies are listed, but do not go together: BorrowedInPlace "
        "has no room for the sums of AccumulateShard");
  }
  std::string has;
  for (int i = 0; i < slots; ++i) {
    std::string listed;
    for (OptimizerEntry const& entry : all) {
      std::string const one = spelling(static_cast<PolicySlot>(i), entry.choice.numbers[i]);
      if ((listed + ", ").find(" " + one + ",") == std::string::npos) listed += ", " + one;
    }
    has += listed;
  }
  fail_with(
      ZERO_NOT_DEFINED,
      {"zero: not defined: ", missing, "; add it to ZERO_C_DEFINE, which has ", has.substr(2)});
}

/// What a trainer has chosen: an entry, and the precisions that are listed beside its own.
class ChosenOptimizer : public OptimizerEntry {
 public:
  /// @throws CodedError (ZERO_NOT_DEFINED) as `entry_of`; Error (invalid_argument) for precisions
  ///   that cannot be in one list
  explicit ChosenOptimizer(zero_options const& options)
      : OptimizerEntry(entry_of(choice_of(options))),
        tables_(kernels, kernels + policies.types.size()) {
    if (options.others < 0 || options.others > ZERO_MAX_OTHERS) {
      fail(ErrorKind::invalid_argument,
           {"options list ", options.others, " other precisions; at most ", ZERO_MAX_OTHERS});
    }
    if (options.others == 0) return;
    types_.assign(policies.types.begin(), policies.types.end());
    names_ = policies.precision;
    for (std::int32_t i = 0; i < options.others; ++i) {
      PolicyNumbers wanted = choice;
      wanted.numbers[static_cast<int>(PolicySlot::precision)] = options.other_precisions[i];
      add(entry_of(wanted));
    }
    policies.types = types_;
    policies.precision = names_;
  }
  ChosenOptimizer(ChosenOptimizer const&) = delete;
  ChosenOptimizer& operator=(ChosenOptimizer const&) = delete;

  /// Kernels of each precision.
  [[nodiscard]] zero::detail::KernelCalls const* const* tables() const noexcept {
    return tables_.data();
  }

 private:
  // As ByTensor has it for types.
  void add(OptimizerEntry const& other) {
    StorageTypes const& types = other.policies.types.front();
    auto const refuse = [&](Message const& why) {
      fail(ErrorKind::invalid_argument, {"precision ", other.policies.precision, " ", why});
    };
    std::size_t const known = precision_count(types_);
    for (StorageTypes const& each : types_) {
      if (each.parameter != types.parameter) continue;
      refuse({"has parameters of ", name(types.parameter), ", as another that options list"});
    }
    if (other.kernels[0]->in_double != kernels[0]->in_double ||
        types.value() != types_.front().value()) {
      refuse({"does not compute in the type that ", policies.precision, " computes in"});
    }
    if (other.loss_scale != nullptr && loss_scale == nullptr) {
      refuse("has a loss scale, which is that of all gradients: list it first");
    }
    // Behind the precisions, and where each is there a second time, with states in full, behind
    // all.
    tables_.insert(tables_.begin() + static_cast<std::ptrdiff_t>(known), other.kernels[0]);
    types_.insert(types_.begin() + static_cast<std::ptrdiff_t>(known), types);
    if (types.coded()) {
      tables_.push_back(other.kernels[1]);
      types_.push_back(other.policies.types.back());
    }
    names_ += Message({", ", other.policies.precision}).text();
  }

  std::vector<zero::detail::KernelCalls const*> tables_;
  std::vector<StorageTypes> types_{};  ///< of several
  std::string names_{};                ///< likewise
};

}  // namespace zero::inline ZERO_NAMESPACE::c
