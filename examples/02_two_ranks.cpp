// Two ranks: each trains on its own half of the data, and both end with the same parameters.
//
// The data lie on y = 3x - 1. Rank 0 sees x in [-1, 0), rank 1 sees x in [0, 1): together they fit
// the whole line. The ranks are threads here; only the communicator knows.
// prints: rank 0: y = 3.00 x -1.00.*rank 1: y = 3.00 x -1.00.*identical bits: yes

#include <zero/zero.hpp>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

using Line = std::array<float, 2>;  // slope, offset

/// Adds the gradient of this rank's mean squared error.
void forward_backward(auto& opt, int rank) {
  constexpr int samples = 32;
  auto parameters = opt.parameters(0);
  auto gradients = opt.gradients(0);
  auto const line = parameters["line"];
  auto const g = gradients["line"];
  for (int i = 0; i < samples; ++i) {
    float const x = static_cast<float>(rank - 1) + static_cast<float>(i) / samples;
    float const error = (line[0] * x + line[1]) - (3.f * x - 1.f);
    g[0] += 2.f * error * x / samples;
    g[1] += 2.f * error / samples;
  }
  opt.reduce(std::move(gradients));  // summed on the rank that owns the slice
}

Line train(zero::InProcess& comm) {
  zero::ShardedOptimizer opt{
      comm, {{.name = "line", .shape = {2}}}, zero::stage::PosG{}, zero::Sgd{.lr = 0.05f}};
  opt.adopt_parameters();  // training starts from what lies there: zeros
  while (opt.steps() < 500) {
    forward_backward(opt, comm.rank());
    opt.step();  // the owner updates with the mean over both ranks and publishes the result
  }
  auto parameters = opt.parameters(0);
  return {parameters["line"][0], parameters["line"][1]};
}

int main() {
  std::array<Line, 2> lines{};
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    lines[static_cast<std::size_t>(comm.rank())] = train(comm);
  });

  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    auto const [slope, offset] = lines[rank];
    std::printf("rank %zu: y = %.2f x %+.2f\n", rank, double{slope}, double{offset});
  }
  bool const same = std::memcmp(&lines[0], &lines[1], sizeof(Line)) == 0;
  std::printf("identical bits: %s\n", same ? "yes" : "no");
  return same ? 0 : 1;
}
