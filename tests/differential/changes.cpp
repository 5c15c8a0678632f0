/// Random models that are changed between save and load: whatever was saved goes where the
/// reference says, or the load is refused by name, and training goes on as the reference does.
#include "changed_model.hpp"
#include "checkpoint/model_files.hpp"
#include "combinations.hpp"
#include "rank.hpp"
#include "reference.hpp"
#include "support/standard.hpp"
#include "trials.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"

namespace {

using namespace differential;

constexpr int most_ranks = 5;
using Optimizer = zero::AnyOptimizer<true, float>;

void require(bool holds, std::string const& what) {
  if (!holds) throw Difference(what);
}

/// Those that one of these texts names.
std::set<std::string> named(std::vector<std::string> const& texts,
                            std::set<std::string> const& names) {
  std::set<std::string> result;
  for (std::string const& name : names) {
    bool const is_named = std::ranges::any_of(
        texts, [&](std::string const& text) { return text.find("'" + name + "'") != text.npos; });
    if (is_named) result.insert(name);
  }
  return result;
}

class Changes {
 public:
  explicit Changes(Command const& command) : trials_{.command = command} {
    for (std::size_t i = 0; i < combinations.size(); ++i) {
      bool const chosen = name(combinations[i]).find(command.only) != std::string::npos;
      if (chosen && play_of(i).on_host != nullptr) available_.push_back(combinations[i]);
    }
    int& ranks = trials_.command.ranks;
    if (ranks <= 0 || ranks > most_ranks) ranks = most_ranks;
  }

  /// @returns the program's status
  int run() {
    if (available_.empty()) return std::fprintf(stderr, "no policies have such a name\n"), 2;
    return trials_.run(
        [&](std::uint64_t seed) { return draw_changed(seed, available_, trials_.command.ranks); },
        [&](ChangedModel const& test) { return difference(test); });
  }

 private:
  /// In words, or empty.
  std::string difference(ChangedModel const& test) {
    auto const before = expect(test.before);
    auto const own = expect(test.after);
    Verdict const verdict = judge(test, before.back(), own);
    auto const after = expect(test.after, verdict.refused ? nullptr : &verdict.loaded);
    count(test, verdict);
    checkpoint_tests::ModelFiles files;
    try {
      play(test.before, before, [&](int step, Optimizer& optimizer) {
        if (step != test.before.steps) return;
        zero::Checkpoints("run", {}, files).save(optimizer, {.frozen = test.saves_frozen});
      });
      play(test.after, after, [&](int step, Optimizer& optimizer) {
        if (step == test.at) load(test, verdict, optimizer, files);
      });
    } catch (std::exception const& error) {
      return error.what();
    }
    return "";
  }

  static void play(Case const& test,
                   std::vector<ExpectedStep> const& expected,
                   Beside<AnyCommunicator> const& beside) {
    auto const same = [&](Policies const& each) { return name(each) == name(test.policies); };
    auto const at = std::ranges::find_if(combinations, same) - combinations.begin();
    Play const play = play_of(static_cast<std::size_t>(at));
    zero::run_ranks(test.ranks,
                    [&](zero::InProcess& comm) {
                      AnyCommunicator any(comm, zero::space::Host{});
                      play.on_host(any, test, expected, beside);
                    },
                    {.deadline_s = 60});
  }

  static void load(ChangedModel const& test,
                   Verdict const& verdict,
                   Optimizer& optimizer,
                   checkpoint_tests::ModelFiles& files) {
    zero::Checkpoints run("run", {}, files);
    zero::LoadOptions const options{.strict = test.strict,
                                    .parameters_only = test.parameters_only,
                                    .verify_first = test.verify_first,
                                    .names = test.names,
                                    .frozen = test.loads_frozen};
    std::optional<zero::LoadReport> report;
    try {
      report = test.finds ? run.load(optimizer, run.latest(optimizer).value(), options)
                          : run.resume(optimizer, options);
    } catch (zero::Error const& error) {
      std::string const text = error.message();
      require(verdict.refused.has_value(), "the load is refused: " + text);
      require(zero::name(error.kind()) == *verdict.refused, "another kind of error: " + text);
      for (std::string const& each : verdict.said)
        require(text.find(each) != text.npos, "the error says nothing of " + each + ": " + text);
      return;
    }
    require(!verdict.refused, "the load is not refused");
    require(report.has_value(), "no checkpoint is found");
    check(test, verdict, *report);
  }

