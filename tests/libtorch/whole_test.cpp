/// What belongs to a model beside its submodules, and what of it trains when.
#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace whole_test {

using namespace libtorch_tests;
using zero::libtorch::Optimizer;
using zero::libtorch::Sharded;

constexpr int ranks = 3;

TEST_CASE(
    "a parameter of the model itself trains as in LibTorch, and so does a layer of two names") {
  at::set_num_threads(1);
  Rooted theirs;
  auto const expected = averaged_by_libtorch(
      theirs, ranks, steps, 1, [](Rooted& net, int rank, int step, int /*micro*/) {
        return net->loss(step * ranks + rank, plainly);
      });
  auto const sharded = [](auto stage) {
    return on_ranks(ranks, [&](zero::InProcess& comm) {
      Rooted net;
      Sharded opt{comm, *net, net->units(), stage, zero::AdamW{.lr = rate}};
      for (int step = 0; step < steps; ++step) {
        net->loss(step * ranks + comm.rank(), through(opt)).backward();
        opt.step();
      }
      auto const all = opt.full_parameters();
      return bytes_of(*net);
    });
  };
  auto const bytes = on_ranks(ranks, [&](zero::InProcess& comm) {
    Rooted net;
    Optimizer opt{comm, *net, zero::AdamW{.lr = rate}};
    for (int step = 0; step < steps; ++step) {
      net->loss(step * ranks + comm.rank(), plainly).backward();
      opt.step();
      opt.zero_grad();
    }
    return bytes_of(*net);
  });
  REQUIRE(!bytes.empty());
  CHECK(sharded(zero::stage::PosGP{}) == bytes);
  CHECK(sharded(zero::stage::PosG{}) == bytes);
  CHECK(distance(floats(bytes), expected) < 1e-5);
  Rooted untouched;
  CHECK(distance(flat(*untouched), expected) > 1e-2);
}

}  // namespace whole_test
