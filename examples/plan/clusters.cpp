/// zero-plan clusters: what clusters are made of, and files to change.
#include "commands.hpp"
#include "files.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

Report make(std::vector<std::string> const& names) {
  std::vector<Cluster> clusters;
  for (std::string const& name : names) clusters.push_back(named_cluster(name));
  if (names.empty()) clusters = known_clusters();
  Report report;
  Table table{.name = "properties",
              .title = "Clusters: rates are data sheets', fractions what software reaches",
              .columns = {"property"},
              .rows = {}};
  auto files = nlohmann::ordered_json::array();
  for (Cluster const& cluster : clusters) {
    table.columns.push_back(cluster.name);
    files.push_back(json_of(cluster));
  }
  // The name is the column.
  auto const add = [&](std::string const& what, auto const& of) {
    std::vector<Cell> row{what};
    for (auto const& file : files) {
      nlohmann::ordered_json const& value = of(file);
      row.emplace_back(value.is_string() ? value.get<std::string>() : value.dump(), value);
    }
    table.rows.push_back(std::move(row));
  };
  for (auto const& [key, value] : files.front().items()) {
    if (key == "name") continue;
    if (!value.is_object()) {
      add(key, [&key = key](auto const& file) { return file[key]; });
      continue;
    }
    for (auto const& [inner, unused] : value.items()) {
      add(key + "." + inner,
          [&key = key, &inner = inner](auto const& file) { return file[key][inner]; });
    }
  }
  report.tables = {std::move(table)};
  report.data["clusters"] = std::move(files);
  report.notes = {
      "Bytes, operations and seconds. 'error' is how far simulated steps were from published ones "
      "at most; 0: nobody",
      "has held them against any. 'clusters dgx-h100 --json mine.json' writes one as a file for "
      "--cluster mine.json."};
  return report;
}

}  // namespace

void add_clusters(CLI::App& app, Command& command) {
  auto const names = std::make_shared<std::vector<std::string>>();
  CLI::App* const sub = add_command(
      app, command, "clusters", "What clusters are made of, and files to change", [names] {
        return make(*names);
      });
  sub->add_option("names", *names, "Of these alone, or files of them");
}

}  // namespace plan
