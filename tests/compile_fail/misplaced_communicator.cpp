// expect: not_the_communicator<1, zero::.*::stage::Pos>
// lines: 15
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{zero::stage::Pos{}, {{.name = "w", .shape = {4}}}, comm};
#else
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::stage::Pos{}};
#endif
}
