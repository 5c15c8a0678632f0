#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace sharded_test {

using namespace libtorch_tests;
using zero::libtorch::Optimizer, zero::libtorch::Sharded;
using zero::stage::Pos, zero::stage::PosG, zero::stage::PosGP, zero::stage::Replicated;

TEST_CASE("all stages of both classes have the same bits, and LibTorch's own averaged training") {
  at::set_num_threads(1);
  for (int const ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    Run const run{.ranks = ranks};
    auto const bytes = run.sharded(PosGP{});
    CHECK(run.sharded(Replicated{}) == bytes);
    CHECK(run.sharded(Pos{}) == bytes);
    CHECK(run.sharded(PosG{}) == bytes);
    CHECK(run.optimizer(Replicated{}) == bytes);
    CHECK(run.optimizer(Pos{}) == bytes);
    CHECK(run.optimizer(PosG{}) == bytes);
    check_trained<Net>(bytes, run.libtorch());
  }
}

TEST_CASE("micro-batches add up in grad(), in full gradients, or in shares of reduced ones") {
  at::set_num_threads(1);
  for (int const ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    Run const run{.ranks = ranks, .micro_batches = 2};
    auto const expected = run.libtorch();
    auto const local = run.optimizer(Replicated{});
    CHECK(run.optimizer(Pos{}) == local);
    CHECK(run.optimizer(PosG{}) == local);
    check_trained<Net>(local, expected);
    auto const full = run.sharded(PosGP{}, zero::AccumulateFull{});
    CHECK(run.sharded(PosG{}, zero::AccumulateFull{}) == full);
    check_trained<Net>(full, expected);
    auto const shard = run.sharded(PosGP{}, zero::AccumulateShard{});
    CHECK(run.sharded(PosG{}, zero::AccumulateShard{}) == shard);
    check_trained<Net>(shard, expected);
  }
}

TEST_CASE("all stages of both classes have the same bits in bf16") {
  at::set_num_threads(1);
  zero::Mixed<zero::bf16> const mixed;
  Net untouched;
  untouched->to(torch::kBFloat16);
  for (int const ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    Run const run{.ranks = ranks, .type = torch::kBFloat16};
    auto const bytes = run.sharded(PosGP{}, mixed);
    REQUIRE(!bytes.empty());
    CHECK(run.sharded(Replicated{}, mixed) == bytes);
    CHECK(run.sharded(Pos{}, mixed) == bytes);
    CHECK(run.sharded(PosG{}, mixed) == bytes);
    CHECK(bytes != bytes_of(*untouched));
  }
  Run const twice{.micro_batches = 2, .type = torch::kBFloat16};
  auto const bytes = twice.optimizer(Replicated{}, mixed);
  REQUIRE(!bytes.empty());
  CHECK(twice.optimizer(Pos{}, mixed) == bytes);
  CHECK(twice.optimizer(PosG{}, mixed) == bytes);
  CHECK(bytes != bytes_of(*untouched));
}

TEST_CASE("all stages of both classes have the same bits in fp64, which are near those of fp32") {
  at::set_num_threads(1);
  Run const single{.ranks = 3};
  Run const run{.ranks = 3, .type = torch::kDouble};
  auto bytes = run.sharded(PosGP{}, zero::Fp64{});
  REQUIRE(!bytes.empty());
  CHECK(run.sharded(Replicated{}, zero::Fp64{}) == bytes);
  CHECK(run.sharded(PosG{}, zero::Fp64{}) == bytes);
  CHECK(run.optimizer(Pos{}, zero::Fp64{}) == bytes);
  auto const count = static_cast<std::int64_t>(bytes.size() / sizeof(double));
  auto const trained = torch::from_blob(bytes.data(), {count}, torch::kDouble);
  CHECK(distance(trained, single.libtorch()) < 1e-5);
  CHECK(!torch::equal(trained.to(torch::kFloat).to(torch::kDouble), trained));
}

TEST_CASE("every rank starts from the first one's parameters, frozen ones too") {
  Net first;
  auto const nothing = [](auto const&...) {};
  auto const started = [&](auto const& with) {
    return on_ranks(3, [&](zero::InProcess& comm) {
      Net net;
      fill(*net, comm.rank());
      return with(comm, net);
    });
  };
  auto const sharded = [&](auto stage) {
    return started([&](auto& comm, Net& net) {
      return with_sharded(comm, *net, describe(*net, net->units()), nothing, stage);
    });
  };
  CHECK(sharded(PosGP{}) == bytes_of(*first));
  CHECK(sharded(PosG{}) == bytes_of(*first));
  CHECK(started([&](auto& comm, Net& net) {
          return with_optimizer(comm, *net, describe(*net), nothing);
        }) == bytes_of(*first));
}

