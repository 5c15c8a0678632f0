/// zero-plan formats: what a parameter takes with every precision and rule.
#include "commands.hpp"
#include "model/policies.hpp"

#include <string>
#include <type_traits>
#include <vector>

namespace plan {

namespace {

/// Of itself, its gradient, what is held of its master and its states, by the plan of a tensor that
/// no padding follows.
template <class Precision, class Rule>
Cell bytes_of_parameter() {
  using namespace zero::detail;
  constexpr bool in_double = std::is_same_v<RuleReal<Precision>, double>;
  constexpr bool codes_fit = coded_states<Rule> == 0 || states_are_float<PrecisionList<Precision>>;
  if constexpr ((!RuleInDouble<Rule> && in_double) || !codes_fit) {
    return {"-", nullptr};
  } else {
    constexpr std::size_t elements = MiB;
    Plan const plan = zero::detail::plan_of(
        policy_facts<stage::Pos, AccumulateNone, Owned<>>(arithmetic_facts<Precision, Rule>()),
        rule_calls<Rule>,
        {},
        {{.name = "tensor", .shape = {elements}}},
        {},
        {});
    std::uint64_t sum = 0;
    for (Role const role : {Role::parameters, Role::gradients, Role::master, Role::state}) {
      sum += plan.memory[role];
    }
    double const bytes = static_cast<double>(sum) / elements;
    std::string text = fixed(bytes, 5);
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
    return {text, bytes};
  }
}

template <class Precision, class... Rule, class... Other>
std::vector<Cell> row(detail::Types<Rule...> /*usual*/, detail::Types<Other...> /*others*/) {
  return {Cell(detail::typed(Precision::name)),
          bytes_of_parameter<Precision, Rule>()...,
          bytes_of_parameter<Precision, Other>()...};
}

template <class... Precision, class... Other>
std::vector<std::vector<Cell>> rows(detail::Types<Precision...> /*usual*/,
                                    detail::Types<Other...> /*others*/) {
  return {row<Precision>(detail::Rules(), detail::OtherRules())...,
          row<Other>(detail::Rules(), detail::OtherRules())...};
}

Report report_formats() {
  Table table{.name = "bytes",
              .title = "bytes per parameter on one rank, by precision and rule",
              .columns = rule_names(),
              .rows = rows(detail::Precisions(), detail::OtherPrecisions())};
  table.columns.insert(table.columns.begin(), "precision");
  for (std::string const& rule : detail::names_of(detail::OtherRules())) {
    table.columns.push_back(rule);
  }
  Report report;
  report.tables.push_back(std::move(table));
  return report;
}

}  // namespace

void add_formats(CLI::App& app, Command& command) {
  add_command(app,
              command,
              "formats",
              "Bytes per parameter with every precision and rule: parameter, gradient, master "
              "weight and optimizer states",
              report_formats);
}

}  // namespace plan
