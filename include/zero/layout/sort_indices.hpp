/// @file
/// One sort for all lists of indices.
#pragma once

#include "zero/base/config.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A comparison whose type is erased.
struct IndexOrder {
  void const* context;
  bool (*compare)(void const* context, std::size_t a, std::size_t b);
  bool operator()(std::size_t a, std::size_t b) const { return compare(context, a, b); }
};

/// Not a template: std::sort is long, and every instantiation is compiled again.
ZERO_APART __attribute__((noinline)) void sort_indices_by(std::vector<std::size_t>& indices,
                                                          IndexOrder order);

/// Sorts by a strict total order on indices. Allocates nothing.
template <class Less>
void sort_indices(std::vector<std::size_t>& indices, Less const& less) {
  sort_indices_by(indices,
                  {std::addressof(less), [](void const* context, std::size_t a, std::size_t b) {
                     return (*static_cast<Less const*>(context))(a, b);
                   }});
}

#if ZERO_BODIES

ZERO_BODY void sort_indices_by(std::vector<std::size_t>& indices, IndexOrder order) {
  std::sort(indices.begin(), indices.end(), order);
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
