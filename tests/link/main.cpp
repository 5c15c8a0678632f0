#include "facts.hpp"

#include <cstdio>

Facts other_unit();
Facts debug_plugin();
Facts optimised_plugin();

int main() {
  Facts const mine = facts();
  bool const same = other_unit() == mine && debug_plugin() == mine && optimised_plugin() == mine;
  std::puts(same ? "all units agree" : "units disagree about the library");
  return same ? 0 : 1;
}
