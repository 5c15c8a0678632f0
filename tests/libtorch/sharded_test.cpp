#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sharded_test {

using namespace libtorch_tests;
using zero::libtorch::Sharded;

/// What all ranks have after a few steps; empty if they differ.
template <class Stage, class Accumulation = zero::AccumulateNone, class Precision = zero::Fp32>
std::vector<std::uint8_t> trained(int ranks, int micro_batches, torch::ScalarType type) {
  return on_ranks(ranks, [&](zero::InProcess& comm) {
    return trained_on<Stage, Accumulation, Precision>(comm, micro_batches, type);
  });
}

/// The same, lent by the adapter's other optimizer.
std::vector<std::uint8_t> trained_by_optimizer(int ranks) {
  return on_ranks(ranks, [&](zero::InProcess& comm) {
    Net net;
    zero::libtorch::Optimizer opt{comm, *net, zero::AdamW{.lr = rate}};
    for (int step = 0; step < steps; ++step) {
      net->loss(batch_of(ranks, comm.rank(), step, 0, 1), plainly).backward();
      opt.step();
      opt.zero_grad();
    }
    return bytes_of(*net);
  });
}

void check(std::vector<std::uint8_t> const& bytes, int ranks, int micro_batches) {
  REQUIRE(!bytes.empty());
  double const away = distance(floats(bytes), reference(ranks, micro_batches));
  CAPTURE(away);
  CHECK(away < 1e-5);
  Net untouched;
  CHECK(distance(flat(*untouched), reference(ranks, micro_batches)) > 1e-2);
}

TEST_CASE("all stages have the same bits, and LibTorch's own averaged training") {
  at::set_num_threads(1);
  for (int const ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    auto const bytes = trained<zero::stage::PosGP>(ranks, 1, torch::kFloat);
    CHECK(trained<zero::stage::Replicated>(ranks, 1, torch::kFloat) == bytes);
    CHECK(trained<zero::stage::Pos>(ranks, 1, torch::kFloat) == bytes);
    CHECK(trained<zero::stage::PosG>(ranks, 1, torch::kFloat) == bytes);
    CHECK(trained_by_optimizer(ranks) == bytes);
    check(bytes, ranks, 1);
  }
}

TEST_CASE("micro-batches add up in full gradients, or in shares of reduced ones") {
  at::set_num_threads(1);
  using Full = zero::AccumulateFull;
  using Shard = zero::AccumulateShard;
  for (int const ranks : {1, 3}) {
    CAPTURE(ranks);
    auto const full = trained<zero::stage::PosGP, Full>(ranks, 2, torch::kFloat);
    CHECK(trained<zero::stage::PosG, Full>(ranks, 2, torch::kFloat) == full);
    check(full, ranks, 2);
    auto const shard = trained<zero::stage::PosGP, Shard>(ranks, 2, torch::kFloat);
    CHECK(trained<zero::stage::PosG, Shard>(ranks, 2, torch::kFloat) == shard);
    check(shard, ranks, 2);
  }
}

TEST_CASE("all stages have the same bits in bf16") {
  at::set_num_threads(1);
  using None = zero::AccumulateNone;
  using Mixed = zero::Mixed<zero::bf16>;
  Net untouched;
  untouched->to(torch::kBFloat16);
  for (int const ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    auto const bytes = trained<zero::stage::PosGP, None, Mixed>(ranks, 1, torch::kBFloat16);
    REQUIRE(!bytes.empty());
    CHECK(trained<zero::stage::Replicated, None, Mixed>(ranks, 1, torch::kBFloat16) == bytes);
    CHECK(trained<zero::stage::Pos, None, Mixed>(ranks, 1, torch::kBFloat16) == bytes);
    CHECK(trained<zero::stage::PosG, None, Mixed>(ranks, 1, torch::kBFloat16) == bytes);
    CHECK(bytes != bytes_of(*untouched));
  }
}

template <class Stage>
std::vector<std::uint8_t> started() {
  return on_ranks(3, [](zero::InProcess& comm) {
    Net net;
    fill(*net, comm.rank());
    Sharded sharded{comm, *net, net->units(), Stage{}};
    auto const all = sharded.full_parameters();
    return bytes_of(*net);
  });
}

