/// @file
/// A fuzzer's bytes as choices, and changes of JSON that choices make.
#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

namespace fuzz {

using nlohmann::json;

/// Unless that holds: says what is wrong, and ends the process, which reports the input.
inline void require(bool holds, std::string const& what) {
  if (holds) return;
  std::fprintf(stderr, "zero: a finding: %s\n", what.c_str());
  std::abort();
}

/// Choices out of bytes, first to last; once they are over, each choice is the first.
class Input {
 public:
  Input(std::uint8_t const* data, std::size_t size) : data_(data), left_(size) {}

  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes && left_ > 0; ++i, --left_) value = value << 8 | *data_++;
    return value;
  }
  std::size_t below(std::size_t count) {
    return static_cast<std::size_t>(number(count <= 256 ? 1 : 4)) % count;
  }
  bool flag() { return below(2) == 1; }
  std::string text(std::size_t most) {
    std::size_t const size = std::min(left_, below(most + 1));
    std::string text(reinterpret_cast<char const*>(data_), size);
    data_ += size;
    left_ -= size;
    return text;
  }

 private:
  std::uint8_t const* data_;
  std::size_t left_;
};

/// A value that readers may not expect.
inline json odd_value(Input& input) {
  static std::vector<json> const values{nullptr,
                                        true,
                                        "",
                                        "w",
                                        "head",
                                        "..",
                                        "a/b",
                                        0,
                                        1,
                                        2,
                                        3,
                                        4,
                                        6,
                                        -1,
                                        0.5,
                                        1e39,
                                        1e300,
                                        -1e300,
                                        16,
                                        2147483647,
                                        2147483648u,
                                        4294967296u,
                                        (1LL << 62),
                                        9223372036854775807,
                                        1ULL << 63,
                                        ~0ULL,
                                        json::array(),
                                        json::object(),
                                        "F64",
                                        "w:master:0",
                                        json::array({16}),
                                        json::array({4294967296u, 4294967296u})};
  std::size_t const which = input.below(values.size() + 3);
  if (which < values.size()) return values[which];
  if (which == values.size()) return input.number(1 + input.below(8));
  if (which == values.size() + 1) return -static_cast<std::int64_t>(input.number(4));
  return input.text(16);
}

/// Some value within `value`; those near the top are as likely as the many below.
inline json& place_in(json& value, Input& input) {
  json* at = &value;
  while (at->is_structured() && !at->empty() && input.below(4) != 0) {
    at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(input.below(at->size())));
  }
  return *at;
}

/// Changes one place.
inline void change(json& value, Input& input) {
  json& at = place_in(value, input);
  switch (input.below(8)) {
    case 0: at = json(place_in(value, input)); break;
    case 1:
      if (at.is_array() && !at.empty()) at.push_back(json(at[input.below(at.size())]));
      break;
    case 2:
      for (std::size_t depth = input.below(100); depth > 0; --depth) at = json::array({at});
      break;
    case 3:
      if (at.is_object()) at[input.text(8)] = json(place_in(value, input));
      break;
    case 4:
      if (at.is_structured() && !at.empty()) {
        at.erase(std::next(at.begin(), static_cast<std::ptrdiff_t>(input.below(at.size()))));
      }
      break;
    case 5:
      if (at.is_number_integer()) at = at.get<std::uint64_t>() + (input.flag() ? 1 : ~0ULL);
      break;
    default: at = odd_value(input);
  }
}

/// The text of a file's header, with its length before it.
inline std::string framed(std::string const& text) {
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

/// As text; what is no UTF-8 is replaced.
inline std::string text_of(json const& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Changes some places, and now and then the text itself.
inline std::string changed_text(json value, Input& input) {
  for (std::size_t times = input.below(4); times > 0; --times) change(value, input);
  std::string text = text_of(value);
  if (input.below(8) == 1) text.replace(input.below(text.size()), input.below(4), input.text(16));
  return text;
}

}  // namespace fuzz
