// The same trainer over zero: each process keeps momentum and reduced gradients of its share.
#include <zero/comm/mpi.hpp>
#include <zero/zero.hpp>

#include <Eigen/Core>
#include <mpi.h>

#include <cstdio>

using Matrix = Eigen::MatrixXd;

// Gradient of half the mean squared error over the samples of one process.
Matrix gradient(int rank, Matrix const& w, double& loss) {
  Matrix const x = Matrix::NullaryExpr(60, w.rows(), [&](auto sample, auto input) {
    return static_cast<double>((3 * sample + rank + input * input) * 37 % 11 - 5) / 8;
  });
  Matrix const error = x * w - x.leftCols(w.cols());
  loss = error.squaredNorm() / 120;
  return x.transpose() * error / 60;
}

void train(int rank) {
  Matrix w = Matrix::Zero(40, 3);
  zero::Mpi<> comm(MPI_COMM_WORLD);
  zero::Tensor const whole{.name = "w", .shape = {3, 40}};
  zero::ShardedOptimizer opt{
      comm, {whole}, zero::Fp64{}, zero::Borrowed<>{}, zero::Sgd{.lr = 0.003}};
  opt.bind_parameters({w.data(), 3 * 40});
  opt.adopt_parameters();
  double first = 0, loss = 0;
  for (int step = 0; step < 200; ++step) {
    Matrix g = gradient(rank, w, loss);
    opt.bind_gradients({g.data(), 3 * 40});
    opt.step();
    if (step == 0) first = loss;
  }
  if (rank == 0) std::printf("loss %.6g to %.6g, weights %a\n", first, loss, w.sum());
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  train(rank);
  MPI_Finalize();
}
