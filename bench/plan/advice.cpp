/// validate-plan advice: what advise takes, beside the best of all that it might have taken.
#include "plan/files.hpp"
#include "plan/steps.hpp"
#include "validation.hpp"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

struct Asked {
  double parameters;
  char const* cluster;
  int devices;
};

std::vector<Asked> questions() {
  return {{70e9, "dgx-a100", 64},
          {70e9, "dgx-h100", 64},
          {70e9, "dgx-h100", 512},
          {405e9, "dgx-h100", 512},
          {1e12, "dgx-h100", 1024}};
}

Question question_of(Asked const& asked) {
  Question question{.cluster = cluster_of(asked.cluster)};
  question.setup.model = transformer_of(asked.parameters, {.sequence = 2048});
  question.setup.ranks = asked.devices;
  question.budget = question.cluster.device.memory / 10 * 9;
  question.sequences = 8 * static_cast<std::uint64_t>(asked.devices);
  question.step = [cluster = question.cluster](Setup const& setup) {
    return seconds_of_step(cluster, setup);
  };
  return question;
}

/// Every stage, degree, place for activations, accumulation and micro-batch that fits.
struct All {
  double least = std::numeric_limits<double>::infinity();
  Setup best{};
  std::uint64_t tried = 0;
};

void try_batches(Question const& asked, Setup setup, All& all) {
  std::uint64_t const share = asked.sequences / static_cast<std::uint64_t>(setup.models());
  for (std::string const& accumulation : accumulation_names()) {
    setup.policies.accumulation = accumulation;
    for (setup.batch = 1; setup.batch <= share; ++setup.batch) {
      if (share % setup.batch != 0) continue;
      setup.micro_steps = share / setup.batch;
      if ((accumulation == "none") != (setup.micro_steps == 1)) continue;
      if (!detail::refusal(asked, setup, plan_device(setup)).empty()) continue;
      double const seconds = asked.step(setup);
      ++all.tried;
      if (seconds < all.least) all = {seconds, setup, all.tried};
    }
  }
}

All try_all(Question const& asked) {
  All all;
  Setup setup = asked.setup;
  for (int degree = 1; degree <= asked.cluster.devices_per_node; degree *= 2) {
    setup.model_parallel = degree;
    for (std::string const& stage : stage_names()) {
      for (std::string const& activations : activation_names()) {
        setup.policies.stage = stage;
        setup.activations = activations;
        try_batches(asked, setup, all);
      }
    }
  }
  return all;
}

std::string name(Setup const& of) {
  return of.policies.stage + ", N_m " + std::to_string(of.model_parallel) + ", " + of.activations +
         ", " + std::to_string(of.micro_steps) + " x " + std::to_string(of.batch);
}

Report make(std::vector<std::size_t> const& asked) {
  Progress const progress("trying all configurations");
  Table table{
      .name = "advice",
      .title = "A step: what advise takes, and the best of all that fit",
      .columns = {"question", "advised", "step", "best", "its step", "tried", "over the best"},
      .rows = {}};
  std::vector<Asked> const all = questions();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!asked.empty() && std::ranges::find(asked, i + 1) == asked.end()) continue;
    Question const question = question_of(all[i]);
    Advice const advice = advise(question);
    All const tried = try_all(question);
    std::string const text = billions(parameters(question.setup.model)) + " on " +
                             std::to_string(all[i].devices) + " of " + all[i].cluster;
    if (advice.fitting.empty()) {
      table.rows.push_back({text, "nothing fits", "", "", "", std::uint64_t{tried.tried}, ""});
      continue;
    }
    Candidate const& first = advice.fitting.front();
    table.rows.push_back({text,
                          name(first.setup),
                          {fixed(first.seconds, 1) + " s", first.seconds},
                          name(tried.best),
                          {fixed(tried.least, 1) + " s", tried.least},
                          tried.tried,
                          percent(first.seconds / tried.least - 1.)});
  }
  Report report;
  report.tables = {std::move(table)};
  report.notes = {
      "Steps as they are simulated. Tried: all stages, N_m within a node, places for "
      "checkpoints,",
      "accumulations and micro-batches that divide a model's share, where they fit."};
  return report;
}

}  // namespace

void add_advice(CLI::App& app, Command& command) {
  auto const asked = std::make_shared<std::vector<std::size_t>>();
  CLI::App* const sub = add_command(
      app, command, "advice", "What zero-plan advise takes, beside all that fits", [asked] {
        return make(*asked);
      });
  sub->add_option("--questions", *asked, "Of the five, these alone")
      ->delimiter(',')
      ->check(CLI::Range(std::size_t{1}, questions().size()));
}

}  // namespace plan
