#include "program.hpp"

#include "case.hpp"
#include "combinations.hpp"
#include "reference.hpp"
#include "support/standard.hpp"
#include "trials.hpp"

namespace differential {

Play play_of(std::size_t combination) {
  return []<std::size_t... Part>(std::size_t i, std::index_sequence<Part...>) {
    Play found;
    ((found = i % parts == Part ? play_of<Part>(i) : found), ...);
    return found;
  }
  (combination, std::make_index_sequence<ZERO_DIFFERENTIAL_PARTS>{});
}

namespace {

/// Runs cases until a limit is reached or one fails.
class Program {
 public:
  Program(World& world, Command const& command)
      : world_(world),
        trials_{.command = command, .leads = world.leads(), .survives = world.survives()} {
    int& ranks = trials_.command.ranks;
    if (ranks <= 0 || ranks > world.most_ranks()) ranks = world.most_ranks();
    for (std::size_t i = 0; i < combinations.size(); ++i) {
      if (name(combinations[i]).find(command.only) == std::string::npos) continue;
      Play const play = play_of(i);
      if (world.has_devices() ? play.on_device != nullptr : play.on_host != nullptr) {
        chosen_.push_back(i);
      }
    }
  }

  /// @returns the program's status
  int run() {
    if (chosen_.empty()) return std::fprintf(stderr, "no policies have such a name\n"), 2;
    auto const draws = [&](std::uint64_t seed) {
      std::size_t const combination = chosen_[seed % chosen_.size()];
      play_ = play_of(combination);
      return draw(seed, combinations[combination], trials_.command.ranks);
    };
    return trials_.run(draws, [&](Case const& test) { return difference(test); });
  }

 private:
  /// In words, or empty.
  std::string difference(Case const& test) {
    auto const expected = expect(test);
    auto& counts = trials_.counts;
    for (ExpectedStep const& step : expected) {
      counts["(skipped)"] += step.report.skipped ? 1 : 0;
      counts["(fails)"] += step.fails ? 1 : 0;
      counts["(a lower loss scale)"] += step.next_loss_scale < step.report.loss_scale ? 1 : 0;
      counts["(a higher loss scale)"] += step.next_loss_scale > step.report.loss_scale ? 1 : 0;
    }
    std::istringstream words(describe(test));
    for (std::string word; words >> word;) {
      if (word.find('(') != word.npos) ++counts[word];
    }
    try {
      world_.run(
          test.ranks,
          test.seed,
          {.on_host = [&](AnyCommunicator& comm) { play_.on_host(comm, test, expected, {}); },
           .on_device = [&](AnyDevice& comm) { play_.on_device(comm, test, expected, {}); }});
    } catch (std::exception const& error) {
      return error.what();
    }
    return "";
  }

  World& world_;
  Trials trials_;
  std::vector<std::size_t> chosen_{};
  Play play_{};
};

}  // namespace

int run_program(World& world, int argc, char** argv) {
  if (auto const command = read_command(argc, argv)) return Program(world, *command).run();
  print_usage(argv[0],
              "Trains random models by random calls and compares every bit with an independent "
              "reference.",
              "policies whose name contains the text:");
  for (Policies const& policies : combinations) std::printf("    %s\n", name(policies).c_str());
  return 2;
}

int run_cases(World& world, std::uint64_t runs) { return Program(world, {.runs = runs}).run(); }

}  // namespace differential
