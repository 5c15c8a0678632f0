#include "checkpoint/temporary_directory.hpp"
#include "libtorch/sharded_model.hpp"
#include <zero/adapt/libtorch.hpp>
#include <zero/checkpoint.hpp>
#include <zero/zero.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

using libtorch_tests::bytes_of, libtorch_tests::Net, libtorch_tests::on_ranks;
using libtorch_tests::plainly, libtorch_tests::through;

template <class Opt, class Call>
void train(Net& net, Opt& opt, Call const& call, int first, int steps) {
  for (int step = first; step < first + steps; ++step) {
    net->loss(step, call).backward();  // the same batch on every rank
    opt.step();
    opt.zero_grad();
  }
}

TEST_CASE("a checkpoint of three ranks under Pos+g+p goes on under Pos+g, with the same bits") {
  at::set_num_threads(1);
  checkpoint_tests::TemporaryDirectory const directory;
  auto const never_stopped = on_ranks(3, [&](zero::InProcess& comm) {
    Net net;
    zero::libtorch::Sharded sharded{comm, *net, net->units(), zero::stage::PosGP{}};
    train(net, sharded, through(sharded), 0, 3);
    zero::Checkpoints run{directory.path()};
    run.save(sharded.core());
    train(net, sharded, through(sharded), 3, 3);
    auto const all = sharded.full_parameters();
    return bytes_of(*net);
  });
  REQUIRE(!never_stopped.empty());
  CHECK(on_ranks(3, [&](zero::InProcess& comm) {
          Net net;
          zero::libtorch::Optimizer opt{comm, *net, zero::stage::PosG{}};
          zero::Checkpoints run{directory.path()};
          run.load(opt.core(), run.latest().value());
          train(net, opt, plainly, 3, 3);
          return bytes_of(*net);
        }) == never_stopped);
  CHECK(on_ranks(3, [&](zero::InProcess& comm) {
          Net net;
          zero::libtorch::Sharded sharded{comm, *net, net->units(), zero::stage::PosGP{}};
          zero::Checkpoints run{directory.path()};
          run.load(sharded.core(), run.latest().value());
          train(net, sharded, through(sharded), 3, 3);
          auto const all = sharded.full_parameters();
          return bytes_of(*net);
        }) == never_stopped);
}

/// Steps of a model whose names say nothing of units; the same batch on every rank.
template <class Opt, class Call>
void train(libtorch_tests::Rooted& net, Opt& opt, Call const& call, int first) {
  for (int step = first; step < first + 3; ++step) {
    net->loss(step, call).backward();
    opt.step();
    opt.zero_grad();
  }
}
/// What a run has after three steps, from the last checkpoint if there is one, and saves if asked.
std::vector<std::uint8_t> run(std::string const& directory, bool sharded, int first, bool saves) {
  return on_ranks(3, [&](zero::InProcess& comm) {
    libtorch_tests::Rooted net;
    zero::Checkpoints run{directory};
    auto const go = [&](auto& opt, auto const& call) {
      if (first > 0) run.load(opt.core(), run.latest().value());
      train(net, opt, call, first);
      if (saves) run.save(opt.core());
    };
    if (!sharded) {
      zero::libtorch::Optimizer opt{comm, *net, zero::stage::PosG{}};
      go(opt, plainly);
      return bytes_of(*net);
    }
    zero::libtorch::Sharded opt{comm, *net, net->units(), zero::stage::PosGP{}};
    go(opt, through(opt));
    auto const all = opt.full_parameters();
    return bytes_of(*net);
  });
}

TEST_CASE("what either class has saved the other one loads, with a parameter of the model itself") {
  at::set_num_threads(1);
  checkpoint_tests::TemporaryDirectory const by_sharded, by_optimizer;
  CHECK(run(by_sharded.path(), true, 0, true) == run(by_optimizer.path(), false, 0, true));
  auto const bytes = run(by_sharded.path(), true, 3, false);
  REQUIRE(!bytes.empty());
  CHECK(run(by_sharded.path(), false, 3, false) == bytes);
  CHECK(run(by_optimizer.path(), true, 3, false) == bytes);
  CHECK(run(by_optimizer.path(), false, 3, false) == bytes);
}

}  // namespace libtorch_checkpoint_test
