#include <zero/bench.hpp>
#include <zero/zero.hpp>

int main(int argc, char** argv) {
// Of an installed package the whole program is compiled; of the others, what shows their paths and
// flags.
#ifdef HEADERS_ALONE
  benchmark::Initialize(&argc, argv);
#else
  return zero::bench::collectives(argc, argv, [](int ranks, auto body) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) { body(comm); });
  });
#endif
}
