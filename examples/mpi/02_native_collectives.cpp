// A communicator of one's own: MPI's collectives add, and the optimizer shards over them.
// prints: [1-9]+ ranks, sums by MPI: every parameter went from 0.500 to 0.250

#include "native_collectives.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

using Precision = zero::Fp32;  // zero::Fp64 does as well; what travels in 16 bits does not compile

void train(NativeCollectives<Precision>& comm) {
  std::vector<zero::Tensor> const model{{.name = "w", .shape = {1000}}};
  zero::ShardedOptimizer opt{
      comm, model, Precision{}, zero::stage::PosGP{}, zero::PlainSgd{.lr = 0.2f}};
  opt.load_parameters([](auto const&, std::size_t, auto out) { std::ranges::fill(out, 0.5f); });
  for (int step = 0; step < 100; ++step) {
    {
      auto w = opt.parameters(0);
      auto g = opt.gradients(0);
      for (std::size_t i = 0; i < g["w"].size(); ++i) g["w"][i] = w["w"][i] - 0.25f;
      opt.reduce(std::move(g));
    }
    opt.step({.max_norm = 1.});
  }
  auto const w = opt.parameters(0);
  bool const right =
      std::ranges::all_of(w["w"], [](float x) { return x > 0.2499f && x < 0.2501f; });
  if (comm.rank() != 0) return;
  std::printf("%d ranks, sums by MPI: ", comm.size());
  if (right) std::puts("every parameter went from 0.500 to 0.250");
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    NativeCollectives<Precision> comm(MPI_COMM_WORLD, 60.);
    train(comm);
    comm.close();
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
