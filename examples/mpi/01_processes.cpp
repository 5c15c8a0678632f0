// Processes: the loop of the other examples, on ranks that mpirun starts.
//
// Their memory lies in the node's shared window, where peers read it in one pass. A rank that fails
// tells the others why before it ends the job.
// prints: [1-9]+ ranks on 1 node.s., window: yes, every parameter went from 0.500 to 0.250

#include <zero/comm/mpi.hpp>
#include <zero/zero.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

void train(zero::Mpi<>& comm) {
  std::vector<zero::Tensor> const model{{.name = "w", .shape = {1000}}};
  zero::ShardedOptimizer opt{comm,
                             model,
                             zero::stage::PosGP{},
                             zero::PlainSgd{.lr = 0.2f},
                             zero::Owned<zero::mpi::SharedAllocator>{comm.allocator()}};
  opt.load_parameters([](auto const&, std::size_t, auto out) { std::ranges::fill(out, 0.5f); });

  for (int step = 0; step < 100; ++step) {
    {
      auto w = opt.parameters(0);
      auto g = opt.gradients(0);
      // The backward pass. A long one calls comm.progress() now and then.
      for (std::size_t i = 0; i < g["w"].size(); ++i) g["w"][i] = w["w"][i] - 0.25f;
      opt.reduce(std::move(g));
    }  // guards end before the step
    opt.step({.max_norm = 1.});
  }

  auto const w = opt.parameters(0);
  bool const right =
      std::ranges::all_of(w["w"], [](float x) { return x > 0.2499f && x < 0.2501f; });
  zero::mpi::Transport const used = comm.transport();
  if (comm.rank() != 0) return;
  std::printf(
      "%d ranks on %d node(s), window: %s, ", comm.size(), used.nodes, used.window ? "yes" : "no");
  if (right) std::puts("every parameter went from 0.500 to 0.250");
}

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  try {
    // Duplicates the trainer's communicator. Whoever is silent for 60 s ends the group.
    zero::Mpi<> comm(MPI_COMM_WORLD, {.deadline_s = 60, .shared_bytes = 16 * zero::MiB});
    try {
      train(comm);
    } catch (std::exception const& error) {
      comm.report_failure(error.what());  // what every other rank's next call throws
      throw;
    }
    comm.close();
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // let the others say so, too
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
