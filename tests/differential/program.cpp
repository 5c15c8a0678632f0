#include "program.hpp"

#include "case.hpp"
#include "combinations.hpp"
#include "reference.hpp"
#include "support/standard.hpp"

namespace differential {

namespace {

/// Nothing for what this build leaves out.
Play play_of(std::size_t combination) {
  return []<std::size_t... Part>(std::size_t i, std::index_sequence<Part...>) {
    Play found;
    ((found = i % parts == Part ? differential::play_of<Part>(i) : found), ...);
    return found;
  }
  (combination, std::make_index_sequence<ZERO_DIFFERENTIAL_PARTS>{});
}

/// What the command line says.
struct Command {
  std::uint64_t seed = 1;
  std::uint64_t runs = 0;
  int ranks = 0;
  std::string only{};
};

int usage(char const* program) {
  std::printf(
      "usage: %s [--seed S] [--runs N] [--ranks R] [--only TEXT]\n"
      "Trains random models by random calls and compares every bit with an independent reference.\n"
      "  --seed S     of the first case; those after it follow (default 1)\n"
      "  --runs N     cases, 0 for no limit (default 0)\n"
      "  --ranks R    at most so many ranks (default: 8 threads, or all processes)\n"
      "  --only TEXT  policies whose name contains the text:\n",
      program);
  for (Policies const& policies : combinations) std::printf("    %s\n", name(policies).c_str());
  return 2;
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
      Play const play = play_of(i);
      if (world.has_devices() ? play.on_device != nullptr : play.on_host != nullptr) {
        chosen_.push_back(i);
      }
    }
  }

  /// @returns the program's status
  int run() {
    if (chosen_.empty()) return std::fprintf(stderr, "no policies have such a name\n"), 2;
    std::uint64_t done = 0;
    for (; command_.runs == 0 || done < command_.runs; ++done) {
      std::uint64_t const seed = command_.seed + done;
      std::size_t const combination = chosen_[seed % chosen_.size()];
      play_ = play_of(combination);
      Case const test = draw(seed, combinations[combination], command_.ranks);
      if (std::string const found = difference(test); !found.empty()) return fail(test, found);
      std::istringstream words(describe(test));
      for (std::string word; words >> word;) {
        if (word.find('(') != word.npos) ++calls_[word];
      }
    }
    return rarest_is_frequent(done) ? 0 : 1;
  }

 private:
  /// In words, or empty.
  std::string difference(Case const& test) {
    auto const expected = expect(test);
    for (ExpectedStep const& step : expected) {
      calls_["(skipped)"] += step.report.skipped ? 1 : 0;
      calls_["(fails)"] += step.fails ? 1 : 0;
      calls_["(a lower loss scale)"] += step.next_loss_scale < step.report.loss_scale ? 1 : 0;
      calls_["(a higher loss scale)"] += step.next_loss_scale > step.report.loss_scale ? 1 : 0;
    }
    try {
      world_.run(test.ranks,
                 test.seed,
                 {.on_host = [&](AnyCommunicator& comm) { play_.on_host(comm, test, expected); },
                  .on_device = [&](AnyDevice& comm) { play_.on_device(comm, test, expected); }});
    } catch (std::exception const& error) {
      return error.what();
    }
    return "";
  }

  int fail(Case test, std::string found) {
    std::printf("again: --runs 1 --seed %llu --ranks %d --only %s\n",
                static_cast<unsigned long long>(test.seed),
                command_.ranks,
                name(test.policies).c_str());
    for (bool shrinks = true; shrinks;) {
      std::printf("FAILED: %s\n%s", found.c_str(), describe(test).c_str());
      std::fflush(stdout);
      shrinks = false;
      for (Case const& next : world_.survives() ? simpler(test) : std::vector<Case>{}) {
        std::string const still = difference(next);
        if (still.empty()) continue;
        found = still;
        test = Case(next);
        shrinks = true;
        break;
      }
    }
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
  std::map<std::string, std::uint64_t> calls_{};  ///< and events, by name
  std::vector<std::size_t> chosen_;
  Play play_{};
};

}  // namespace

int run_program(World& world, int argc, char** argv) {
  Command command;
  for (int i = 1; i < argc; i += 2) {
    std::string_view const option = argv[i];
    if (i + 1 == argc) return usage(argv[0]);
    if (option == "--seed") {
      command.seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--runs") {
      command.runs = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--ranks") {
      command.ranks = std::atoi(argv[i + 1]);
    } else if (option == "--only") {
      command.only = argv[i + 1];
    } else {
      return usage(argv[0]);
    }
  }
  return Program(world, command).run();
}

int run_cases(World& world, std::uint64_t runs) { return Program(world, {.runs = runs}).run(); }

}  // namespace differential
