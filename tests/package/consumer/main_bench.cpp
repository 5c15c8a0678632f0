#include <zero/bench.hpp>
#include <zero/zero.hpp>

int main(int argc, char** argv) {
#ifdef HEADERS_ALONE
  benchmark::Initialize(&argc, argv);
#else
  return zero::bench::collectives(argc, argv, [](int ranks, auto body) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) { body(comm); });
  });
#endif
}
