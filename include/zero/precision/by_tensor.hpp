/// @file
/// Several precisions in one optimizer: a tensor has that of its type.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/precision/fp32.hpp"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

template <class First, class... Rest>
struct ByTensor;

namespace detail {

/// Precisions one by one, in the order of their numbers.
template <class... P>
struct PrecisionList {};

/// What a precision is a list of: of itself.
template <class P>
struct PrecisionsOf {
  using Type = PrecisionList<P>;
};
template <class... P>
struct PrecisionsOf<ByTensor<P...>> {
  using Type = PrecisionList<P...>;
};
template <class P>
using Precisions = typename PrecisionsOf<P>::Type;

/// A precision that is no list.
template <class P>
concept SinglePrecision = Precision<P> && std::same_as<Precisions<P>, PrecisionList<P>>;

[[nodiscard]] constexpr bool all_differ(std::initializer_list<DType> types) noexcept {
  for (DType const& type : types) {
    if (std::count(types.begin(), types.end(), type) > 1) return false;
  }
  return true;
}

/// Do rules compute in the same types for both?
template <class P, class Q>
inline constexpr bool compute_alike =
    std::same_as<RuleReal<P>, RuleReal<Q>>&& std::same_as<RuleReal<P, true>, RuleReal<Q, true>>&&
        std::same_as<typename P::Master, double> == std::same_as<typename Q::Master, double>;

/// "bf16, fp32, "
template <class... P>
[[nodiscard]] constexpr auto joined_names() noexcept {
  std::array<char, (std::string_view(P::name).size() + ... + (2 * sizeof...(P)))> all{};
  auto at = all.begin();
  for (std::string_view const each : {std::string_view(P::name)...}) {
    at = std::copy_n(each.data(), each.size(), at);
    at = std::copy_n(", ", 2, at);
  }
  return all;
}
template <class... P>
inline constexpr auto list_name = joined_names<P...>();

/// Stands where something is no precision, so that nothing but that is reported.
template <class P>
using SingleOrFp32 = std::conditional_t<SinglePrecision<P>, P, Fp32>;

}  // namespace detail

/// Several precisions: a tensor has the one whose parameters are of its `Tensor::dtype`, and the
/// first if it says nothing. It is the first one, beside which others are listed: its types are
/// those of guards that name none, and its loss scale, if it has any, is that of all gradients.
///
/// Parameters are of another type in each precision. All compute in float, or all in double.
/// @par Example  `zero::ByTensor<zero::Mixed<zero::bf16>, zero::Fp32>{}`
/// @par Cost     buckets of each precision are buckets of their own
template <class First, class... Rest>
struct ByTensor : detail::SingleOrFp32<First> {
 private:
  using One = detail::SingleOrFp32<First>;
  static constexpr bool listed =
      detail::SinglePrecision<First> && (detail::SinglePrecision<Rest> && ...);
  static_assert(listed,
                "zero: ByTensor lists precisions, as in "
                "zero::ByTensor<zero::Mixed<zero::bf16>, zero::Fp32>");
  // Where that is said already, nothing else is.
  static_assert(
      !listed || detail::all_differ({dtype_of<typename One::Parameter>,
                                     dtype_of<typename detail::SingleOrFp32<Rest>::Parameter>...}),
      "zero: two precisions of a ByTensor have parameters of one type, so that a tensor of this "
      "type would have either");
  static_assert(!listed || (detail::compute_alike<One, detail::SingleOrFp32<Rest>> && ...),
                "zero: precisions of a ByTensor compute all in float, or all in double: one rule "
                "has one type of scalars");
  static_assert(!listed || One::loss_scaled || !(detail::SingleOrFp32<Rest>::loss_scaled || ...),
                "zero: the loss scale of a ByTensor is its first precision's: list that first "
                "which has one");
  static constexpr auto& names = detail::list_name<One, detail::SingleOrFp32<Rest>...>;

 public:
  /// All names, in fingerprints and reports.
  static constexpr std::string_view name{names.data(), names.size() - 2};
  /// All are equal, if the first are.
  friend constexpr bool operator==(ByTensor const&, ByTensor const&) = default;
};

}  // namespace zero::inline ZERO_NAMESPACE
