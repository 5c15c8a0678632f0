#include "checkpoint/temporary_directory.hpp"
#include <zero/adapt/libtorch.hpp>
#include <zero/checkpoint.hpp>
#include <zero/zero.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstdint>

namespace libtorch_checkpoint_test {

torch::nn::Sequential net() {
  torch::nn::Sequential net(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  torch::NoGradGuard const off;
  double phase = 0.;
  for (auto& p : net->parameters()) {
    p.copy_(torch::sin(torch::arange(p.numel()) + ++phase).view_as(p));
  }
  return net;
}

/// The same batch on every rank, so that the number of ranks changes nothing.
template <class Opt>
void train(torch::nn::Sequential& net, Opt& opt, int first, int steps) {
  for (int step = first; step < first + steps; ++step) {
    auto const x = torch::cos(torch::arange(10, torch::kFloat) + step).view({2, 5});
    net->forward(x).square().mean().backward();
    opt.step();
    opt.zero_grad();
  }
}

TEST_CASE("a checkpoint of three ranks under Pos+g goes on with the same bits on one under Pos") {
  at::set_num_threads(1);
  checkpoint_tests::TemporaryDirectory const directory;
  auto never_stopped = net();
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    auto mine = net();
    zero::libtorch::Optimizer opt{comm, *mine, zero::stage::PosG{}};
    train(mine, opt, 0, 3);
    zero::Checkpoints run{directory.path()};
    run.save(opt.core());
  });
  {
    zero::Self comm;
    zero::libtorch::Optimizer opt{comm, *never_stopped, zero::stage::Pos{}};
    train(never_stopped, opt, 0, 6);
  }
  auto resumed = net();
  zero::Self comm;
  zero::libtorch::Optimizer opt{comm, *resumed, zero::stage::Pos{}};
  zero::Checkpoints run{directory.path()};
  auto const found = run.latest();
  REQUIRE(found.has_value());
  run.load(opt.core(), *found);
  train(resumed, opt, 3, 3);
  for (std::size_t p = 0; p < resumed->parameters().size(); ++p) {
    CHECK(resumed->parameters()[p].equal(never_stopped->parameters()[p]));
  }
}

}  // namespace libtorch_checkpoint_test
