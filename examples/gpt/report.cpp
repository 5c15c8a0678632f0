#include "report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

namespace gpt {

namespace {

std::string with_commas(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::string cell(std::string const& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

nlohmann::json by_role(zero::MemoryBytes const& bytes) {
  nlohmann::json object = nlohmann::json::object();
  for (int r = 0; r < zero::role_count; ++r) {
    auto const role = static_cast<zero::Role>(r);
    object[std::string(zero::name(role))] = bytes[role];
  }
  return object;
}

}  // namespace

bool bit_identical(std::vector<StageResult> const& results) {
  for (StageResult const& result : results) {
    if (result.losses != results.front().losses || result.checksum != results.front().checksum) {
      return false;
    }
  }
  return true;
}

std::string comparison_table(std::vector<StageResult> const& results) {
  bool const named = !results.empty() && !results.front().configuration.empty();
  bool const tuned = !results.empty() && results.front().base > 0;
  std::size_t const width = named ? 18 : 14;
  std::string table;
  auto const row = [&](std::string const& title,
                       std::function<std::string(StageResult const&)> const& figure) {
    std::string line = title;
    line.resize(34, ' ');
    for (StageResult const& result : results) line += cell(figure(result), width);
    table += line + "\n";
  };
  if (named) row("configuration", [](StageResult const& r) { return r.configuration; });
  row("stage", [](StageResult const& r) { return r.stage; });
  if (named) row("activations", [](StageResult const& r) { return r.activations; });
  row("final loss (nats)", [](StageResult const& r) {
    return r.losses.empty() ? std::string("-") : fixed(r.losses.back(), 4);
  });
  row("tokens/s", [](StageResult const& r) { return with_commas(std::uint64_t(r.tokens_per_s)); });
  table += "bytes per rank, planned\n";
  auto const role_rows = [&](zero::MemoryBytes StageResult::*bytes) {
    for (int i = 0; i < zero::role_count; ++i) {
      auto const role = static_cast<zero::Role>(i);
      bool const used = std::ranges::any_of(
          results, [&](StageResult const& r) { return r.planned[role] + r.held[role] > 0; });
      if (i >= zero::optimizer_role_count && !used) continue;
      row("  " + std::string(zero::name(role)),
          [&](StageResult const& r) { return with_commas((r.*bytes)[role]); });
      if (!tuned || role != zero::Role::parameters) continue;
      row("    of the frozen base", [](StageResult const& r) { return with_commas(r.base); });
      row("    of the adapters",
          [&](StageResult const& r) { return with_commas((r.*bytes)[role] - r.base); });
    }
    row("  total", [&](StageResult const& r) { return with_commas((r.*bytes).total()); });
  };
  role_rows(&StageResult::planned);
  row("  model states per parameter",
      [](StageResult const& r) { return fixed(r.bytes_per_parameter, 2); });
  table += "bytes per rank, held\n";
  role_rows(&StageResult::held);
  if (named) {
    row("  beside it, to compute with",
        [](StageResult const& r) { return with_commas(r.working); });
    row("  smallest budget for all of it",
        [](StageResult const& r) { return with_commas(r.needed); });
    row("in slower memory", [](StageResult const& r) { return with_commas(r.held_slower); });
  }
  table += "elements sent per rank and step, by the optimizer\n";
  row("  predicted", [](StageResult const& r) { return with_commas(r.predicted_elements); });
  row("  counted", [](StageResult const& r) { return with_commas(r.counted_elements); });
  return table;
}

std::string to_json(std::vector<StageResult> const& results) {
  nlohmann::json stages = nlohmann::json::array();
  for (StageResult const& result : results) {
    stages.push_back(
        {{"configuration", result.configuration},
         {"stage", result.stage},
         {"activations", result.activations},
         {"ranks", result.ranks},
         {"precision", result.precision},
         {"rule", result.rule},
         {"first_step", result.first_step},
         {"losses", result.losses},
         {"grad_norms", result.norms},
         {"checksum", result.checksum},
         {"bytes_per_rank", {{"planned", by_role(result.planned)}, {"held", by_role(result.held)}}},
         {"bytes_per_parameter", result.bytes_per_parameter},
         {"base_bytes_per_rank", result.base},
         {"slower_bytes_per_rank", result.held_slower},
         {"working_bytes_per_rank", result.working},
         {"needed_bytes_per_rank", result.needed},
         {"elements_per_step",
          {{"predicted", result.predicted_elements}, {"counted", result.counted_elements}}},
         {"tokens_per_s", result.tokens_per_s},
         {"step_seconds", result.step_seconds},
         {"model_seconds", result.model_seconds},
         {"device_bytes", result.device_bytes}});
  }
  return nlohmann::json{{"stages", stages}, {"bit_identical", bit_identical(results)}}.dump(2) +
         "\n";
}

std::string capacity_table(std::vector<Capacity> const& all) {
  std::string table =
      "configuration  stage   activations       blocks  parameters  bytes per rank  runs\n";
  for (Capacity const& found : all) {
    auto const left = [](std::string text, std::size_t width) {
      text.resize(std::max(width, text.size()), ' ');
      return text;
    };
    table += left(found.configuration, 15) + left(found.result.stage, 8) +
             left(found.result.activations, 18) + cell(std::to_string(found.blocks), 6) +
             cell(with_commas(found.parameters), 12) + cell(with_commas(found.result.needed), 16) +
             cell(std::to_string(found.runs), 6) + "\n";
  }
  auto sorted = all;
  std::ranges::stable_sort(sorted, {}, &Capacity::blocks);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    bool const equal = i > 0 && sorted[i].blocks == sorted[i - 1].blocks;
    table += i == 0 ? "largest model: " : equal ? " = " : " < ";
    table += sorted[i].configuration;
  }
  return table + "\n";
}

std::string to_json(std::vector<Capacity> const& all) {
  nlohmann::json list = nlohmann::json::array();
  for (Capacity const& found : all) {
    list.push_back({{"configuration", found.configuration},
                    {"stage", found.result.stage},
                    {"activations", found.result.activations},
                    {"blocks", found.blocks},
                    {"parameters", found.parameters},
                    {"bytes_per_rank", found.result.needed},
                    {"runs", found.runs}});
  }
  return list.dump(2) + "\n";
}

}  // namespace gpt
