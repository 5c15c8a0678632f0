/// @file
/// Who comes into which part of a group that is divided.
#pragma once

#include "zero/base/config.hpp"

#include <algorithm>
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
[[nodiscard]] inline std::vector<int> split_members(std::vector<SplitChoice> const& choices,
                                                    int color) {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return members;
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
