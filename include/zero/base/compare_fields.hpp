/// @file
/// Values that ranks must have alike, and which ranks have which where they do not.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/version.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The library's version as a field, the first of those that are compared: ranks with another one
/// have other fields behind it.
inline constexpr std::int64_t version_number =
    version.major * 1000000 + version.minor * 1000 + version.patch;

/// The first field of `width` words, of the `stride` words of each rank, in which ranks differ;
/// `stride` / `width` if there is none.
/// @param all  the words of all ranks, in the order of ranks
ZERO_APART [[nodiscard]] std::size_t first_difference(std::span<std::int64_t const> all,
                                                      std::size_t stride,
                                                      std::size_t width = 1);

/// A field, and which ranks have which value: "stage: 1 on rank 0 2; 2 on rank 1".
/// @param values  of all ranks, in the order of ranks
ZERO_APART [[nodiscard]] ZERO_COLD std::string values_of_ranks(
    Message const& field, std::vector<std::string> const& values);

/// The first field in which ranks differ, its values and the ranks, the same on all of them; empty
/// if there is none.
/// @param names  of the words of a rank
/// @param all    the words of all ranks, in the order of ranks
ZERO_APART [[nodiscard]] ZERO_COLD std::string compare_fields(
    std::span<std::string_view const> names, std::span<std::int64_t const> all);

#if ZERO_BODIES

ZERO_BODY std::size_t first_difference(std::span<std::int64_t const> all,
                                       std::size_t stride,
                                       std::size_t width) {
  std::size_t first = stride;
  for (std::size_t i = stride; i < all.size(); ++i) {
    if (all[i] != all[i % stride]) first = (std::min)(first, i % stride);
  }
  return first / width;
}

ZERO_BODY std::string values_of_ranks(Message const& field,
                                      std::vector<std::string> const& values) {
  std::string text;
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) != value) continue;
    text += (text.empty() ? ": " : "; ") + *value + " on rank";
    for (auto other = value; other != values.end(); ++other) {
      if (*other == *value) text += Message({" ", other - values.begin()}).text();
    }
  }
  return field.text() + text;
}

ZERO_BODY std::string compare_fields(std::span<std::string_view const> names,
                                     std::span<std::int64_t const> all) {
  std::size_t const field = first_difference(all, names.size());
  if (field == names.size()) return {};
  std::vector<std::string> values;
  for (std::size_t i = field; i < all.size(); i += names.size()) {
    values.push_back(std::to_string(all[i]));
  }
  return values_of_ranks({names[field]}, values);
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
