/// zero-plan calibrate: measures this machine and writes it down as a cluster.
#include "commands.hpp"
#include "machine.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace plan {

namespace {

struct CalibrateOptions {
  std::string out = default_calibration;
  std::string precision = "fp32";
  std::vector<int> ranks;
  double seconds = 40.;
};

/// The work at its smallest and its largest sizes, and how many numbers a second go through it.
Table table_of(int ranks, std::vector<Timing> const& timings) {
  Table table{.name = "ranks_" + std::to_string(ranks),
              .title = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks at once"),
              .columns = {"work", "sizes", "seconds", "sizes up to", "takes", "rate"},
              .rows = {}};
  auto const shown = [](std::vector<double> const& sizes) {
    std::string text;
    for (double const size : sizes) text += (text.empty() ? "" : " x ") + fixed(size, 0);
    return text;
  };
  for (Timing const& one : timings) {
    std::vector<double> least, most;
    for (auto const& dimension : one.sizes) {
      least.push_back(dimension.front());
      most.push_back(dimension.back());
    }
    double work = 1.;
    for (double const size : most) work *= size;
    bool const product = one.name.starts_with("linear");
    if (product) work *= one.name.ends_with("forward") ? 2. : 4.;
    double const rate = work / one.seconds.back();
    std::string const unit = product ? " Gflop/s" : one.sizes.size() > 1 ? " G/s" : " GB/s";
    bool const counts = one.name == "sum" || one.name.starts_with("gelu") || one.name == "unpack" ||
                        one.name == "accumulate";
    table.rows.push_back(
        {one.name,
         {shown(least), least},
         {fixed(one.seconds.front() * 1e6, 2) + " us", one.seconds.front()},
         {shown(most), most},
         {fixed(one.seconds.back() * 1e6, 2) + " us", one.seconds.back()},
         {one.name == "ping-pong" ? "" : fixed(rate / 1e9, 2) + (counts ? " G/s" : unit), rate}});
  }
  return table;
}

Report make(CalibrateOptions const& options) {
  Machine const machine = calibrate(options.precision, options.ranks, options.seconds);
  write_text(options.out, json_of(machine).dump(1) + "\n");
  Report report;
  report.head = {"This machine of " + std::to_string(machine.processors) +
                     " processors, with parameters and gradients in " + machine.precision + ":",
                 "written to " + options.out + " for 'zero-plan simulate --cluster this'."};
  for (auto const& [ranks, timings] : machine.timings) {
    report.tables.push_back(table_of(ranks, timings));
  }
  report.notes = {
      "Each is the median over rounds of what a rank takes while all of them do the same.",
      "Sizes: bytes of passes through memory and of the larger buffer of a collective; elements; "
      "tokens,",
      "outputs and inputs of a linear layer; heads of all sequences, tokens and channels of a head "
      "of",
      "attention; tokens and channels of a layer norm and of embedding with head."};
  return report;
}

}  // namespace

void add_calibrate(CLI::App& app, Command& command) {
  auto const options = std::make_shared<CalibrateOptions>();
  options->ranks = {1};
  int const processors = static_cast<int>(std::thread::hardware_concurrency());
  if (processors > 1) options->ranks.push_back(processors);
  CLI::App* const sub = add_command(
      app, command, "calibrate", "Measures this machine, for simulate --cluster this", [options] {
        return make(*options);
      });
  sub->add_option("--out", options->out, "File for the calibration")->capture_default_str();
  sub->add_option("--ranks", options->ranks, "In-process ranks, such as 1,2")
      ->delimiter(',')
      ->check(CLI::Range(1, most_ranks));
  sub->add_option("--precision", options->precision, "Parameters and gradients")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  sub->add_option("--seconds", options->seconds, "About how long, of all together")
      ->check(CLI::Range(0.1, 3600.));
}

}  // namespace plan