  static void check(ChangedModel const& test,
                    Verdict const& verdict,
                    zero::LoadReport const& report) {
    std::set<std::string> all;
    for (auto const* const tensors : {&test.before.tensors, &test.after.tensors}) {
      for (TensorCase const& tensor : *tensors) all.insert(name(tensor));
    }
    auto const list = [&](std::vector<std::string> const& found,
                          std::set<std::string> const& wanted,
                          std::string const& which) {
      std::set<std::string> const names(found.begin(), found.end());
      for (std::string const& each : wanted)
        require(names.contains(each), "'" + each + "' is not in the list '" + which + "'");
      for (std::string const& each : found)
        require(wanted.contains(each), "'" + each + "' is in the list '" + which + "'");
      require(names.size() == found.size(), "something is twice in the list '" + which + "'");
    };
    list(report.missing, verdict.missing, "missing");
    list(report.unexpected, verdict.unexpected, "unexpected");
    list(report.left_out, verdict.left_out, "left_out");
    auto const unfit = named(report.unfit, all);
    list({unfit.begin(), unfit.end()}, verdict.unfit, "unfit");
    require(report.step == verdict.loaded.step, "another step is reported");

    require(report.taken.size() == test.after.tensors.size(), "a tensor is not reported");
    for (std::size_t t = 0; t < report.taken.size(); ++t) {
      zero::TakenTensor const& found = report.taken[t];
      Taken const& wanted = verdict.taken[t];
      std::string const tensor = "'" + name(test.after.tensors[t]) + "': ";
      require("'" + found.tensor + "': " == tensor, tensor + "another name is reported");
      require(found.values == wanted.values, tensor + "its values are taken, or are not");
      require(found.states == wanted.states, tensor + "its states are taken, or are not");
      require(found.count == wanted.count,
              tensor + "its count is " + std::to_string(found.count) + ", not " +
                  std::to_string(wanted.count));
    }
    // Whatever was saved was taken, or is named.
    std::vector<std::string> texts = report.unfit;
    for (auto const* const names : {&report.unexpected, &report.left_out}) {
      for (std::string const& each : *names) texts.push_back("'" + each + "'");
    }
    for (Fate const& fate : verdict.fates) {
      bool const taken = std::ranges::any_of(fate.takers, [&](std::size_t t) {
        return fate.states ? report.taken[t].states : report.taken[t].values;
      });
      require(taken || !named(texts, fate.names).empty(), "nothing is said of " + fate.array);
    }
  }

  void count(ChangedModel const& test, Verdict const& verdict) {
    auto const note = [&](std::string const& what, bool happens) {
      trials_.counts[what] += happens ? 1u : 0u;
    };
    for (std::string const& change : names_of(test.changes)) note("change: " + change, true);
    bool const refused = verdict.refused.has_value();
    note(refused ? "refused: " + *verdict.refused : "loaded", true);
    if (refused) return;
    Policies const& before = test.before.policies;
    Policies const& after = test.after.policies;
    note("loaded: strictly", test.strict);
    note("loaded: strictly a changed model", test.strict && test.changes != 0);
    note("loaded: with names", !test.names.empty());
    note("loaded: parameters alone", test.parameters_only);
    note("loaded: in mid-run", test.at > 0);
    note("loaded: other ranks", test.before.ranks != test.after.ranks);
    note("loaded: another stage", before.stage != after.stage);
    note("loaded: another precision", before.number != after.number);
    note("reported: missing", !verdict.missing.empty());
    note("reported: unexpected", !verdict.unexpected.empty());
    note("reported: unfit", !verdict.unfit.empty());
    note("reported: left out when saved", !verdict.left_out.empty() && !test.saves_frozen);
    note("reported: left out by the load", !verdict.left_out.empty() && test.saves_frozen);
    bool tied = false;
    bool anew = false;
    bool bytes = false;
    bool wide = false;
    for (std::size_t t = 0; t < verdict.taken.size(); ++t) {
      tied = tied || (test.after.tied(t) && verdict.taken[t].values && (test.changes & ties) != 0);
      bytes = bytes || (test.after.bytes(t) && verdict.taken[t].values);
      wide = wide || (test.after.wide(t) && verdict.taken[t].values);
      anew = anew || (test.after.trained(t) && !verdict.taken[t].states && !test.parameters_only);
    }
    note("taken: of tied tensors", tied);
    note("taken: no states, from 0", anew);
    note("taken: bytes", bytes);
    note("taken: of 32 bits beside 16", wide);
  }

  Trials trials_;
  std::vector<Policies> available_{};
};

}  // namespace

int main(int argc, char** argv) {
  if (auto const command = differential::read_command(argc, argv)) return Changes(*command).run();
  differential::print_usage(
      argv[0],
      "Saves random models, changes them, loads, trains, and compares all with a reference.",
      "policies whose name contains the text");
  return 2;
}
