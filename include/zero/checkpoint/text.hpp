/// @file
/// JSON from files that nobody trusts: what is not there, or is of another kind, is an error.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/optimizer/step_options.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Levels of lists and objects that a file may have.
inline constexpr int deepest_text = 64;

/// Levels of lists and objects that a text of JSON has.
[[nodiscard]] inline int depth_of(std::string_view text) noexcept {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const letter = text[i];
    if (quoted && letter == '\\') {
      ++i;
    } else if (letter == '"') {
      quoted = !quoted;
    } else if (!quoted && (letter == '[' || letter == '{')) {
      deepest = (std::max)(deepest, ++depth);
    } else if (!quoted && (letter == ']' || letter == '}')) {
      --depth;
    }
  }
  return deepest;
}

/// Parses a text, whose memory bounds that of the result.
/// @param file  what messages call it
/// @throws Error (data) for what is no JSON, or is nested deeper than anybody needs
[[nodiscard]] inline nlohmann::json parse_text(std::string const& file, std::string_view text) {
  // Looked at before, as the library's own way of asking while it parses takes quadratic time.
  if (depth_of(text) > deepest_text) {
    fail(ErrorKind::data, {"'", file, "' is nested deeper than ", deepest_text, " levels"});
  }
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded()) fail(ErrorKind::data, {"'", file, "' is no JSON"});
  return json;
}

/// Takes a text piece by piece, and holds what it needs of it.
using TextPieces = nlohmann::json_sax<nlohmann::json>;

/// Hands a text to whoever takes it. The parser is compiled once, and not for each of them.
/// @returns whether it is JSON, and all of it was taken
[[nodiscard]] inline bool parse_pieces(std::string_view text, TextPieces& pieces) {
  return nlohmann::json::sax_parse(text.begin(), text.end(), &pieces);
}

/// A name of a file in the same directory, and of nothing else.
[[nodiscard]] inline bool is_plain_name(std::string_view name) noexcept {
  auto const never = [](char letter) {
    return letter == '/' || letter == '\\' || static_cast<unsigned char>(letter) < 0x20;
  };
  return !name.empty() && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), never);
}

/// An object of a file, and what it must have.
class Fields {
 public:
  /// @param file  what messages call the file; `json` and it must outlive this
  Fields(std::string const& file, nlohmann::json const& json) : file_(&file), json_(&json) {
    if (!json.is_object()) refuse("has something else where it should have an object");
  }

  [[nodiscard]] bool has(char const* name) const { return json_->contains(name); }
  [[nodiscard]] nlohmann::json const& at(char const* name) const {
    auto const found = json_->find(name);
    if (found == json_->end()) refuse({"has no '", name, "'"});
    return *found;
  }
  [[nodiscard]] std::uint64_t count(char const* name) const { return count(name, at(name)); }
  [[nodiscard]] long steps(char const* name) const {
    std::uint64_t const value = count(name);
    if (value > static_cast<std::uint64_t>(most_steps)) {
      refuse({"has a '", name, "' of ", value, ", more updates than a run can have"});
    }
    return static_cast<long>(value);
  }
  [[nodiscard]] int integer(char const* name) const {
    nlohmann::json const& value = at(name);
    if (!value.is_number_integer()) unlike(name);
    auto const number = value.get<std::int64_t>();
    if (number < (std::numeric_limits<int>::min)() || number > (std::numeric_limits<int>::max)() ||
        (value.is_number_unsigned() && number < 0)) {
      unlike(name);
    }
    return static_cast<int>(number);
  }
  [[nodiscard]] float real(char const* name) const {
    nlohmann::json const& value = at(name);
    if (!value.is_number()) unlike(name);
    auto const number = value.get<double>();
    constexpr double most = (std::numeric_limits<float>::max)();
    if (!(number >= -most && number <= most)) {
      refuse({"has a '", name, "' of ", number, ", more than a float holds"});
    }
    return static_cast<float>(number);
  }
  [[nodiscard]] bool flag(char const* name) const {
    nlohmann::json const& value = at(name);
    if (!value.is_boolean()) unlike(name);
    return value.get<bool>();
  }
  [[nodiscard]] std::string const& text(char const* name) const {
    nlohmann::json const& value = at(name);
    if (!value.is_string()) unlike(name);
    return value.get_ref<std::string const&>();
  }
  [[nodiscard]] nlohmann::json const& list(char const* name) const {
    nlohmann::json const& value = at(name);
    if (!value.is_array()) unlike(name);
    return value;
  }
  [[nodiscard]] std::vector<std::uint64_t> counts(char const* name) const {
    std::vector<std::uint64_t> values;
    for (nlohmann::json const& value : list(name)) values.push_back(count(name, value));
    return values;
  }

 private:
  [[nodiscard]] std::uint64_t count(char const* name, nlohmann::json const& value) const {
    if (!value.is_number_unsigned()) unlike(name);
    return value.get<std::uint64_t>();
  }
  [[noreturn]] ZERO_COLD void unlike(char const* name) const {
    refuse({"has a '", name, "' of another type"});
  }
  [[noreturn]] ZERO_COLD void refuse(Message const& why) const {
    fail(ErrorKind::data, {"'", *file_, "' ", why});
  }

  std::string const* file_;
  nlohmann::json const* json_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
