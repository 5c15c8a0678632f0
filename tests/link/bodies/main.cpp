// A unit that says nothing has bodies of its own, beside others that share theirs.
#include "../facts.hpp"

#include <cstdio>

Facts here();
Facts elsewhere();

int main() {
  Facts const mine = facts();
  bool const same = here() == mine && elsewhere() == mine;
  std::puts(same ? "all units agree" : "units disagree about the library");
  return same && mine.norm > 0. ? 0 : 1;
}
