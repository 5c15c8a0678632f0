// What one optimizer saved, any other loads: the same bits right after the load, and after more
// steps those of a run that never stopped.
#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/proof.hpp"
#include "support/lent_memory.hpp"
#include "trapped_space.hpp"

namespace product_test {
namespace {

using namespace checkpoint_tests;
using zero::Checkpoints;
using zero::InProcess;
using namespace zero::stage;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

constexpr long saved_at = 3;
constexpr long ends_at = 5;

/// One way to hold the model, over threads.
template <class... Policies>
struct Way {
  zero::Bucket bucket{};

  using Optimizer = zero::ShardedOptimizer<InProcess, Policies...>;

  template <class Body>
  void run(int ranks, Body const& body) const {
    zero::run_ranks(ranks, [&](InProcess& comm) {
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
    zero::run_ranks(ranks, [&](InProcess& comm) {
      zero::ShardedOptimizer<InProcess, Stage, Precision, zero::Borrowed<>> optimizer{comm,
                                                                                      toy::model()};
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
template <class Stage>
struct DeviceWay {
  template <class Body>
  void run(int ranks, Body const& body) const {
    zero::run_ranks(ranks, [&](InProcess& inner) {
      using Owned = zero::Owned<trapped::Allocator>;
      trapped::Device device;
      trapped::Communicator comm(inner, device, trapped::Collectives::late);
      zero::ShardedOptimizer<trapped::Communicator, Stage, Bf16, Owned> optimizer{
          comm, toy::model(), Owned{{&device}}, zero::Bucket{4096}};
      body(optimizer, comm.rank(), ranks);
      device.synchronize();
    });
  }
};

/// Sub-groups of another group: rank r of the first half is rank r here, and the second half does
/// nothing.
template <class Stage, class Precision>
struct SubgroupWay {
  template <class Body>
  void run(int ranks, Body const& body) const {
    zero::run_ranks(2 * ranks, [&](InProcess& world) {
      InProcess comm = world.split(world.rank() / ranks, world.rank());
      zero::ShardedOptimizer<InProcess, Stage, Precision> optimizer{comm, toy::model()};
      if (world.rank() < ranks) body(optimizer, comm.rank(), ranks);
    });
  }
};

/// A run that saves at `saved_at` and goes on; what it held then, and at the end.
class SavedRun {
 public:
  template <class From>
  SavedRun(From const& from, int ranks) {
    std::mutex mutex;
    from.run(ranks, [&](auto& optimizer, int rank, int size) {
      toy::load(optimizer);
      checkpoint_tests::train(optimizer, rank, size, 0, saved_at);
      Checkpoints checkpoints{path()};
      zero::SaveReport const report = checkpoints.save(optimizer);
      collect(optimizer, then_, mutex);
      CHECK(report.step == optimizer.steps());
      checkpoint_tests::train(optimizer, rank, size, saved_at, ends_at);
      collect(optimizer, at_the_end_, mutex);
    });
    CHECK(then_.ranks_agree);
  }
  [[nodiscard]] std::string const& path() const { return directory_.path(); }

  /// Loads it from there, or from `path`, into an optimizer that has no values yet, and trains on.
  template <class To>
  void check(To const& to, int ranks, std::string const& path, bool trains = true) const {
    std::mutex mutex;
    Held loaded;
    Held trained;
    to.run(ranks, [&](auto& optimizer, int rank, int size) {
      Checkpoints checkpoints{path};
      auto const found = checkpoints.latest(optimizer);
      REQUIRE(found.has_value());
      zero::LoadReport const report = checkpoints.load(optimizer, *found);
      CHECK(report.step == optimizer.steps());
      collect(optimizer, loaded, mutex);
      if (!trains) return;
      checkpoint_tests::train(optimizer, rank, size, saved_at, ends_at);
      collect(optimizer, trained, mutex);
    });
    CHECK(same(loaded, then_));
    if (trains) CHECK(same(trained, at_the_end_));
  }
  template <class To>
  void check(To const& to, int ranks) const {
    check(to, ranks, path());
  }

 private:
  static bool same(Held const& a, Held const& b) {
    return a.counters == b.counters && a.arrays == b.arrays &&
           (a.parameters.empty() || b.parameters.empty() || a.parameters == b.parameters) &&
           a.ranks_agree && b.ranks_agree;
  }
  TemporaryDirectory directory_;
  Held then_;
  Held at_the_end_;
};

template <class Visit>
void for_each_stage(Visit const& visit) {
  visit(Replicated{});
  visit(Pos{});
  visit(PosG{});
  visit(PosGP{});
}

}  // namespace

TEST_CASE("any stage loads what any stage saved, on as many ranks or others [full]") {
  // Units share gather groups in some of these worlds, and in one they do not. On 8 ranks, unit 2
  // fits into the padding of unit 1. Unit 0 does not join them, because it would have to gather the
  // frozen tensor of unit 1; nor does unit 3, with which they would gather twice as much.
  auto const joined = [](int ranks) {
    return Way<PosGP, zero::Fp32>::Optimizer::plan({.world_size = ranks}, toy::model())
        .joined_units;
  };
  CHECK(joined(1) == 0);
  CHECK(joined(2) == 2);
  CHECK(joined(8) == 2);
  for_each_stage([]<class From>(From) {
    for (int const ranks : {1, 2, 3, 5, 8}) {
      SavedRun const saved(Way<From, zero::Fp32>{{2000}}, ranks);
      for_each_stage([&]<class To>(To) {
        for (int const others : {1, 2, 3, 5, 8}) {
          INFO("from " << std::string(From::name) << " on " << ranks << " to "
                       << std::string(To::name) << " on " << others);
          saved.check(Way<To, zero::Fp32>{{9000}}, others);
        }
      });
    }
  });
}

TEST_CASE("precisions, rules, memory, accumulation and sub-groups, in pairs") {
  auto const check = [](auto from, int ranks, auto to, int others) {
    SavedRun(from, ranks).check(to, others);
  };
  check(Way<Pos, Bf16>{}, 2, Way<PosGP, Bf16>{{512}}, 3);
  check(Way<PosGP, Bf16, zero::AccumulateShard>{}, 3, LentWay<Pos, Bf16>{}, 2);
  check(LentWay<PosG, zero::Fp32>{}, 5, Way<Replicated, zero::Fp32>{}, 2);
  check(SubgroupWay<Replicated, Bf16>{}, 2, Way<Pos, Bf16>{}, 1);
  check(Way<PosGP, Fp16, zero::Sgd>{}, 2, Way<PosGP, Fp16, zero::Sgd>{{512}}, 5);
  check(Way<PosG, zero::Fp32, zero::Lion, zero::AccumulateFull>{},
        3,
        Way<PosG, zero::Fp32, zero::Lion>{},
        2);
}

TEST_CASE("memory that the host cannot reach is filled and read in pieces") {
  SavedRun const host(Way<Pos, Bf16>{}, 2);
  TemporaryDirectory const device;
  DeviceWay<PosGP>{}.run(3, [&](auto& optimizer, int, int) {
    Checkpoints run{host.path()};
    run.load(optimizer, *run.latest());
    Checkpoints{device.path()}.save(optimizer);
  });
  host.check(DeviceWay<PosGP>{}, 3, host.path(), false);
  host.check(Way<Replicated, Bf16>{}, 5, device.path());
  host.check(DeviceWay<PosGP>{}, 1, device.path(), false);
}

}  // namespace product_test
