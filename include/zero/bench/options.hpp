/// @file
/// Options of the benchmarks' programs beside those of Google Benchmark.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <charconv>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// A whole number of at least 1, or a size: K, M and G behind it stand for KiB, MiB and GiB.
/// @throws Error (invalid_argument) if the text is neither, or too large
[[nodiscard]] inline std::size_t parse_size(std::string_view text) {
  std::size_t value = 0;
  char const* const end = text.data() + text.size();
  auto const [rest, error] = std::from_chars(text.data(), end, value);
  std::string_view const suffix(rest, static_cast<std::size_t>(end - rest));
  std::size_t unit = suffix.empty() ? 1 : 0;
  if (suffix == "K" || suffix == "k") unit = KiB;
  if (suffix == "M" || suffix == "m") unit = MiB;
  if (suffix == "G" || suffix == "g") unit = GiB;
  if (error != std::errc() || value == 0 || unit == 0) {
    fail(ErrorKind::invalid_argument,
         {"'", text, "' is not a number of at least 1, such as 20, 64K, 256M or 1G"});
  }
  return checked_mul(value, unit);
}

/// The sizes from `smallest` to `largest`, each `factor` times the one before.
/// @throws Error (invalid_argument) if there is none, or no end
[[nodiscard]] inline std::vector<std::size_t> sizes(std::size_t smallest,
                                                    std::size_t largest,
                                                    std::size_t factor) {
  if (smallest == 0 || smallest > largest) {
    fail(ErrorKind::invalid_argument,
         {"no size is from --min ", smallest, " to --max ", largest, ": give a smaller --min"});
  }
  if (factor < 2) fail(ErrorKind::invalid_argument, "--factor has to be at least 2");
  std::vector<std::size_t> result;
  for (std::size_t size = smallest;; size *= factor) {
    result.push_back(size);
    if (size > largest / factor) return result;
  }
}

/// The parts of a list with commas.
[[nodiscard]] inline std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    std::size_t const comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

/// Those of `known` that a list names by what `name` calls them; "all" is every one.
/// @throws Error (invalid_argument) if the list has another name
template <class T>
[[nodiscard]] std::vector<T> choose(std::string_view list, std::vector<T> const& known) {
  if (list == "all") return known;
  std::vector<T> chosen;
  for (std::string_view const part : split_list(list)) {
    std::string names;
    std::size_t const before = chosen.size();
    for (T const value : known) {
      if (name(value) == part) chosen.push_back(value);
      names += ", " + std::string(name(value));
    }
    if (chosen.size() == before) {
      fail(ErrorKind::invalid_argument, {"'", part, "' is none of all", names});
    }
  }
  return chosen;
}

/// One option of a program.
struct Option {
  std::string_view name;                      ///< such as "--min"
  std::string_view help;                      ///< what it does, and what it is by default
  std::function<void(std::string_view)> set;  ///< takes the value; throws Error if it is wrong
  bool flag = false;                          ///< takes no value
};

/// Prints one line per option, and those of Google Benchmark that matter most.
inline void print_help(std::string_view program, std::vector<Option> const& options) {
  std::printf("usage: %.*s [OPTION]...\n", static_cast<int>(program.size()), program.data());
  for (Option const& option : options) {
    std::printf("  %-12.*s %.*s\n",
                static_cast<int>(option.name.size()),
                option.name.data(),
                static_cast<int>(option.help.size()),
                option.help.data());
  }
  std::printf(
      "and Google Benchmark's, such as\n"
      "  --benchmark_filter=REGEX       which, by their names\n"
      "  --benchmark_list_tests=true    the names, and nothing else\n"
      "  --benchmark_repetitions=N      rounds, of which the table has the median\n"
      "  --benchmark_format=json        or csv, instead of the table; all repetitions and "
      "statistics\n"
      "  --benchmark_out=FILE           the same into a file, with --benchmark_out_format=json or "
      "csv\n");
}

/// Hands `--name value` and `--name=value` to the options.
/// @return the arguments that are Google Benchmark's, after the program's name
/// @throws Error (invalid_argument) in one line that names the argument which is wrong
[[nodiscard]] inline std::vector<char*> parse_options(int argc,
                                                      char** argv,
                                                      std::vector<Option> const& options) {
  std::vector<char*> rest{argv[0]};
  for (int i = 1; i < argc; ++i) {
    std::string_view const argument = argv[i];
    if (argument.starts_with("--benchmark_") || argument.starts_with("--v=")) {
      rest.push_back(argv[i]);
      continue;
    }
    std::size_t const equal = argument.find('=');
    std::string_view const given = argument.substr(0, equal);
    Option const* found = nullptr;
    for (Option const& option : options) {
      if (option.name == given) found = &option;
    }
    if (found == nullptr) {
      fail(ErrorKind::invalid_argument, {"unknown option ", given, "; see --help"});
    }
    bool const attached = equal != std::string_view::npos;
    if (found->flag ? attached : !attached && i + 1 == argc) {
      fail(ErrorKind::invalid_argument,
           {given, found->flag ? " takes no value" : " needs a value; see --help"});
    }
    std::string_view value;
    if (attached) {
      value = argument.substr(equal + 1);
    } else if (!found->flag) {
      value = argv[++i];
    }
    found->set(value);
  }
  return rest;
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
