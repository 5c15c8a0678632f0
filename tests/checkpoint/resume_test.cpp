#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/proof.hpp"

// A run goes on from the newest checkpoint that is whole, and never from states that another rule
// has left.
namespace resume_test {
namespace {

using namespace checkpoint_tests;
using zero::InProcess;

constexpr int ranks = 2;
std::vector<zero::Tensor> const model{{.name = "w", .shape = {40, 30}},
                                      {.name = "v", .shape = {9}, .unit = 1}};
template <class Rule = zero::AdamW>
using Trained = zero::ShardedOptimizer<InProcess, zero::stage::PosG, zero::Fp32, Rule>;

std::string path_of(int step) {
  return "run/00000" + std::to_string(step) + "-step-" + std::to_string(step);
}

/// Checkpoints of steps 1 to 3, and what was held after each.
std::vector<Held> save_three(ModelFiles& files) {
  std::vector<Held> held(4);
  std::mutex mutex;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Trained<> optimizer(comm, model, zero::Bucket{512});
    toy::load(optimizer);
    zero::Checkpoints run("run", {}, files);
    for (int step = 1; step <= 3; ++step) {
      checkpoint_tests::train(optimizer, comm.rank(), ranks, step - 1, step);
      CHECK(run.save(optimizer).path == path_of(step));
      collect(optimizer, held[static_cast<std::size_t>(step)], mutex);
    }
  });
  files.settle();
  return held;
}

/// What a run that is resumed on as many ranks is told and holds.
struct Resumed {
  std::string failure{};
  std::vector<std::string> skipped{};
  long step = -1;
  Held held{};
};

Resumed resume(ModelFiles& files) {
  std::vector<Resumed> told(ranks);
  std::mutex mutex;
  Held held;
  std::string const failure = failure_of_all(ranks, [&](InProcess& comm) {
    Trained<> optimizer(comm, model, zero::Bucket{512});
    toy::load(optimizer);
    Resumed& own = told[static_cast<std::size_t>(comm.rank())];
    auto const report = zero::Checkpoints("run", {}, files).resume(optimizer);
    own.skipped = report ? report->skipped : own.skipped;
    own.step = report ? report->step : 0;
    collect(optimizer, held, mutex);
    // Nothing of what was passed over is in the way of what follows.
    checkpoint_tests::train(optimizer, comm.rank(), ranks, own.step, own.step + 1);
  });
  for (Resumed const& each : told) {
    CHECK(each.skipped == told[0].skipped);
    CHECK(each.step == told[0].step);
  }
  return {failure, told[0].skipped, told[0].step, held};
}

TEST_CASE("resume passes over damaged checkpoints, in order, and says so on every rank") {
  ModelFiles sound;
  auto const held = save_three(sound);
  constexpr std::size_t header = 40, data = 1u << 30;  // the last byte
  for (std::size_t const at : {header, data}) {
    for (std::size_t const rank : {0u, 1u}) {
      ModelFiles files = sound.crashed(0, 0);
      for (int broken = 3; broken >= 1; --broken) {
        std::string const file = path_of(broken) + "/" + rank_file(rank);
        std::string bytes = read_all(files, file);
        bytes[std::min(at, bytes.size() - 1)] ^= 1;
        write_all(files, file, bytes);
        Resumed const told = resume(files);
        if (broken == 1) {
          CHECK(told.failure.starts_with("data: "));
          check_says(told.failure, "no checkpoint in 'run' is complete; the newest: ");
          check_says(told.failure, path_of(3));
          continue;
        }
        CHECK(told.failure == "");
        CHECK(told.step == broken - 1);
        CHECK(told.held == held[static_cast<std::size_t>(broken - 1)]);
        REQUIRE(told.skipped.size() == static_cast<std::size_t>(4 - broken));
        for (int i = 0; i < 4 - broken; ++i)
          check_says(told.skipped[static_cast<std::size_t>(i)], path_of(3 - i));
        auto const newest = zero::Checkpoints("run", {}, files).latest();
        CHECK(newest->step == (at == header ? broken - 1 : 3));
      }
    }
  }
}

TEST_CASE("resume starts anew without checkpoints, and falls back to none that fits by chance") {
  ModelFiles none;
  CHECK(resume(none).step == 0);
  ModelFiles files;
  save_three(files);
  zero::run_ranks(1, [&](InProcess& comm) {
    Trained<> other(comm, {{.name = "w", .shape = {7}}});
    toy::load(other);
    zero::Checkpoints("run", {}, files).save(other);
  });
  std::string const failure = resume(files).failure;
  CHECK(failure.starts_with("data: "));
  check_says(failure, "does not fit this optimizer");
}

/// What a load of the newest says on so many ranks of an optimizer of these tensors.
template <class Rule>
std::string load(ModelFiles& files,
                 int size,
                 std::vector<zero::Tensor> const& tensors,
                 zero::LoadOptions const& options = {}) {
  return failure_of_all(size, [&](InProcess& comm) {
    Trained<Rule> optimizer(comm, tensors, Rule{});
    toy::load(optimizer);
    float const before = optimizer.parameter(0)[0];
    zero::Checkpoints("run", {}, files).load(optimizer, {.path = path_of(3)}, options);
    CHECK(optimizer.parameter(0)[0] != before);
    CHECK(optimizer.steps() == (options.parameters_only ? 0 : 3));
  });
}

TEST_CASE("what does not fit is told in full on every rank, and advice once") {
  ModelFiles files;
  save_three(files);
  std::vector<zero::Tensor> tensors;
  for (int i = 0; i < 100; ++i) {
    tensors.push_back({.name = "a tensor of a long name " + std::to_string(i), .shape = {3}});
  }
  check_says(load<zero::AdamW>(files, ranks, tensors),
             "'a tensor of a long name 99'; not in the optimizer: 'v', 'w'");
}

/// AdamW under another name, which knows its states. Adam has them as well, and does not.
struct Continued : zero::AdamW {
  static constexpr std::string_view name = "continued";
  static constexpr std::array<std::string_view, 1> states_of{"AdamW"};
};

TEST_CASE("states that another rule has left are refused by its name") {
  ModelFiles files;
  save_three(files);
  auto const check = [&]<class Rule>(Rule) {
    for (bool const strict : {true, false}) {
      CHECK(load<Rule>(files, 1, model, {.strict = strict}) ==
            "data: on rank 0: '" + path_of(3) +
                "' does not fit this optimizer: states of 'w' are of the rule AdamW, and would "
                "mean something else to " +
                std::string(Rule::name) + "; load parameters alone (LoadOptions::parameters_only)");
      CHECK(load<Rule>(files, 1, model, {.strict = strict, .parameters_only = true}) == "");
    }
  };
  check(zero::Adam{});
  check(zero::Lion{});
  check(zero::PlainSgd{});
  CHECK(load<zero::AdamW>(files, 1, model) == "");
  CHECK(load<Continued>(files, 1, model) == "");
}

}  // namespace
}  // namespace resume_test
