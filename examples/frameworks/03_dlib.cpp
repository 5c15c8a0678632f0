// A list of layers: dlib's `dnn_trainer` with a solver that trains on all ranks.
//
// Each layer has one tensor of parameters and one of gradients. dlib allocates the first in the
// first forward pass, the second in the first backward pass, and both stay where they are.
// prints: 3 stages, 1 result, within (0|[0-9]e-0[7-9]) of dlib's own

#include "dlib_solver.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

using Sample = dlib::matrix<float, 20, 1>;
using Net = dlib::loss_mean_squared<
    dlib::fc<1, dlib::relu<dlib::fc<30, dlib::relu<dlib::fc<50, dlib::input<Sample>>>>>>>;

/// Trains over the samples of `ranks` ranks from `first` on.
template <class Solver>
void train(Net& net, Solver const& solver, int first, int ranks) {
  dlib::dnn_trainer<Net, Solver> trainer(net, solver);
  trainer.set_learning_rate(0.01);
  trainer.set_learning_rate_shrink_factor(1);  // a rank's loss is no reason for another rate
  for (int step = 0; step < 100; ++step) {
    std::vector<Sample> x;
    std::vector<float> y;
    for (int rank = first; rank < first + ranks; ++rank) {
      for (int i = 0; i < 8; ++i) {
        auto const seed = static_cast<unsigned long>((step * 2 + rank) * 8 + i);
        x.push_back(dlib::matrix_cast<float>(dlib::gaussian_randm(20, 1, seed)));
        y.push_back(dlib::sum(x.back()));
      }
    }
    trainer.train_one_step(x, y);
  }
  trainer.get_net();  // waits for its thread, and throws what that has thrown
}

/// All parameters, one layer after the other.
std::vector<float> parameters(Net& net) {
  std::vector<float> all;
  dlib::visit_layer_parameters(net,
                               [&](dlib::tensor& t) { all.insert(all.end(), t.begin(), t.end()); });
  return all;
}

template <class Stage>
std::vector<float> trained(Net const& initial) {
  std::vector<float> result;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Net net;
    net(Sample());  // allocates parameters, other ones on each rank
    if (comm.rank() == 0) net = initial;
    ShardedSolver<zero::InProcess, Stage, zero::Sgd> solver(comm, net, {});
    train(net, solver, comm.rank(), 1);
    if (comm.rank() == 0) result = parameters(net);
  });
  return result;
}

int main() {
  Net net;
  net(Sample());
  auto const w = trained<zero::stage::PosG>(net);
  bool const same =
      w == trained<zero::stage::Replicated>(net) && w == trained<zero::stage::Pos>(net);
  train(net, dlib::sgd(0, 0.9f), 0, 2);
  double off = 0;
  auto const theirs = parameters(net);
  for (std::size_t i = 0; i < w.size(); ++i)
    off = std::max(off, std::abs(double{w[i]} - theirs[i]));
  std::printf("3 stages, %d result, within %.0g of dlib's own\n", same ? 1 : 3, off);
}
