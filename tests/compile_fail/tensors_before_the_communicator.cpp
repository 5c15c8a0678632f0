// expect: not_the_communicator<1, std::vector<zero::.*Tensor>
// lines: 15
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{{{.name = "w", .shape = {4}}}, comm};
#else
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}};
#endif
}