/// Three layers, the middle one of which is left out in some steps, on all ranks or on some.
struct BranchImpl : torch::nn::Module {
  static constexpr int width = 40;  // no unit is gathered with another
  BranchImpl() {
    in = register_module("in", torch::nn::Linear(width, width));
    middle = register_module("middle", torch::nn::Linear(width, width));
    out = register_module("out", torch::nn::Linear(width, width));
    fill(*this, 0.);
  }
  /// @param skip  what to do instead of calling the middle layer
  template <class Call, class Skip>
  torch::Tensor loss(int step, int rank, Call const& call, Skip const& skip) {
    auto x = torch::cos(torch::arange(2 * width, torch::kFloat) + step * 4 + rank).view({2, width});
    x = torch::tanh(call(in, x));
    if (step % 3 != 0) x = taken(step, rank) ? torch::tanh(call(middle, x)) : skip(middle, x);
    return call(out, x).square().mean();
  }
  static bool taken(int step, int rank) { return step % 3 == 2 || rank == step % 2; }
  torch::nn::Linear in{nullptr}, middle{nullptr}, out{nullptr};
};
TORCH_MODULE(Branch);

constexpr int branch_steps = 9;

/// Checks at its end how often each parameter was updated.
template <class Opt, class Call>
void train_branches(Branch& net,
                    Opt& opt,
                    Call const& call,
                    int rank,
                    int micro_batches,
                    std::vector<long> const& updates) {
  constexpr bool sharded = requires { opt.full_parameters(); };
  auto const skip = [&](auto& unit, auto const& x) {
    if constexpr (sharded) return opt.skip(unit, x);
    return x;
  };
  for (int step = 0; step < branch_steps; ++step) {
    for (int micro = 0; micro < micro_batches; ++micro) {
      if constexpr (sharded) {
        if (micro_batches > 1) opt.micro_step({.last = micro + 1 == micro_batches});
      }
      net->loss(step + micro, rank, call, skip).backward();
    }
    opt.step();
    opt.zero_grad();
  }
  for (std::size_t t = 0; t < updates.size(); ++t) CHECK(opt.core().steps(t) == updates[t]);
}

template <class Accumulation>
void check_branches(int micro_batches, std::vector<long> const& updates) {
  at::set_num_threads(1);
  constexpr int ranks = 3;
  Branch theirs;
  auto const expected = averaged_by_libtorch(
      theirs, ranks, branch_steps, micro_batches, [](Branch& net, int rank, int step, int micro) {
        return net->loss(step + micro, rank, plainly, [](auto&, auto const& x) { return x; });
      });
  zero::AdamW const rule{.lr = rate};
  auto const branched = [&](auto const& with) {
    return on_ranks(ranks, [&](zero::InProcess& comm) {
      Branch net;
      return with(comm, net, [&](auto& opt, auto const& call) {
        train_branches(net, opt, call, comm.rank(), micro_batches, updates);
      });
    });
  };
  auto const sharded = [&](auto stage, int prefetch) {
    return branched([&](auto& comm, Branch& net, auto const& train) {
      auto const model = describe(*net, {net->in, net->middle, net->out});
      zero::Prefetch const ahead{prefetch};
      return with_sharded(comm, *net, model, train, stage, Accumulation{}, ahead, rule);
    });
  };
  // Without a prefetch, ranks that do not gather together are found.
  auto const bytes = sharded(PosGP{}, 0);
  CHECK(sharded(PosGP{}, 1) == bytes);
  CHECK(sharded(PosG{}, 1) == bytes);
  check_trained<Branch>(bytes, expected);
  if (micro_batches > 1) return;
  CHECK(branched([&](auto& comm, Branch& net, auto const& train) {
          return with_optimizer(comm, *net, describe(*net), train, rule);
        }) == bytes);
}

TEST_CASE("what no rank calls rests; what some ranks skip has zeros there: as in LibTorch") {
  check_branches<zero::AccumulateNone>(1, {9, 9, 6, 6, 9, 9});
}

TEST_CASE("what is called in some micro-batches only has the others' zeros") {
  check_branches<zero::AccumulateShard>(2, {9, 9, 9, 9, 9, 9});
  check_branches<zero::AccumulateFull>(2, {9, 9, 9, 9, 9, 9});
}

/// Plain SGD, on the same batches on every rank: `use(opt, net, call)`.
template <class Use>
Bytes stepped(bool sharded, Use const& use) {
  return on_ranks(2, [&](zero::InProcess& comm) {
    Net net;
    auto const train = [&](auto& opt, auto const& call) {
      net->loss(0, call).backward();
      use(opt, net, call);
    };
    zero::PlainSgd const rule{.lr = 1.f};
    return sharded ? with_sharded(comm, *net, describe(*net, net->units()), train, PosGP{}, rule)
                   : with_optimizer(comm, *net, describe(*net), train, rule);
  });
}

