#include "checkpoint/temporary_directory.hpp"
#include "libtorch/sharded_model.hpp"
#include <zero/checkpoint.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <string>

namespace libtorch_checkpoint_test {

using namespace libtorch_tests;

enum class By { sharded, optimizer, optimizer_under_pos };

/// Three steps, from the last checkpoint in a directory if they are not the first; saves if asked.
/// The same batch on every rank, so that the number of ranks changes nothing if it is a power of 2.
template <class Model>
Bytes three_steps(By by, int ranks, std::string const& directory, int first, bool saves) {
  return on_ranks(ranks, [&](zero::InProcess& comm) {
    Model net;
    zero::Checkpoints run{directory};
    auto const train = [&](auto& opt, auto const& call) {
      if (first > 0) run.load(opt, run.latest().value());
      for (int step = first; step < first + 3; ++step) {
        net->loss(step, call).backward();
        opt.step();
        opt.zero_grad();
      }
      CHECK(opt.steps() == first + 3);
      if (saves) run.save(opt);
    };
    auto const units = describe(*net, net->units()), whole = describe(*net);
    if (by == By::sharded) return with_sharded(comm, *net, units, train, zero::stage::PosGP{});
    if (by == By::optimizer) return with_optimizer(comm, *net, whole, train, zero::stage::PosG{});
    return with_optimizer(comm, *net, whole, train, zero::stage::Pos{});
  });
}

template <class Model>
void check_resumed() {
  at::set_num_threads(1);
  Model whole;
  zero::Self comm;
  auto const expected = with_optimizer(
      comm,
      *whole,
      describe(*whole),
      [&](auto& opt, auto const& call) {
        for (int step = 0; step < 6; ++step) {
          whole->loss(step, call).backward();
          opt.step();
          opt.zero_grad();
        }
      },
      zero::stage::Pos{});
  for (By const saved : {By::sharded, By::optimizer}) {
    CAPTURE(saved);
    checkpoint_tests::TemporaryDirectory const directory;
    CHECK(!three_steps<Model>(saved, 4, directory.path(), 0, true).empty());
    for (By const loaded : {By::sharded, By::optimizer, By::optimizer_under_pos}) {
      for (int const ranks : {4, loaded == By::optimizer_under_pos ? 1 : 2}) {
        CAPTURE(loaded);
        CAPTURE(ranks);
        bool const same = three_steps<Model>(loaded, ranks, directory.path(), 3, false) == expected;
        CHECK(same);
      }
    }
  }
}

TEST_CASE("what either class has saved, both go on with, on other ranks and stages, bit for bit") {
  check_resumed<Net>();
  check_resumed<Rooted>();  // whose names say nothing of units
}

}  // namespace libtorch_checkpoint_test
