// What is simulated is what runs: the library's own schedule, bytes and traffic, in virtual time.
#include "plan/model/step.hpp"
#include "plan/model/transformer.hpp"
#include "plan/model/world.hpp"
#include "plan/simulate/communicator.hpp"
#include "support/give_zeros.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace schedule_test {
namespace {

namespace simulate = plan::simulate;

/// What a rank's optimizer asks of its communicator, in order: starts, and what it waits for.
struct Asked {
  bool start = true;
  zero::Op op = zero::Op::all_gather;
  zero::DType dtype = zero::DType::f32;
  std::size_t count = 0;
  int bucket = -1;
  friend bool operator==(Asked const&, Asked const&) = default;
};

/// Writes down what has to do with buckets, and passes all on.
template <class C>
class Recording {
 public:
  using Space = typename C::Space;
  struct Ticket {
    typename C::Ticket inner{};
    Asked asked{};
  };

  Recording(C& comm, std::vector<Asked>& log) : comm_(&comm), log_(&log) {}
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }
  [[nodiscard]] Space space() const { return zero::detail::space_of(*comm_); }
  Ticket start(zero::Collective const& op) {
    Asked asked{true, op.op, op.dtype, op.count, op.bucket};
    if (op.bucket >= 0) log_->push_back(asked);
    asked.start = false;
    return {comm_->start(op), asked};
  }
  void wait(Ticket& ticket) {
    if (ticket.asked.bucket >= 0) log_->push_back(ticket.asked);
    comm_->wait(ticket.inner);
  }

 private:
  C* comm_;
  std::vector<Asked>* log_;
};

std::vector<zero::Tensor> model() {
  return {{.name = "wte", .shape = {701, 3}, .unit = 0},
          {.name = "a", .shape = {4099}, .unit = 1},
          {.name = "frozen", .shape = {77}, .unit = 1, .frozen = true},
          {.name = "b", .shape = {13, 1009}, .unit = 2},
          {.name = "head", .shape = {701, 3}, .unit = 3, .tied_to = "wte"},
          {.name = "ln", .shape = {5}, .unit = 3}};
}

/// Forward and backward.
template <class Optimizer>
void pass(Optimizer& optimizer) {
  for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit));
  for (int const unit : optimizer.units_backward()) {
    auto const parameters = optimizer.parameters(unit);
    optimizer.reduce(optimizer.gradients(unit));
  }
}

template <class Optimizer>
void train(Optimizer& optimizer) {
  optimizer.adopt_parameters();
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      optimizer.micro_step();
      pass(optimizer);
    }
    optimizer.step({.max_norm = 1.});
  }
  optimizer.settle();
}

template <class Stage, class Precision>
void same_schedule(int ranks) {
  CAPTURE(Stage::name);
  CAPTURE(Precision::name);
  CAPTURE(ranks);
  zero::Bucket const bucket{8192};
  std::vector<std::vector<Asked>> real(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    Recording recording(comm, real[static_cast<std::size_t>(comm.rank())]);
    zero::ShardedOptimizer optimizer{
        recording, model(), Stage{}, Precision{}, bucket, zero::AccumulateShard{}};
    train(optimizer);
  });
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Asked> log;
    plan::World world{plan::cluster_of("dgx-a100")};
    simulate::Communicator comm{world, {.size = ranks, .per_node = 2}, rank};
    Recording recording(comm, log);
    zero::ShardedOptimizer optimizer{
        recording, model(), Stage{}, Precision{}, bucket, zero::AccumulateShard{}, world.memory()};
    CHECK(optimizer.held() == optimizer.plan().memory);
    train(optimizer);
    CHECK(log == real[static_cast<std::size_t>(rank)]);
    CHECK(!log.empty());
    CHECK(optimizer.steps() == 3);
  }
}

TEST_CASE("a simulated rank asks for what a real one asks for, in the same order") {
  for (int const ranks : {1, 2, 3}) {
    same_schedule<zero::stage::Replicated, zero::Fp32>(ranks);
    same_schedule<zero::stage::Pos, zero::Mixed<zero::fp16>>(ranks);
    same_schedule<zero::stage::PosG, zero::Fp32>(ranks);
    same_schedule<zero::stage::PosG, zero::Mixed<zero::fp16>>(ranks);
    same_schedule<zero::stage::PosGP, zero::Mixed<zero::fp16>>(ranks);
  }
}

/// GPT-3-like layers: a trillion parameters.
std::vector<zero::Tensor> trillion() {
  return plan::describe({.layers = 128, .hidden = 25600, .heads = 160});
}

TEST_CASE("a trillion parameters on a hundred thousand ranks take moments, and no memory") {
  auto const begin = std::chrono::steady_clock::now();
  plan::World world{plan::cluster_of("dgx-h100")};
  simulate::Communicator comm{world, {.size = 100'000, .per_node = 8}};
  zero::Counting counted{comm};
  zero::ShardedOptimizer optimizer{
      counted, trillion(), zero::stage::PosGP{}, zero::Mixed<zero::fp16>{}, world.memory()};
  CHECK(optimizer.partition().placement().trainable_elements() > 1'000'000'000'000);
  CHECK(optimizer.held() == optimizer.plan().memory);
  optimizer.adopt_parameters();
  optimizer.check_parameters();
  for (int step = 0; step < 2; ++step) {
    counted.reset();
    pass(optimizer);
    zero::StepReport const report = optimizer.step({.max_norm = 1.});
    CHECK(report.step == step + 1);
    CHECK(report.grad_norm == 0.);
    optimizer.settle();
  }
  // The second step has no gather that the first one has asked for in advance.
  CHECK(counted.counts().bucket_total().elements == optimizer.plan().traffic.total());
  CHECK(world.timeline().exposed() > 1.);
  std::chrono::duration<double> const taken = std::chrono::steady_clock::now() - begin;
  CHECK(taken.count() < 10.);
}

TEST_CASE("ranks that overflow or differ are told by words of control as ever") {
  plan::World world{plan::cluster_of("dgx-h100")};
  simulate::Communicator comm{world, {.size = 1000, .per_node = 8}, 7};
  zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosG{}, world.memory()};
  CHECK_THROWS_AS(optimizer.step(), zero::Error);  // no values were set
  optimizer.adopt_parameters();
  // The step that failed has reduced what there was.
  zero::StepOptions const again{.learning_rate = 0.25f, .unsaid = zero::Unsaid::zeros};
  CHECK(optimizer.step(again).step == 1);
  CHECK_THROWS_AS(optimizer.step({.max_norm = -1.}), zero::Error);
  optimizer.micro_step({.weight = 0.});
  give_zeros(optimizer);
  CHECK_THROWS_AS(optimizer.step(), zero::Error);
}

TEST_CASE("a machine says how long collectives and kernels take") {
  auto const collective = [](simulate::Placement const&, simulate::CollectiveSize const&) {
    return simulate::CollectiveCost{};
  };
  CHECK_THROWS_WITH_AS(simulate::World({.collective = collective, .pass = {}}),
                       doctest::Contains("how long kernels take"),
                       zero::Error);
  CHECK_THROWS_WITH_AS(simulate::World({.collective = {}, .pass = {}}),
                       doctest::Contains("how long collectives take"),
                       zero::Error);
}

}  // namespace
}  // namespace schedule_test
