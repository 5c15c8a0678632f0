#include <zero/checkpoint.hpp>
#include <zero/zero.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>

// Of an installed package the whole program is compiled; of the others, what shows their paths and
// flags.
#ifdef HEADERS_ALONE
int main() { std::printf("checksum %s\n", zero::checksum_text(zero::checksum("zero", 4)).c_str()); }
#else
int main() {
  zero::Self comm;
  zero::ShardedOptimizer opt{comm, {{.name = "w", .shape = {3}}}};
  opt.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), 1.f);
  });
  opt.reduce(opt.gradients(0));
  opt.step();
  zero::Checkpoints run{"run"};
  run.save(opt);
  zero::ShardedOptimizer again{comm, {{.name = "w", .shape = {3}}}};
  std::printf("loaded step %ld\n", run.load(again, *run.latest()).step);
}
#endif
