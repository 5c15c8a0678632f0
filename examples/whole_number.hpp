/// @file
/// Whole numbers of JSON that somebody else may have written.
#pragma once

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace example {

/// A value as messages show it.
template <class Json>
[[nodiscard]] std::string shown(Json const& value) {
  // Lists within lists would be written by recursion, however deep they are.
  return value.is_structured() ? value.type_name() : value.dump().substr(0, 64);
}

/// The whole number that an object has under a name. The JSON library's own conversion is undefined
/// for numbers that do not fit, and cuts fractions.
/// @throws std::invalid_argument, with name and value, unless it is one within [least, most]; what
///   the JSON library throws if there is none of that name
template <std::integral Integer, class Json>
[[nodiscard]] Integer whole_number(Json const& object,
                                   char const* name,
                                   Integer least,
                                   Integer most) {
  Json const& value = object.at(name);
  auto const within = [&](auto number) {
    return std::cmp_less_equal(least, number) && std::cmp_less_equal(number, most);
  };
  if (value.is_number_unsigned()) {
    auto const number = value.template get<std::uint64_t>();
    if (within(number)) return static_cast<Integer>(number);
  } else if (value.is_number_integer()) {
    auto const number = value.template get<std::int64_t>();
    if (within(number)) return static_cast<Integer>(number);
  }
  throw std::invalid_argument("'" + std::string(name) + "' is " + shown(value) +
                              ", not a whole number from " + std::to_string(least) + " to " +
                              std::to_string(most));
}

}  // namespace example
