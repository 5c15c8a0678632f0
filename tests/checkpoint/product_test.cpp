// What one optimizer saved, any other loads: the same bits right after the load, and after more
// steps those of a run that never stopped.
#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "support/lent_memory.hpp"
#include "trapped_space.hpp"
#include "zero/checkpoint.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace product_test {
namespace {

using checkpoint_tests::collect;
using checkpoint_tests::Held;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;

constexpr long saved_at = 3;
constexpr long ends_at = 5;
int const all_ranks[] = {1, 2, 3, 5, 8};

/// One way to hold the model, over threads.
template <class... Policies>
struct Way {
  zero::Bucket bucket{};

  using Optimizer = zero::ShardedOptimizer<zero::InProcess, Policies...>;

  template <class Body>
  void run(int ranks, Body const& body) const {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      Optimizer optimizer{comm, toy::model(), bucket};
      body(optimizer, comm.rank(), ranks);
    });
  }
};

/// Parameters and gradients that a trainer lends.
template <class Stage, class Precision>
struct LentWay {
  template <class Body>
  void run(int ranks, Body const& body) const {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer<zero::InProcess, Stage, Precision, zero::Borrowed<>> optimizer{
          comm, toy::model()};
      toy::LentMemory<typename Precision::Parameter,
                      typename Precision::Wire,
                      zero::space::Host,
                      zero::HostAllocator>
          lent({}, {}, optimizer.tensors(), false);
      lent.bind_to(optimizer);
      body(optimizer, comm.rank(), ranks);
      CHECK(lent.intact());
    });
  }
};

/// Memory that the host cannot reach.
template <class Stage, class Precision>
struct DeviceWay {
  template <class Body>
  void run(int ranks, Body const& body) const {
    zero::run_ranks(ranks, [&](zero::InProcess& inner) {
      using Owned = zero::Owned<trapped::Allocator>;
      trapped::Device device;
      trapped::Communicator comm(inner, device, trapped::Collectives::late);
      zero::ShardedOptimizer<trapped::Communicator, Stage, Precision, Owned> optimizer{
          comm, toy::model(), Owned{{&device}}, zero::Bucket{4096}};
      body(optimizer, comm.rank(), ranks);
      device.synchronize();
    });
  }
};

/// Sub-groups of another group: rank r of the first half is rank r here, and the second half does
/// the same in a directory of its own.
template <class Stage, class Precision>
struct SubgroupWay {
  template <class Body>
  void run(int ranks, Body const& body) const {
    zero::run_ranks(2 * ranks, [&](zero::InProcess& world) {
      zero::InProcess comm = world.split(world.rank() / ranks, world.rank());
      zero::ShardedOptimizer<zero::InProcess, Stage, Precision> optimizer{comm, toy::model()};
      if (world.rank() < ranks) body(optimizer, comm.rank(), ranks);
    });
  }
};

/// Trains, saves at `saved_at` and goes on; what it held then, and at the end.
template <class From>
void train_and_save(
    From const& from, int ranks, std::string const& path, Held& then, Held& at_the_end) {
  std::mutex mutex;
  from.run(ranks, [&](auto& optimizer, int rank, int size) {
    toy::load(optimizer);
    checkpoint_tests::train(optimizer, rank, size, 0, saved_at);
    zero::Checkpoints checkpoints{path};
    zero::SaveReport const report = checkpoints.save(optimizer);
    collect(optimizer, then, mutex);
    CHECK(report.step == optimizer.steps());
    checkpoint_tests::train(optimizer, rank, size, saved_at, ends_at);
    collect(optimizer, at_the_end, mutex);
  });
  CHECK(then.ranks_agree);
}

/// Loads into an optimizer that has no values yet, and trains on if `trains`.
template <bool trains = true, class To>
void load_and_compare(
    To const& to, int ranks, std::string const& path, Held const& then, Held const& at_the_end) {
  std::mutex mutex;
  Held loaded;
  Held trained;
  to.run(ranks, [&](auto& optimizer, int rank, int size) {
    zero::Checkpoints checkpoints{path};
    auto const found = checkpoints.latest(optimizer);
    REQUIRE(found.has_value());
    zero::LoadReport const report = checkpoints.load(optimizer, *found);
    CHECK(report.step == optimizer.steps());
    collect(optimizer, loaded, mutex);
    if constexpr (trains) {
      checkpoint_tests::train(optimizer, rank, size, saved_at, ends_at);
      collect(optimizer, trained, mutex);
    }
  });
  auto const same = [](Held const& a, Held const& b) {
    return a.counters == b.counters && a.arrays == b.arrays &&
           (a.parameters.empty() || b.parameters.empty() || a.parameters == b.parameters) &&
           a.ranks_agree && b.ranks_agree;
  };
  CHECK(same(loaded, then));
  if constexpr (trains) CHECK(same(trained, at_the_end));
}

