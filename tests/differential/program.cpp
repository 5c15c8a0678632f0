#include "program.hpp"

#include "case.hpp"
#include "combinations.hpp"
#include "reference.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace differential {

namespace {

/// Null for what this build leaves out.
Play play_of(std::size_t combination) {
  return []<std::size_t... Part>(std::size_t i, std::index_sequence<Part...>) {
    Play found = nullptr;
    ((found = i % parts == Part ? differential::play_of<Part>(i) : found), ...);
    return found;
  }
  (combination, std::make_index_sequence<ZERO_DIFFERENTIAL_PARTS>{});
}

/// What the command line says.
struct Command {
  std::uint64_t seed = 1;
  std::uint64_t runs = 0;
  double seconds = 0.;
  int ranks = 0;
  std::string only{};
};

constexpr char const* usage =
    "usage: %s [--seed S] [--runs N] [--seconds T] [--ranks R] [--only TEXT]\n"
    "Trains random models by random calls and compares every bit with an independent reference.\n"
    "  --seed S     of the first case; those after it follow (default 1)\n"
    "  --runs N     cases, 0 for no limit (default 0)\n"
    "  --seconds T  starts no case after so many, 0 for no limit (default 0)\n"
    "  --ranks R    at most so many ranks (default: 8 threads, or all processes)\n"
    "  --only TEXT  policies whose name contains the text:\n";

/// @returns false if there is nothing to run; `status` is then the program's
bool parse(int argc, char** argv, Command& command, int& status) {
  std::vector<std::string_view> const arguments(argv + 1, argv + argc);
  status = 2;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    if (arguments[i] == "--help") status = 0;
    if (i + 1 == arguments.size()) {
      std::printf(usage, argv[0]);
      for (Policies const& policies : combinations) std::printf("    %s\n", name(policies).c_str());
      return false;
    }
    std::string const text(arguments[i + 1]);
    if (arguments[i] == "--seed")
      command.seed = std::strtoull(text.c_str(), nullptr, 10);
    else if (arguments[i] == "--runs")
      command.runs = std::strtoull(text.c_str(), nullptr, 10);
    else if (arguments[i] == "--seconds")
      command.seconds = std::strtod(text.c_str(), nullptr);
    else if (arguments[i] == "--ranks")
      command.ranks = static_cast<int>(std::strtol(text.c_str(), nullptr, 10));
    else if (arguments[i] == "--only")
      command.only = text;
    else
      return std::fprintf(stderr, "there is no option %s\n", std::string(arguments[i]).c_str()),
             false;
  }
  return true;
}

/// Runs cases until a limit is reached or one fails.
class Program {
 public:
  Program(World& world, Command const& command) : world_(world), command_(command) {
    if (command_.ranks <= 0 || command_.ranks > world.most_ranks()) {
      command_.ranks = world.most_ranks();
    }
    for (std::size_t i = 0; i < combinations.size(); ++i) {
      if (name(combinations[i]).find(command_.only) == std::string::npos) continue;
      if (play_of(i) != nullptr) chosen_.push_back(i);
    }
  }

  int run() {
    if (chosen_.empty()) return std::fprintf(stderr, "no policies have such a name\n"), 2;
    Clock::time_point const begin = Clock::now();
    double told = 0.;
    std::uint64_t done = 0;
    for (; command_.runs == 0 || done < command_.runs; ++done) {
      double const passed = std::chrono::duration<double>(Clock::now() - begin).count();
      if (!world_.agree(command_.seconds <= 0. || passed < command_.seconds)) break;
      if (world_.leads() && passed - told > 10.) {
        told = passed;
        std::printf("%llu cases in %.0f s\n", static_cast<unsigned long long>(done), passed);
        std::fflush(stdout);
      }
      std::uint64_t const seed = command_.seed + done;
      std::size_t const combination = chosen_[seed % chosen_.size()];
      play_ = play_of(combination);
      Case const test = draw(seed, combinations[combination], command_.ranks);
      if (std::string const found = difference(test); !found.empty()) return fail(test, found);
      count_calls(test, calls_);
    }
    double const passed = std::chrono::duration<double>(Clock::now() - begin).count();
    if (world_.leads()) {
      std::printf(
          "%llu cases from seed %llu on, %zu combinations of policies, %.1f s: no difference\n",
          static_cast<unsigned long long>(done),
          static_cast<unsigned long long>(command_.seed),
          chosen_.size(),
          passed);
    }
    return rarest_is_frequent(done) ? 0 : 1;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// In words, or empty.
  std::string difference(Case const& test) {
    auto const expected = expect(test);
    try {
      world_.run(
          test.ranks, test.seed, [&](AnyCommunicator& comm) { play_(comm, test, expected); });
    } catch (std::exception const& error) {
      return error.what();
    }
    return "";
  }

  int fail(Case const& test, std::string const& found) {
    std::printf("FAILED: %s\n%s", found.c_str(), describe(test).c_str());
    std::printf("again: --runs 1 --seed %llu --ranks %d --only %s\n",
                static_cast<unsigned long long>(test.seed),
                command_.ranks,
                name(test.policies).c_str());
    std::fflush(stdout);
    if (!world_.survives()) return 1;
    Case smallest = test;
    std::string why = found;
    bool shrunk = true;
    while (std::exchange(shrunk, false)) {
      for (Case const& next : simpler(smallest)) {
        std::string const still = difference(next);
        if (still.empty()) continue;
        smallest = next;
        why = still;
        shrunk = true;
        break;
      }
    }
    std::printf("\nsmallest that fails: %s\n%s", why.c_str(), describe(smallest).c_str());
    return 1;
  }

  /// Says how often calls were made. Of all policies, each kind is made once in 40 cases or more.
  bool rarest_is_frequent(std::uint64_t done) const {
    bool frequent = true;
    bool const counts = command_.only.empty() && done >= 1000;
    for (auto const& [what, times] : calls_) {
      if (world_.leads())
        std::printf("%9llu %s\n", static_cast<unsigned long long>(times), what.c_str());
      frequent = frequent && (!counts || times >= done / 40);
    }
    if (!frequent && world_.leads()) std::printf("FAILED: some calls are too rare\n");
    return frequent;
  }

  World& world_;
  Command command_;
  Calls calls_{};
  std::vector<std::size_t> chosen_;
  Play play_ = nullptr;
};

}  // namespace

int run_program(World& world, int argc, char** argv) {
  Command command;
  int status = 0;
  if (!parse(argc, argv, command, status)) return status;
  return Program(world, command).run();
}

}  // namespace differential