TEST_CASE("every rank starts from the first one's parameters, frozen ones too") {
  Net first;
  CHECK(started<zero::stage::PosGP>() == bytes_of(*first));
  CHECK(started<zero::stage::PosG>() == bytes_of(*first));
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

template <class Stage, class Accumulation>
std::vector<std::uint8_t> branched(int ranks,
                                   int micro_batches,
                                   int prefetch,
                                   std::vector<long>& updates) {
  return on_ranks(ranks, [&](zero::InProcess& comm) {
    Branch net;
    Sharded sharded{comm,
                    *net,
                    {net->in, net->middle, net->out},
                    Stage{},
                    Accumulation{},
                    zero::Prefetch{prefetch},
                    zero::AdamW{.lr = rate}};
    auto const skip = [&](auto& unit, auto const& x) { return sharded.skip(unit, x); };
    for (int step = 0; step < branch_steps; ++step) {
      for (int micro = 0; micro < micro_batches; ++micro) {
        if (micro_batches > 1) sharded.micro_step({.last = micro + 1 == micro_batches});
        net->loss(step + micro, comm.rank(), through(sharded), skip).backward();
      }
      sharded.step();
    }
    if (comm.rank() == 0) {
      updates.clear();
      for (std::size_t t = 0; t < 6; ++t) updates.push_back(sharded.core().steps(t));
    }
    auto const all = sharded.full_parameters();
    return bytes_of(*net);
  });
}

template <class Accumulation>
void check_branches(int micro_batches, std::vector<long> const& expected_updates) {
  at::set_num_threads(1);
  constexpr int ranks = 3;
  Branch theirs;
  auto const expected = averaged_by_libtorch(
      theirs, ranks, branch_steps, micro_batches, [](Branch& net, int rank, int step, int micro) {
        return net->loss(step + micro, rank, plainly, [](auto&, auto const& x) { return x; });
      });
  std::vector<long> updates;
  // Without a prefetch, ranks that do not gather together are found.
  auto const bytes = branched<zero::stage::PosGP, Accumulation>(ranks, micro_batches, 0, updates);
  REQUIRE(!bytes.empty());
  CHECK(updates == expected_updates);
  CHECK(branched<zero::stage::PosGP, Accumulation>(ranks, micro_batches, 1, updates) == bytes);
  CHECK(branched<zero::stage::PosG, Accumulation>(ranks, micro_batches, 1, updates) == bytes);
  CHECK(updates == expected_updates);
  double const away = distance(floats(bytes), expected);
  CAPTURE(away);
  CHECK(away < 1e-5);
}

TEST_CASE("what no rank calls rests; what some ranks skip has zeros there: as in LibTorch") {
  check_branches<zero::AccumulateNone>(1, {9, 9, 6, 6, 9, 9});
}

TEST_CASE("what is called in some micro-batches only has the others' zeros") {
  check_branches<zero::AccumulateShard>(2, {9, 9, 9, 9, 9, 9});
  check_branches<zero::AccumulateFull>(2, {9, 9, 9, 9, 9, 9});
}

/// One step of plain SGD, with a learning rate and a norm, on the same batch on every rank.
template <class Use>
std::vector<std::uint8_t> stepped(Use const& use) {
  return on_ranks(2, [&](zero::InProcess& comm) {
    Net net;
    Sharded sharded{comm, *net, net->units(), zero::stage::PosGP{}, zero::PlainSgd{.lr = 1.f}};
    net->loss(0, through(sharded)).backward();
    use(sharded);
    auto const all = sharded.full_parameters();
    return bytes_of(*net);
  });
}

TEST_CASE("clipping and the learning rate are the optimizer's own; gradients can be forgotten") {
  at::set_num_threads(1);
  auto const by_option =
      stepped([](auto& sharded) { sharded.step({.learning_rate = 0.125f, .max_norm = 0.01}); });
  REQUIRE(!by_option.empty());
  CHECK(stepped([](auto& sharded) {
          CHECK(sharded.lr() == 1.f);
          sharded.set_lr(0.125f);
          CHECK(sharded.lr() == 0.125f);
          double const norm = sharded.clip_grad_norm(0.01);
          CHECK(norm > 0.01);
          CHECK(norm == sharded.grad_norm());
          sharded.step();
        }) == by_option);
  CHECK(stepped([](auto& sharded) { sharded.step({.learning_rate = 0.125f}); }) != by_option);
  Net untouched;
  CHECK(stepped([](auto& sharded) { sharded.zero_grad(); }) == bytes_of(*untouched));
}

}  // namespace sharded_test
