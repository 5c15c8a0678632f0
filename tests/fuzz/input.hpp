/// @file
/// A fuzzer's bytes as choices, changes of JSON that choices make, and files.
#pragma once

#include "checkpoint/resealed.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "support/standard.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

namespace fuzz {

using checkpoint_tests::framed;
using checkpoint_tests::sealed;
using checkpoint_tests::slurp;
using checkpoint_tests::spill;
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

/// Choices for tests that no fuzzer guides.
inline std::vector<std::uint8_t> random_bytes(std::mt19937_64& random) {
  std::vector<std::uint8_t> bytes(128);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() >> 56);
  return bytes;
}

/// Changes letters of a text in up to four places.
inline std::string changed_letters(std::string text, Input& input) {
  static constexpr std::string_view letters = R"({}[]",:0123456789eE.-+_ \uFBShapemwab)";
  for (std::size_t times = 1 + input.below(4); times > 0; --times) {
    if (text.empty()) text = "{";
    std::size_t const at = input.below(text.size());
    switch (input.below(5)) {
      case 0: text[at] = static_cast<char>(input.number(1)); break;
      case 1: text[at] = letters[input.below(letters.size())]; break;
      case 2: text.erase(at, 1 + input.below(8)); break;
      case 3: text.resize(at); break;
      default: text.insert(at, text.substr(input.below(text.size()), 1 + input.below(40)));
    }
  }
  return text;
}

/// A value that readers may not expect.
inline json odd_value(Input& input) {
  static json const values = json::parse(R"([null, true, "", "w", "head", "..", "a/b", 0, 1, 2, 3,
    4, 6, -1, 0.5, 1e39, 1e300, -1e300, 16, 2147483647, 2147483648, 4294967296, 4611686018427387904,
    9223372036854775807, 9223372036854775808, 18446744073709551615, [], {}, "F64", "w:master:0",
    [16], [4294967296, 4294967296]])");
  std::size_t const which = input.below(values.size() + 3);
  if (which < values.size()) return values[which];
  if (which == values.size()) return input.number(1 + input.below(8));
  if (which == values.size() + 1) return -static_cast<std::int64_t>(input.number(4));
  return input.text(16);
}

/// One of the values in an array or object that is not empty.
inline json::iterator member(json& value, Input& input) {
  return std::next(value.begin(), static_cast<std::ptrdiff_t>(input.below(value.size())));
}

/// Some value within `value`; those near the top are as likely as the many below.
inline json& place_in(json& value, Input& input) {
  json* at = &value;
  while (at->is_structured() && !at->empty() && input.below(4) != 0) at = &*member(*at, input);
  return *at;
}

/// Changes one place.
inline void change(json& value, Input& input) {
  json& at = place_in(value, input);
  std::size_t const what = input.below(8);
  if (what == 0) {
    at = json(place_in(value, input));
  } else if (what == 1 && at.is_array() && !at.empty()) {
    at.push_back(json(*member(at, input)));
  } else if (what == 2) {
    for (std::size_t depth = input.below(100); depth > 0; --depth) at = json::array({at});
  } else if (what == 3 && at.is_object()) {
    at[input.text(8)] = json(place_in(value, input));
  } else if (what == 4 && at.is_structured() && !at.empty()) {
    at.erase(member(at, input));
  } else if (what == 5 && at.is_number_integer()) {
    at = at.get<std::uint64_t>() + (input.flag() ? 1 : ~0ULL);
  } else {
    at = odd_value(input);
  }
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

/// A directory of this process that goes with the object; in memory where the system has that.
struct Place {
  std::string path;

  explicit Place(std::string const& name) {
    std::filesystem::path const memory = "/dev/shm";
    static bool const has_memory = std::filesystem::is_directory(memory);
    path = has_memory ? memory : std::filesystem::temp_directory_path();
    path += "/zero-fuzz-" + std::to_string(::getpid()) + name;
    std::filesystem::create_directories(path);
  }
  Place(Place const&) = delete;
  Place& operator=(Place const&) = delete;
  ~Place() { std::filesystem::remove_all(path); }
};

}  // namespace fuzz
