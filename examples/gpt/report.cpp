#include "report.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <functional>

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
  for (int r = 0; r < zero::optimizer_role_count; ++r) {
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
  std::string table;
  auto const row = [&](std::string const& title,
                       std::function<std::string(StageResult const&)> const& figure) {
    std::string line = title;
    line.resize(34, ' ');
    for (StageResult const& result : results) line += cell(figure(result), 14);
    table += line + "\n";
  };
  row("stage", [](StageResult const& r) { return r.stage; });
  row("final loss (nats)", [](StageResult const& r) {
    return r.losses.empty() ? std::string("-") : fixed(r.losses.back(), 4);
  });
  row("tokens/s", [](StageResult const& r) { return with_commas(std::uint64_t(r.tokens_per_s)); });
  table += "bytes per rank, planned\n";
  auto const role_rows = [&](zero::MemoryBytes StageResult::*bytes) {
    for (int i = 0; i < zero::optimizer_role_count; ++i) {
      auto const role = static_cast<zero::Role>(i);
      row("  " + std::string(zero::name(role)),
          [&](StageResult const& r) { return with_commas((r.*bytes)[role]); });
    }
    row("  total", [&](StageResult const& r) { return with_commas((r.*bytes).total()); });
  };
  role_rows(&StageResult::planned);
  table += "bytes per rank, held\n";
  role_rows(&StageResult::held);
  table += "elements sent per rank and step\n";
  row("  predicted", [](StageResult const& r) { return with_commas(r.predicted_elements); });
  row("  counted", [](StageResult const& r) { return with_commas(r.counted_elements); });
  return table;
}

std::string to_json(std::vector<StageResult> const& results) {
  nlohmann::json stages = nlohmann::json::array();
  for (StageResult const& result : results) {
    stages.push_back(
        {{"stage", result.stage},
         {"ranks", result.ranks},
         {"precision", result.precision},
         {"first_step", result.first_step},
         {"losses", result.losses},
         {"bytes_per_rank", {{"planned", by_role(result.planned)}, {"held", by_role(result.held)}}},
         {"elements_per_step",
          {{"predicted", result.predicted_elements}, {"counted", result.counted_elements}}},
         {"tokens_per_s", result.tokens_per_s}});
  }
  return nlohmann::json{{"stages", stages}, {"bit_identical", bit_identical(results)}}.dump(2) +
         "\n";
}

}  // namespace gpt
