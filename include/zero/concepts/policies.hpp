/// @file
/// Order-free policies: each type goes to the slot whose concept it models.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/accumulation.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/seed.hpp"
#include "zero/concepts/stage.hpp"

#include <concepts>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::detail {

// One adaptor per slot, because a concept cannot be passed as a template argument.
template <class T>
struct FitsStage : std::bool_constant<Stage<T>> {};
template <class T>
struct FitsCommunicator : std::bool_constant<Communicator<T>> {};
template <class T>
struct FitsPrecision : std::bool_constant<Precision<T>> {};
template <class T>
struct FitsRule : std::bool_constant<Rule<T>> {};
template <class T>
struct FitsAccumulation : std::bool_constant<Accumulation<T>> {};
template <class T>
struct FitsMemory : std::bool_constant<Memory<T>> {};
template <class T>
struct FitsBucket : std::is_same<T, Bucket> {};
template <class T>
struct FitsPrefetch : std::is_same<T, Prefetch> {};
template <class T>
struct FitsOverflow : std::is_same<T, Overflow> {};
template <class T>
struct FitsSeed : std::is_same<T, Seed> {};

template <class T>
inline constexpr int slots_of =
    int{FitsStage<T>::value} + int{FitsCommunicator<T>::value} + int{FitsPrecision<T>::value} +
    int{FitsRule<T>::value} + int{FitsAccumulation<T>::value} + int{FitsMemory<T>::value} +
    int{FitsBucket<T>::value} + int{FitsPrefetch<T>::value} + int{FitsOverflow<T>::value} +
    int{FitsSeed<T>::value};

template <template <class> class Fits, class... Policies>
inline constexpr int named = (int{Fits<Policies>::value} + ... + 0);

/// The first policy that fits, or the default.
template <template <class> class Fits, class Default, class... Policies>
struct Select : std::type_identity<Default> {};
template <template <class> class Fits, class Default, class First, class... Rest>
struct Select<Fits, Default, First, Rest...> : std::conditional_t<Fits<First>::value,
                                                                  std::type_identity<First>,
                                                                  Select<Fits, Default, Rest...>> {
};

template <template <class> class Fits, class Default, class... Policies>
using Selected = typename Select<Fits, Default, Policies...>::type;

}  // namespace zero::inline ZERO_NAMESPACE::detail
