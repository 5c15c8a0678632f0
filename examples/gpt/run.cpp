#include "run.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace gpt {

namespace {

/// A precision and a rule that are compiled together.
struct Pair {
  std::string_view precision;
  std::string_view rule;
  bool accumulates;
  decltype(&run_precision<zero::Fp32, zero::AdamW, zero::InProcess, ThreadMemory>) run;
};

template <class Precision, class Rule = zero::AdamW>
constexpr Pair compiled(std::string_view precision, std::string_view rule = "adamw") {
  return {precision,
          rule,
          accumulates<Precision, Rule>,
          &run_precision<Precision, Rule, zero::InProcess, ThreadMemory>};
}

/// Not every pair, because each is four optimizers to compile, or eight.
constexpr std::array pairs{
    compiled<zero::Fp32>("fp32"),
    compiled<zero::Mixed<zero::bf16>>("bf16"),
    compiled<zero::Mixed<zero::fp16>>("fp16"),
    compiled<zero::Mixed<zero::bf16, zero::Rest16>>("bf16-rest16"),
    compiled<zero::Mixed<zero::bf16, zero::Rest8>>("bf16-rest8"),
    compiled<zero::Bf16<zero::StochasticRounding>>("bf16-sr"),
    compiled<zero::Mixed<zero::bf16, zero::Rest16>, zero::AdamW8bit>("bf16-rest16", "adamw8bit"),
    compiled<zero::Mixed<zero::bf16, zero::Rest8>, zero::AdamW8bit>("bf16-rest8", "adamw8bit"),
    compiled<zero::Mixed<zero::bf16, zero::Rest16>, zero::Lamb>("bf16-rest16", "lamb"),
    compiled<zero::Mixed<zero::bf16, zero::Rest8>, zero::Lamb>("bf16-rest8", "lamb"),
};

/// Those that some pair has.
std::vector<std::string> names(std::string_view Pair::*name) {
  std::vector<std::string> all;
  for (Pair const& pair : pairs) {
    if (std::ranges::find(all, pair.*name) == all.end()) all.emplace_back(pair.*name);
  }
  return all;
}

Pair const& pair_of(Options const& options) {
  bool const several = options.accumulate > 1;
  std::string known;
  for (Pair const& pair : pairs) {
    if (several && !pair.accumulates) continue;
    if (pair.precision == options.precision && pair.rule == options.rule) return pair;
    known += (known.empty() ? "" : ", ") + std::string(pair.rule) + " with " +
             std::string(pair.precision);
  }
  throw std::invalid_argument("--rule " + options.rule + " with --precision " + options.precision +
                              (several ? " and --accumulate" : "") +
                              " is not compiled; there are: " + known);
}

}  // namespace

std::vector<std::string> precision_names() { return names(&Pair::precision); }
std::vector<std::string> rule_names() { return names(&Pair::rule); }

StageResult run(Options const& options,
                Text const& text,
                std::atomic<bool> const& stop_requested,
                ShowProgress const& show) {
  Pair const& pair = pair_of(options);
  StageResult result;
  zero::run_ranks(options.ranks, [&](zero::InProcess& world) {
    ThreadMemory const memory{RankMemory<>(options.budget)};
    StageResult own = pair.run(world, memory, options, text, stop_requested, show);
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

}  // namespace gpt
