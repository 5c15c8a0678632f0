/// @file
/// Who comes into which part of a group that is divided.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/sort_indices.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a rank says when its group is divided.
struct SplitChoice {
  std::int32_t color = 0;
  std::int32_t key = 0;
};

/// The ranks that chose a color, ordered by key, then by rank.
/// @param choices  by rank
ZERO_APART [[nodiscard]] std::vector<int> split_members(std::vector<SplitChoice> const& choices,
                                                        int color);

#if ZERO_BODIES

ZERO_BODY std::vector<int> split_members(std::vector<SplitChoice> const& choices, int color) {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) ranks.push_back(rank);
  }
  sort_indices(ranks, [&](std::size_t a, std::size_t b) {
    return choices[a].key != choices[b].key ? choices[a].key < choices[b].key : a < b;
  });
  std::vector<int> members;
  for (std::size_t const rank : ranks) members.push_back(static_cast<int>(rank));
  return members;
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