template <class... Stages, class Visit>
void for_each_stage(Visit const& visit) {
  (visit(Stages{}), ...);
}

/// Saves under `From` with these ranks and loads under all stages with the same or other ones.
template <class From, class... To>
void check_stages(std::vector<int> const& from_ranks, std::vector<int> const& to_ranks) {
  for (int const ranks : from_ranks) {
    checkpoint_tests::TemporaryDirectory const directory;
    Held then;
    Held at_the_end;
    train_and_save(Way<From, zero::Fp32>{{2000}}, ranks, directory.path(), then, at_the_end);
    for (int const others : to_ranks) {
      for_each_stage<To...>([&]<class Stage>(Stage) {
        INFO("from " << std::string(From::name) << " on " << ranks << " to "
                     << std::string(Stage::name) << " on " << others);
        load_and_compare(
            Way<Stage, zero::Fp32>{{9000}}, others, directory.path(), then, at_the_end);
      });
    }
  }
}

template <class From, class To>
void check_pair(From const& from, int ranks, To const& to, int others) {
  checkpoint_tests::TemporaryDirectory const directory;
  Held then;
  Held at_the_end;
  train_and_save(from, ranks, directory.path(), then, at_the_end);
  load_and_compare(to, others, directory.path(), then, at_the_end);
}

}  // namespace

TEST_CASE("any stage loads what any stage saved, on as many ranks or others") {
  // Units share gather groups in some of these worlds, and in one they do not.
  auto const joined = [](int ranks) {
    return Way<PosGP, zero::Fp32>::Optimizer::plan({.world_size = ranks}, toy::model())
        .joined_units;
  };
  CHECK(joined(1) == 0);
  CHECK(joined(2) == 2);
  CHECK(joined(8) == 4);
  check_stages<Replicated, Replicated, PosGP>({3}, {2});
  check_stages<Pos, Replicated, PosG>({1}, {5});
  check_stages<PosG, Pos, PosG>({8}, {3});
  check_stages<PosGP, Replicated, Pos, PosG, PosGP>({2}, {1, 2, 8});
  check_stages<PosGP, PosGP>({1}, {8});
}

TEST_CASE("[full] stages x stages x ranks x ranks") {
  std::vector<int> const ranks(std::begin(all_ranks), std::end(all_ranks));
  check_stages<Replicated, Replicated, Pos, PosG, PosGP>(ranks, ranks);
  check_stages<Pos, Replicated, Pos, PosG, PosGP>(ranks, ranks);
  check_stages<PosG, Replicated, Pos, PosG, PosGP>(ranks, ranks);
  check_stages<PosGP, Replicated, Pos, PosG, PosGP>(ranks, ranks);
}

TEST_CASE("precisions, rules, memory, accumulation and sub-groups, in pairs") {
  using Bf16 = zero::Mixed<zero::bf16>;
  using Fp16 = zero::Mixed<zero::fp16>;
  check_pair(Way<Pos, Bf16>{}, 2, Way<PosGP, Bf16>{{512}}, 3);
  check_pair(Way<PosGP, Bf16, zero::AccumulateShard>{}, 3, LentWay<Pos, Bf16>{}, 2);
  check_pair(LentWay<PosG, zero::Fp32>{}, 5, Way<Replicated, zero::Fp32>{}, 2);
  check_pair(SubgroupWay<Replicated, Bf16>{}, 2, Way<Pos, Bf16>{}, 1);
  check_pair(Way<PosG, Fp16, zero::Sgd>{}, 2, Way<PosGP, Fp16, zero::Sgd>{}, 5);
  check_pair(Way<PosG, zero::Fp32, zero::Lion, zero::AccumulateFull>{},
             3,
             Way<PosGP, zero::Fp32, zero::Lion>{},
             2);
}

TEST_CASE("memory that the host cannot reach is filled and read in pieces") {
  using Bf16 = zero::Mixed<zero::bf16>;
  checkpoint_tests::TemporaryDirectory const host;
  Held then;
  Held at_the_end;
  train_and_save(Way<Pos, Bf16>{}, 2, host.path(), then, at_the_end);
  checkpoint_tests::TemporaryDirectory const device;
  std::mutex mutex;
  Held loaded;
  DeviceWay<PosGP, Bf16>{}.run(3, [&](auto& optimizer, int, int) {
    zero::Checkpoints{host.path()}.load(optimizer, *zero::Checkpoints{host.path()}.latest());
    collect(optimizer, loaded, mutex);
    zero::Checkpoints{device.path()}.save(optimizer);
  });
  CHECK(loaded.arrays == then.arrays);
  CHECK(loaded.counters == then.counters);
  load_and_compare(Way<Replicated, Bf16>{}, 5, device.path(), then, at_the_end);
  load_and_compare<false>(DeviceWay<Replicated, Bf16>{}, 1, device.path(), then, at_the_end);
}

}  // namespace product_test
