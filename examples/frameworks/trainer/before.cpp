// A trainer of Eigen matrices in double, on processes that average gradients with MPI_Allreduce.
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

void train(int rank, int ranks) {
  Matrix w = Matrix::Zero(40, 3);
  Matrix speed = Matrix::Zero(40, 3);
  double first = 0, loss = 0;
  for (int step = 0; step < 200; ++step) {
    Matrix g = gradient(rank, w, loss);
    MPI_Allreduce(
        MPI_IN_PLACE, g.data(), static_cast<int>(g.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    speed = 0.9 * speed + g / ranks;
    w -= 0.003 * speed;
    if (step == 0) first = loss;
  }
  if (rank == 0) std::printf("loss %.6g to %.6g, weights %a\n", first, loss, w.sum());
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  train(rank, ranks);
  MPI_Finalize();
}
