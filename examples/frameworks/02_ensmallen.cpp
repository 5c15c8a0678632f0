// ensmallen over Armadillo, in double: a policy takes the place of `ens::MomentumUpdate`.
//
// Every `Optimize` makes a matrix of gradients, which the policy lends, and a policy, which holds
// the rank's part of the momentum. The caller has the parameters.
// prints: 3 stages, 1 result, within (0|[0-9]e-(1[6-9]|2[0-9])) of ensmallen's own

#include "ensmallen_update.hpp"

#include <ensmallen.hpp>

#include <cstddef>
#include <cstdio>

constexpr std::size_t inputs = 700, batch = 8, batches = 60;

/// Half the squared error of a line. A rank has its part of every batch.
struct Line {
  std::size_t rank = 0, ranks = 1;

  [[nodiscard]] std::size_t NumFunctions() const { return 2 * batch * batches / ranks; }
  void Shuffle() {}
  double EvaluateWithGradient(arma::mat const& w,
                              std::size_t first,
                              arma::mat& g,
                              std::size_t count) const {
    arma::mat x(inputs, count);
    for (std::size_t i = 0; i < x.n_elem; ++i) {
      std::size_t const sample = first * ranks + rank * count + i / inputs;
      x[i] = static_cast<double>((sample * 37 + i % inputs * 5) % 11) / 10;
    }
    arma::mat const error = w.t() * x - x.row(0);
    g = x * error.t();
    return arma::accu(arma::square(error)) / 2;
  }
};

template <class Update>
arma::mat minimize(Line line, Update const& update) {
  arma::mat w(inputs, 1);
  std::size_t const count = line.NumFunctions();
  // What one rank sees must not end its training alone: no tolerance.
  ens::SGD<Update> sgd(1e-5, 2 * batch / line.ranks, count, -1, false, update);
  sgd.Optimize(line, w);
  return w;
}

template <class Stage>
arma::mat trained() {
  arma::mat result;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    arma::mat const w = minimize(Line{static_cast<std::size_t>(comm.rank()), 2},
                                 ShardedUpdate<zero::InProcess, Stage>{&comm});
    if (comm.rank() == 0) result = w;
  });
  return result;
}

int main() {
  arma::mat const w = trained<zero::stage::PosG>();
  bool const same = arma::approx_equal(w, trained<zero::stage::Replicated>(), "absdiff", 0) &&
                    arma::approx_equal(w, trained<zero::stage::Pos>(), "absdiff", 0);
  arma::mat const theirs = minimize(Line{}, ens::MomentumUpdate(0.9));
  std::printf("3 stages, %d result, within %.0g of ensmallen's own\n",
              same ? 1 : 3,
              double{arma::abs(w - theirs).max() / arma::abs(w).max()});
}
