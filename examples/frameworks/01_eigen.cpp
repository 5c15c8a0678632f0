// One flat matrix: a trainer whose parameters and gradients are matrices of Eigen's, in double.
//
// An Eigen matrix is one buffer. So is Armadillo's, whose `memptr()` and `n_elem` are `data()` and
// `size()` here. Under Pos+g+p the library owns the parameters, and maps show them.
// prints: 4 stages, 1 result, within (0|[0-9]e-1[6-9]) of a plain loop

#include <zero/zero.hpp>

#include <Eigen/Core>

#include <cstdio>
#include <utility>

using Matrix = Eigen::MatrixXd;
constexpr int inputs = 700, outputs = 3, samples = 40, steps = 240;
constexpr zero::Sgd rule{.lr = 3e-6};
// Eigen stores columns, along which rows vary fastest: they come last.
zero::Tensor const described{.name = "w", .shape = {outputs, inputs}};

/// Gradient of half the mean squared error over the samples of one rank.
Matrix gradient(int rank, Eigen::Ref<Matrix const> const& w) {
  Matrix const x = Matrix::NullaryExpr(samples, inputs, [&](auto sample, auto input) {
    return static_cast<double>((2 * sample + rank) * 37 % 11 - input % 7) / 10;
  });
  return x.transpose() * (x * w - x.leftCols(outputs)) / samples;
}

/// Lends both matrices.
template <class Stage>
Matrix lent(zero::InProcess& comm) {
  Matrix w = Matrix::Zero(inputs, outputs);
  zero::ShardedOptimizer opt{comm, {described}, Stage{}, zero::Fp64{}, zero::Borrowed<>{}, rule};
  opt.bind_parameters({w.data(), inputs * outputs});
  opt.adopt_parameters();
  while (opt.steps() < steps) {
    Matrix g = gradient(comm.rank(), w);  // new memory in every step, and so lent in every step
    opt.bind_gradients({g.data(), inputs * outputs});
    opt.step();
  }
  return w;
}

/// Has no matrix of its own.
Matrix gathered(zero::InProcess& comm) {
  zero::ShardedOptimizer opt{comm, {described}, zero::stage::PosGP{}, zero::Fp64{}, rule};
  opt.adopt_parameters();  // zeros
  for (; opt.steps() < steps; opt.step()) {
    auto const all = opt.parameters(0);
    auto sum = opt.gradients(0);
    Eigen::Map<Matrix const> const w(all[0].data(), inputs, outputs);
    Eigen::Map<Matrix>(sum[0].data(), inputs, outputs) += gradient(comm.rank(), w);
    opt.reduce(std::move(sum));
  }
  auto const all = opt.full_parameters();
  return Eigen::Map<Matrix const>(all[0].data(), inputs, outputs);
}

/// Without the library, over the samples of both ranks.
Matrix plain() {
  Matrix w = Matrix::Zero(inputs, outputs), m = w;
  for (int step = 0; step < steps; ++step) {
    m = rule.momentum * m + (gradient(0, w) + gradient(1, w)) / 2;
    w -= rule.lr * m;
  }
  return w;
}

int main() {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    Matrix const w[] = {lent<zero::stage::Replicated>(comm),
                        lent<zero::stage::Pos>(comm),
                        lent<zero::stage::PosG>(comm),
                        gathered(comm)};
    if (comm.rank() != 0) return;
    bool const same = w[0] == w[1] && w[0] == w[2] && w[0] == w[3];
    double const off = (w[0] - plain()).lpNorm<Eigen::Infinity>() / w[0].lpNorm<Eigen::Infinity>();
    std::printf("4 stages, %d result, within %.0g of a plain loop\n", same ? 1 : 4, off);
  });
}
