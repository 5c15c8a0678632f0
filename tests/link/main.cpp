#include "facts.hpp"

#include <cstdio>
#include <exception>

Facts other_unit();
Facts debug_plugin();
Facts optimised_plugin();
void debug_plugin_refuses();
void optimised_plugin_refuses();

/// Is an error that a plugin throws an error here?
static bool is_caught(void (*refuses)()) {
  try {
    refuses();
  } catch (zero::Error const& error) {
    return error.kind() == zero::ErrorKind::invalid_argument &&
           error.message() == "tensor 0 has no name";
  } catch (std::exception const&) {
  }
  return false;
}

int main() {
  Facts const mine = facts();
  bool const same = other_unit() == mine && debug_plugin() == mine && optimised_plugin() == mine;
  std::puts(same ? "all units agree" : "units disagree about the library");
  bool const caught = is_caught(debug_plugin_refuses) && is_caught(optimised_plugin_refuses);
  std::puts(caught ? "errors cross shared objects" : "an error was not recognised");
  bool const trained = mine.norm > 0. && mine.result != 0 && mine.planned_bytes > 0;
  return same && caught && trained ? 0 : 1;
}
