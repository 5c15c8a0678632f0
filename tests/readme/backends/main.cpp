#include "backends.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/self.hpp"

#include <cstdio>
#include <string>

static_assert(backends::self.abilities == backends::observed<zero::Self, void*>());
static_assert(backends::in_process.abilities ==
              backends::observed<zero::InProcess, zero::InProcess::Options>());

namespace {

char const* mark(bool has) { return has ? "yes" : "-"; }

}  // namespace

/// Prints the table.
int main() {
  std::puts(
      "| communicator | ranks are | buffers are in | sums are added | `split` | overlap | "
      "deadline | an error says | `allocator()` returns | tested |\n"
      "|---|---|---|---|---|---|---|---|---|---|");
  for (backends::Row const& row : backends::all) {
    std::string const memory(row.abilities.allocator ? row.memory : "-");
    std::string const deadline(row.abilities.deadline ? row.deadline : "-");
    std::string const named(row.abilities.failures ? row.named : "-");
    std::printf("| `%s` | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n",
                row.name.data(),
                row.ranks.data(),
                row.abilities.host_memory ? "host memory" : "GPU memory",
                row.sums.data(),
                mark(row.abilities.split),
                row.overlap.data(),
                deadline.c_str(),
                named.c_str(),
                memory.c_str(),
                row.tested.data());
  }
}
