/// @file
/// One random test after the other, as a command line says, until one fails. That one is made
/// simpler for as long as it fails.
#pragma once

#include "support/standard.hpp"

namespace differential {

/// What the command line says.
struct Command {
  std::uint64_t seed = 1;
  std::uint64_t runs = 0;
  int ranks = 0;
  std::string only{};
};

/// The command, or nothing for what is none.
inline std::optional<Command> read_command(int argc, char** argv) {
  Command command;
  for (int i = 1; i < argc; i += 2) {
    std::string_view const option = argv[i];
    if (i + 1 == argc) return std::nullopt;
    if (option == "--seed") {
      command.seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--runs") {
      command.runs = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--ranks") {
      command.ranks = std::atoi(argv[i + 1]);
    } else if (option == "--only") {
      command.only = argv[i + 1];
    } else {
      return std::nullopt;
    }
  }
  return command;
}

/// How to call such a program.
/// @param what  it does
/// @param only  what `--only` chooses
inline void print_usage(char const* program, char const* what, char const* only) {
  std::printf(
      "usage: %s [--seed S] [--runs N] [--ranks R] [--only TEXT]\n"
      "%s\n"
      "  --seed S     of the first case; those after it follow (default 1)\n"
      "  --runs N     cases, 0 for no limit (default 0)\n"
      "  --ranks R    at most so many ranks (default: 8 threads, or all processes)\n"
      "  --only TEXT  %s\n",
      program,
      what,
      only);
}

/// Tests of one kind, which has functions `describe(test)` and `simpler(test)`.
struct Trials {
  Command command;
  bool leads = true;                              ///< does this process speak for all?
  bool survives = true;                           ///< does it survive a test that fails?
  std::map<std::string, std::uint64_t> counts{};  ///< what happened, by name

  /// @param draw        the test of a seed
  /// @param difference  runs a test: what is not as it should be, in words, or empty
  /// @returns the program's status, which is 0 if none has failed
  template <class Draw, class Difference>
  int run(Draw const& draw, Difference const& difference) {
    std::uint64_t done = 0;
    for (; command.runs == 0 || done < command.runs; ++done) {
      std::uint64_t const seed = command.seed + done;
      auto const test = draw(seed);
      std::string const found = difference(test);
      if (!found.empty()) return fail(seed, test, found, difference);
    }
    return rarest_is_frequent(done) ? 0 : 1;
  }

 private:
  template <class Test, class Difference>
  int fail(std::uint64_t seed, Test test, std::string found, Difference const& difference) const {
    std::printf("again: --runs 1 --seed %llu --ranks %d --only '%s'\n",
                static_cast<unsigned long long>(seed),
                command.ranks,
                command.only.c_str());
    for (bool shrinks = true; shrinks;) {
      std::printf("FAILED: %s\n%s", found.c_str(), describe(test).c_str());
      std::fflush(stdout);
      shrinks = false;
      for (Test const& next : survives ? simpler(test) : std::vector<Test>{}) {
        std::string const still = difference(next);
        if (still.empty()) continue;
        found = still;
        test = Test(next);
        shrinks = true;
        break;
      }
    }
    return 1;
  }

  /// Says how often what happened. Of all tests, each kind is in one of 40 or more.
  bool rarest_is_frequent(std::uint64_t done) const {
    bool frequent = true;
    bool const enough = command.only.empty() && done >= 1000;
    for (auto const& [what, times] : counts) {
      if (leads) std::printf("%9llu %s\n", static_cast<unsigned long long>(times), what.c_str());
      frequent = frequent && (!enough || times >= done / 40);
    }
    if (!frequent && leads) std::printf("FAILED: some of these are too rare\n");
    return frequent;
  }
};

}  // namespace differential
