#include "command.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

Command read_command(int& argc, char** argv, int rank, bool nccl) {
  Command command;
  zero::bench::CollectiveCases& cases = command.cases;
  std::vector<std::string> dtypes{"fp32"};
  std::string place = "out";
  bool unchecked = false;

  CLI::App app("Measures collectives beside a baseline.", argv[0]);
  app.footer(
      "Google Benchmark's options are understood as well, such as\n"
      "  --benchmark_filter=REGEX       which, by their names\n"
      "  --benchmark_list_tests=true    the names, and nothing else\n"
      "  --benchmark_repetitions=N      rounds, of which there are mean and median [10]\n"
      "  --benchmark_out=FILE           all rounds, as JSON");
  auto const size = [&](char const* name, std::size_t& to, char const* what) {
    app.add_option(name, to, what)->transform(CLI::AsSizeValue(false))->capture_default_str();
  };
  app.add_option("--dtype", dtypes, "Types of elements, with commas, or all")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "all"}))
      ->capture_default_str();
  app.add_option("--place", place, "Send and receive in two buffers, one, or both ways")
      ->check(CLI::IsMember({"out", "in", "both"}))
      ->capture_default_str();
  size("--min", cases.smallest, "Smallest size: bytes of a rank's larger buffer, such as 64K");
  size("--max", cases.largest, "Largest size");
  app.add_option("--factor", cases.factor, "From one size to the next")->capture_default_str();
  app.add_option("--late",
                 cases.late_us,
                 "Microseconds that the last rank begins after the others, as in a trainer")
      ->capture_default_str();
  app.add_flag("--no-check", unchecked, "Do not look whether results are right");
  if (rank < 0) {
    app.add_option("--ranks", cases.ranks, "Sizes of groups, with commas")
        ->delimiter(',')
        ->capture_default_str();
  } else {
    app.add_flag("--ordinary", command.ordinary, "Ordinary memory instead of the communicator's");
  }
  if (nccl) {
    app.add_flag("--native", command.native, "NCCL adds, and not the library in rank order");
    app.add_flag("--windows",
                 command.windows,
                 "The library's buffers are symmetric windows; to the baseline they are plain");
  }

  char** const ours = std::stable_partition(argv + 1, argv + argc, [](std::string_view argument) {
    return argument.starts_with("--benchmark_") || argument.starts_with("--v=");
  });
  std::vector<std::string> backwards(std::make_reverse_iterator(argv + argc),
                                     std::make_reverse_iterator(ours));
  argc = static_cast<int>(ours - argv);
  try {
    app.parse(backwards);
  } catch (CLI::Success const& asked) {
    command.status = rank > 0 ? 0 : app.exit(asked);
  } catch (CLI::ParseError const& error) {
    if (rank <= 0) std::fprintf(stderr, "%s: %s; see --help\n", argv[0], error.what());
    command.status = 2;
  }

  cases.dtypes.clear();
  for (zero::DType const dtype : {zero::DType::f32, zero::DType::bf16, zero::DType::f16}) {
    auto const named = [&](std::string_view one) { return one == "all" || one == name(dtype); };
    if (std::any_of(dtypes.begin(), dtypes.end(), named)) cases.dtypes.push_back(dtype);
  }
  cases.out_of_place = place != "in";
  cases.in_place = place != "out";
  cases.check = !unchecked;
  return command;
}

}  // namespace bench
