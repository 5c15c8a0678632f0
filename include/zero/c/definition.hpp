/// @file
/// All optimizers that ZERO_C_DEFINE makes, and which of them a trainer in C has asked for.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/communicator.hpp"
#include "zero/c/optimizer.hpp"
#include "zero/c/policies.hpp"
#include "zero/c/structs.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/layout/plan.hpp"
#include "zero/sharded_optimizer.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// One optimizer that can be made.
struct Entry {
  Choice choice;  ///< by which it is found
  /// Makes it.
  std::unique_ptr<Optimizer> (*create)(AnyCommunicator&,
                                       Rank&,
                                       std::vector<Tensor>,
                                       zero_options const&);
  /// Its plan, ahead of it.
  Plan (*plan)(PlanOptions const&, std::vector<Tensor> const&, zero_options const&);
};

/// All that a program has: what ZERO_C_DEFINE defines.
[[nodiscard]] std::vector<Entry> entries();

/// Is it added to every optimizer?
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
  using Extension = zero::detail::Selected<IsExtension, NoExtension, Policies...>;

  template <class S, class P, class R, class A, class M>
  static void add(std::vector<Entry>& entries) {
    // What the library refuses to compile is not offered.
    if constexpr (!(M::borrowed && S::sharding.parameters)) {
      using Memory = std::conditional_t<M::borrowed, Borrowed<RankAllocator>, Owned<RankAllocator>>;
      using O = ShardedOptimizer<AnyCommunicator, S, P, R, A, Memory>;
      entries.push_back({.choice = {{number<S>, number<P>, number<R>, number<A>, number<M>}},
                         .create = [](AnyCommunicator& comm,
                                      Rank& rank,
                                      std::vector<Tensor> model,
                                      zero_options const& options) -> std::unique_ptr<Optimizer> {
                           return std::make_unique<OptimizerOf<O, Extension>>(
                               comm, rank, std::move(model), options);
                         },
                         .plan =
                             [](PlanOptions const& asked,
                                std::vector<Tensor> const& model,
                                zero_options const& options) {
                               return O::plan(
                                   asked, model, bucket_of(options), Prefetch{options.prefetch});
                             }});
    }
  }

  // One slot after the other: all combinations.
  template <class... Chosen, class... Last>
  static void product(std::vector<Entry>& entries, Types<Chosen...>, Types<Last...>) {
    (add<Chosen..., Last>(entries), ...);
  }
  template <class... Chosen, class... Slot, class... Rest>
  static void product(std::vector<Entry>& entries,
                      Types<Chosen...>,
                      Types<Slot...>,
                      Rest... rest) requires(sizeof...(Rest) > 0) {
    (product(entries, Types<Chosen..., Slot>{}, rest...), ...);
  }

 public:
  /// All of them.
  [[nodiscard]] static std::vector<Entry> entries() {
    std::vector<Entry> result;
    product(result,
            Types<>{},
            Of<zero::detail::FitsStage, stage::PosG>{},
            Of<zero::detail::FitsPrecision, Fp32>{},
            Of<zero::detail::FitsRule, AdamW>{},
            Of<zero::detail::FitsAccumulation, AccumulateNone>{},
            Of<zero::detail::FitsMemory, Owned<>>{});
    return result;
  }
};

/// The entry for a choice.
/// @throws Failure (ZERO_NOT_DEFINED), saying what to add
[[nodiscard]] inline Entry entry_of(Choice const& wanted) {
  if (wanted.numbers[static_cast<int>(Slot::stage)] == ZERO_POS_G_P &&
      wanted.numbers[static_cast<int>(Slot::memory)] == ZERO_BORROWED) {
    fail(ErrorKind::invalid_argument,
         "lent memory cannot be partitioned: ZERO_BORROWED goes up to the stage ZERO_POS_G");
  }
  std::vector<Entry> const all = entries();
  for (Entry const& entry : all) {
    if (entry.choice == wanted) return entry;
  }
  std::string missing;
  for (int i = 0; i < slots; ++i) {
    auto const slot = static_cast<Slot>(i);
    bool listed = false;
    for (Entry const& entry : all) listed |= entry.choice.numbers[i] == wanted.numbers[i];
    if (listed) continue;
    missing += (missing.empty() ? "" : ", ") + spelling(slot, wanted.numbers[i]);
  }
  std::string has;
  for (int i = 0; i < slots; ++i) {
    std::string listed;
    for (Entry const& entry : all) {
      std::string const one = spelling(static_cast<Slot>(i), entry.choice.numbers[i]);
      if ((listed + ", ").find(" " + one + ",") == std::string::npos) listed += ", " + one;
    }
    has += listed;
  }
  fail_with(
      ZERO_NOT_DEFINED,
      {"zero: not defined: ", missing, "; add it to ZERO_C_DEFINE, which has ", has.substr(2)});
}

}  // namespace zero::inline ZERO_NAMESPACE::c
