/// @file
/// JSON from files that nobody trusts: what is not there, or is of another kind, is an error.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/optimizer/api/step_options.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
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
    refuse_file(file, {"is nested deeper than ", deepest_text, " levels"});
  }
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded()) refuse_file(file, "is no JSON");
  return json;
}

/// Takes a text piece by piece, and holds what it needs of it. Who inherits says which values it
/// expects where; all others come to `other`.
class TextPieces : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return other("null"); }
  bool boolean(bool /*value*/) override { return other("a truth value"); }
  bool number_integer(number_integer_t /*value*/) override { return other("a negative number"); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return other("a number"); }
  bool number_float(number_float_t /*value*/, string_t const& text) override {
    return other("the number " + text.substr(0, 64));
  }
  bool string(string_t& /*text*/) override { return other("a text"); }
  bool binary(binary_t& /*value*/) override { return other("binary data"); }
  bool parse_error(std::size_t position,
                   std::string const& /*token*/,
                   nlohmann::detail::exception const& /*error*/) override {
    return refuse("it is no JSON from byte " + std::to_string(position) + " on");
  }

  /// What was wrong; empty if nothing was.
  [[nodiscard]] std::string const& problem() const noexcept { return problem_; }

 protected:
  /// @param what  in words
  /// @returns whether the text may have it there
  virtual bool other(std::string const& what) = 0;
  /// The first reason counts.
  bool refuse(std::string why) {
    if (problem_.empty()) problem_ = std::move(why);
    return false;
  }

 private:
  std::string problem_{};
};

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

/// A number that has only digits.
[[nodiscard]] inline std::optional<std::uint64_t> number_of(std::string_view digits) noexcept {
  std::uint64_t number = 0;
  char const* const end = digits.data() + digits.size();
  auto const read = std::from_chars(digits.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

/// A text within JSON; empty if there is none there.
/// @param path  such as "/rule/name"
[[nodiscard]] inline std::string text_at(nlohmann::json const& json, char const* path) {
  nlohmann::json::json_pointer const at(path);
  return json.contains(at) && json[at].is_string() ? json[at].get<std::string>() : std::string();
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
  [[nodiscard]] std::uint64_t count(char const* name) const {
    return of(name, &nlohmann::json::is_number_unsigned).get<std::uint64_t>();
  }
  [[nodiscard]] long steps(char const* name) const {
    std::uint64_t const value = count(name);
    if (value > static_cast<std::uint64_t>(most_steps)) {
      refuse({"has a '", name, "' of ", value, ", more updates than a run can have"});
    }
    return static_cast<long>(value);
  }
  [[nodiscard]] int integer(char const* name) const {
    nlohmann::json const& value = of(name, &nlohmann::json::is_number_integer);
    auto const number = value.get<std::int64_t>();
    if (number < (std::numeric_limits<int>::min)() || number > (std::numeric_limits<int>::max)() ||
        (value.is_number_unsigned() && number < 0)) {
      unlike(name);
    }
    return static_cast<int>(number);
  }
  [[nodiscard]] double real(char const* name) const {
    auto const number = of(name, &nlohmann::json::is_number).get<double>();
    constexpr double most = (std::numeric_limits<float>::max)();
    if (!(number >= -most && number <= most)) {
      refuse({"has a '", name, "' of ", number, ", more than a float holds"});
    }
    return number;
  }
  [[nodiscard]] bool flag(char const* name) const {
    return of(name, &nlohmann::json::is_boolean).get<bool>();
  }
  [[nodiscard]] std::string const& text(char const* name) const {
    return of(name, &nlohmann::json::is_string).get_ref<std::string const&>();
  }
  [[nodiscard]] nlohmann::json const& list(char const* name) const {
    return of(name, &nlohmann::json::is_array);
  }
  [[nodiscard]] std::vector<std::uint64_t> counts(char const* name) const {
    std::vector<std::uint64_t> values;
    for (nlohmann::json const& value : list(name)) {
      if (!value.is_number_unsigned()) unlike(name);
      values.push_back(value.get<std::uint64_t>());
    }
    return values;
  }

 private:
  [[nodiscard]] nlohmann::json const& of(char const* name,
                                         bool (nlohmann::json::*is)() const noexcept) const {
    nlohmann::json const& value = at(name);
    if (!(value.*is)()) unlike(name);
    return value;
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
