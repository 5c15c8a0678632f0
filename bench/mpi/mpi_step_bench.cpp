/// Whole steps between processes: what does a stage cost, and how much of it is communication that
/// nothing hides?
///
/// A step is everything after the backward pass, for Pos+g+p also the gathers of a forward and a
/// backward pass, as in step_bench. `exposed_ms` is the time of the slowest rank inside the
/// communicator, per step: starting, waiting and helping transfers along. `vs_replicated` is the
/// time over that of stage::Replicated in the same job, round by round. Buffers are in the shared
/// window, or with `--nodes 1` every rank is a node of its own.
///
/// usage: mpirun -np N mpi_step_bench [--rounds N] [--nodes 0|1]
#include "job.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr std::size_t units = 8;
constexpr std::size_t unit_elements = std::size_t{1} << 20;

using Comm = zero::Traced<zero::Mpi<>>;

std::vector<zero::Tensor> model() {
  std::vector<zero::Tensor> tensors;
  for (std::size_t u = 0; u < units; ++u) {
    tensors.push_back(
        {.name = "w" + std::to_string(u), .shape = {unit_elements}, .unit = static_cast<int>(u)});
  }
  return tensors;
}

/// One stage's optimizer and what its steps took.
template <class Stage, class Precision>
class Trained {
 public:
  Trained(bench::Job const& job, zero::Mpi<>& comm)
      : job_(job), comm_(comm), optimizer_(comm_, model(), Memory{comm.allocator()}) {
    optimizer_.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5f);
    });
  }

  void step() {
    comm_.reset_seconds();
    seconds.push_back(job_.timed([&] {
      for (int const unit : optimizer_.units()) {
        static_cast<void>(optimizer_.parameters(unit).size());
      }
      for (int const unit : optimizer_.units_backward()) {
        auto const weights = optimizer_.parameters(unit);
        optimizer_.reduce(optimizer_.gradients(unit));
      }
      optimizer_.step();
    }));
    exposed.push_back(job_.slowest(comm_.seconds_inside()));
  }

  [[nodiscard]] static std::string name() {
    return std::string(Precision::name) + "/" + std::string(Stage::name);
  }

  std::vector<double> seconds;
  std::vector<double> exposed;

 private:
  using Memory = zero::Owned<zero::mpi::SharedAllocator>;
  bench::Job const& job_;
  Comm comm_;
  zero::ShardedOptimizer<Comm, Stage, Precision, Memory> optimizer_;
};

template <class Precision>
void measure(bench::Job const& job, zero::Mpi<>& comm, int rounds, std::string const& transport) {
  using namespace zero::stage;
  Trained<Replicated, Precision> replicated(job, comm);
  Trained<Pos, Precision> pos(job, comm);
  Trained<PosG, Precision> pos_g(job, comm);
  Trained<PosGP, Precision> pos_gp(job, comm);
  auto const each = [&](auto const& visit) {
    visit(replicated);
    visit(pos);
    visit(pos_g);
    visit(pos_gp);
  };
  for (int round = 0; round <= rounds; ++round) {
    each([](auto& trained) { trained.step(); });
    // The first round touches pages for the first time.
    if (round > 0) continue;
    each([](auto& trained) {
      trained.seconds.clear();
      trained.exposed.clear();
    });
  }
  each([&](auto const& trained) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < trained.seconds.size(); ++i) {
      ratios.push_back(trained.seconds[i] / replicated.seconds[i]);
    }
    double const typical = bench::median(trained.seconds);
    double const exposed = bench::median(trained.exposed);
    job.print("mpi_step/" + transport + "/" + trained.name(),
              {{"ms", typical * 1e3},
               {"exposed_ms", exposed * 1e3},
               {"exposed_share", exposed / typical},
               {"vs_replicated", bench::median(ratios)}});
  });
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_job(argc, argv, [&](bench::Job const& job) {
    auto const rounds = static_cast<int>(bench::argument(argc, argv, "--rounds", 15));
    bool const nodes = bench::argument(argc, argv, "--nodes", 0) != 0;
    zero::mpi::Options options{.shared_bytes = zero::GiB};
    if (nodes) options.node = job.rank;
    zero::Mpi<> comm(MPI_COMM_WORLD, options);
    std::string const transport = nodes ? "nodes" : "window";
    measure<zero::Fp32>(job, comm, rounds, transport);
    measure<zero::Mixed<zero::bf16>>(job, comm, rounds, transport);
    comm.close();
  });
}
