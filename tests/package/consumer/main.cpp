#include <zero/base/version.hpp>
#include <zero/zero.hpp>

#include <cstdio>
#include <vector>

#if defined(TAKES_COMPILED) && !ZERO_TAKES_COMPILED
#error "what zero::compiled contains is compiled once more"
#endif

// Names that zero's functions have too.
constexpr int bucket = 1;
constexpr int own = bucket + 1;
constexpr int width = own + 1;

int main() {
  zero::Self comm;
  zero::ShardedOptimizer opt{
      comm, std::vector<zero::Tensor>{{.name = "w", .shape = {width}}}, zero::stage::PosG{}};
  opt.adopt_parameters();
  for (int const unit : opt.units()) opt.reduce(opt.gradients(unit));
  opt.step();
  std::printf("zero %d.%d.%d\n", zero::version.major, zero::version.minor, zero::version.patch);
}
