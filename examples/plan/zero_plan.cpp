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
  plan::add_paper(app, command);
  try {
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