TEST_CASE("clipping and the learning rate are the optimizer's own; gradients can be forgotten") {
  at::set_num_threads(1);
  Net untouched;
  for (bool const sharded : {true, false}) {
    CAPTURE(sharded);
    auto const by_option = [&](zero::StepOptions const& options) {
      return stepped(sharded, [&](auto& opt, Net& net, auto const& call) {
        opt.step(options);
        opt.zero_grad();
        net->loss(1, call).backward();
        opt.step({.learning_rate = 0.125f});
      });
    };
    auto const clipped = by_option({.learning_rate = 0.125f, .max_norm = 0.01});
    REQUIRE(!clipped.empty());
    CHECK(by_option({.learning_rate = 0.125f}) != clipped);
    CHECK(stepped(sharded, [](auto& opt, Net& net, auto const& call) {
            CHECK(opt.lr() == 1.f);
            opt.set_lr(0.125f);
            CHECK(opt.lr() == 0.125f);
            torch::Tensor const local = net->out->weight.grad();
            torch::Tensor const before = local.defined() ? local.clone() : local;
            double const norm = opt.clip_grad_norm(0.01);
            CHECK(norm > 0.01);
            CHECK(norm == opt.grad_norm());
            zero::StepReport const report = opt.step();
            CHECK(report.grad_norm == norm);
            CHECK(report.clip_coefficient < 1.);
            if (local.defined()) CHECK(local.equal(before));  // what is local is not clipped
            opt.zero_grad();
            net->loss(1, call).backward();
            CHECK(opt.step().clip_coefficient == 1.);  // one step, one clip
          }) == clipped);
    CHECK(stepped(sharded, [](auto& opt, auto&...) { opt.zero_grad(); }) == bytes_of(*untouched));
  }
}

TEST_CASE("a gradient of what was described as frozen is an error") {
  auto const refused = [](auto const& act) {
    check_refused(act, "parameter 'layer.weight' has a gradient, but required none when");
  };
  zero::Self comm;
  auto const frozen = [] {
    Rooted net;
    net->layer->weight.set_requires_grad(false);
    return net;
  };
  auto net = frozen();
  Optimizer opt{comm, *net};
  net->layer->weight.set_requires_grad(true);
  net->loss(0, plainly).backward();
  refused([&] { opt.step(); });
  opt.zero_grad();
  opt.step();
  auto const sharded = [&](auto stage) {
    auto other = frozen();
    Sharded own{comm, *other, other->units(), stage};
    other->layer->weight.set_requires_grad(true);
    refused([&] { other->loss(0, through(own)).backward(); });
    refused([&] { own.step(); });
  };
  sharded(PosG{});
  sharded(PosGP{});
}

TEST_CASE(
    "a gradient that comes after its unit was reduced is an error, not a part of the next step") {
  zero::Self comm;
  auto const check = [&](auto const& use) {
    torch::nn::Linear layer(3, 3);
    Sharded opt{comm, *layer, {layer}, PosG{}, zero::AccumulateShard{}};
    auto const loss = [&] { return opt.forward(layer, torch::ones({1, 3})).sum(); };
    check_refused([&] { use(opt, layer, loss); },
                  "parameter 'weight' got a gradient after those of unit 0 were");
    opt.zero_grad();
    loss().backward();
    opt.step();
  };
  check([](auto& opt, auto& layer, auto const& loss) {
    loss().backward();
    layer->weight.square().sum().backward();
    opt.step();
  });
  check([](auto& opt, auto& layer, auto const& loss) {
    auto const penalty = layer->weight.square().sum();
    (loss() + penalty).backward();
    opt.step();
  });
  check([](auto& opt, auto& layer, auto const& loss) {
    opt.micro_step({.last = false});
    loss().backward();
    layer->weight.square().sum().backward();
    opt.micro_step({.last = true});
  });
  torch::nn::Linear layer(3, 3);
  // Nothing of this is rounded.
  torch::nn::init::constant_(layer->weight, 0.125);
  auto const before = layer->weight.detach().clone();
  Sharded opt{comm, *layer, {layer}, PosG{}, zero::PlainSgd{.lr = 0.25f}};
  auto const y = opt.forward(layer, torch::ones({1, 3})).sum();
  (y + layer->weight.square().sum()).backward();
  opt.step();
  CHECK(layer->weight.equal(before / 2 - 0.25));
}

}  // namespace sharded_test
