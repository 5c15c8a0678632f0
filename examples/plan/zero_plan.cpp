#include "commands.hpp"
#include "zero/base/error.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  plan::Command command;
  CLI::App app{
      "Memory and traffic of a training run before there is a cluster, by the library's "
      "own plan."};
  app.require_subcommand(1);
  plan::add_memory(app, command);
  plan::add_traffic(app, command);
  plan::add_advise(app, command);
  plan::add_simulate(app, command);
  plan::add_sums(app, command);
  plan::add_paper(app, command);
  plan::add_validate(app, command);
  plan::add_calibrate(app, command);
  plan::add_claims(app, command);
  try {
    auto const is_asked = [&](CLI::App* sub) { return sub->get_name() == argv[1]; };
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_asked).empty()) {
      zero::fail(zero::ErrorKind::invalid_argument,
                 {"there is no subcommand '", argv[1], "'; see --help"});
    }
    app.parse(argc, argv);
    plan::show(command);
    return 0;
  } catch (CLI::ParseError const& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "zero-plan: %s\n", error.what());
    return 2;
  } catch (zero::Error const& error) {
    std::fprintf(stderr, "zero-plan: %s\n", error.message().c_str());
    return error.kind() == zero::ErrorKind::invalid_argument ? 2 : 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "zero-plan: %s\n", error.what());
    return 1;
  }
}
