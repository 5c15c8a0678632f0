#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/model_files.hpp"
#include "checkpoint/resealed.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A run goes on from the newest checkpoint that is whole, and never from states that another rule
// has left.
namespace resume_test {
namespace {

using checkpoint_tests::Held;
using checkpoint_tests::ModelFiles;
using zero::ErrorKind;
using zero::InProcess;
using ModelCheckpoints = zero::BasicCheckpoints<ModelFiles>;

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
    ModelCheckpoints run("run", {}, files);
    for (int step = 1; step <= 3; ++step) {
      checkpoint_tests::train(optimizer, comm.rank(), ranks, step - 1, step);
      CHECK(run.save(optimizer).path == path_of(step));
      checkpoint_tests::collect(optimizer, held[static_cast<std::size_t>(step)], mutex);
    }
  });
  files.settle();
  return held;
}

void flip(ModelFiles& files, std::string const& file, std::size_t at) {
  std::string bytes = checkpoint_tests::read_all(files, file);
  bytes[at < bytes.size() ? at : bytes.size() - 1] ^= 1;
  checkpoint_tests::write_all(files, file, bytes);
}

/// What a rank is told: an error's kind and words, or what was passed over.
struct Told {
  std::optional<ErrorKind> kind{};
  std::string text{};
  std::vector<std::string> skipped{};
  long step = -1;
};

/// Resumes on as many ranks; all are told the same, and `held` is what they hold then.
Told resume(ModelFiles& files, Held& held, zero::LoadOptions const& options = {}) {
  std::vector<Told> told(ranks);
  std::mutex mutex;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Trained<> optimizer(comm, model, zero::Bucket{512});
    toy::load(optimizer);
    Told& own = told[static_cast<std::size_t>(comm.rank())];
    ModelCheckpoints run("run", {}, files);
    try {
      auto const report = run.resume(optimizer, options);
      own.skipped = report ? report->skipped : own.skipped;
      own.step = report ? report->step : 0;
    } catch (zero::Error const& error) {
      own.kind = error.kind();
      own.text = error.message();
      return;
    }
    checkpoint_tests::collect(optimizer, held, mutex);
    // Nothing of what was passed over is in the way of what follows.
    checkpoint_tests::train(optimizer, comm.rank(), ranks, own.step, own.step + 1);
  });
  for (Told const& each : told) {
    CHECK(each.kind == told[0].kind);
    CHECK(each.text == told[0].text);
    CHECK(each.skipped == told[0].skipped);
    CHECK(each.step == told[0].step);
  }
  return told[0];
}

TEST_CASE("resume passes over damaged checkpoints, in order, and says so on every rank") {
  ModelFiles sound;
  auto const held = save_three(sound);
  constexpr std::size_t header = 40, data = 1u << 30;  // the last byte
  struct Damage {
    int rank;  // whose file
    std::size_t at;
  };
  for (Damage const damage : {Damage{0, header}, {1, header}, {0, data}, {1, data}}) {
    ModelFiles files = sound.crashed(0, 0);
    for (int broken = 3; broken >= 1; --broken) {
      std::string const file =
          path_of(broken) + "/rank-0000" + std::to_string(damage.rank) + ".safetensors";
      flip(files, file, damage.at);
      Held now;
      Told const told = resume(files, now);
      if (broken == 1) {
        CHECK(told.kind == ErrorKind::data);
        CHECK_MESSAGE(
            told.text.find("no checkpoint in 'run' is complete; the newest: ") != std::string::npos,
            told.text);
        CHECK_MESSAGE(told.text.find(path_of(3)) != std::string::npos, told.text);
        continue;
      }
      CHECK(!told.kind);
      CHECK(told.step == broken - 1);
      CHECK(now == held[static_cast<std::size_t>(broken - 1)]);
      REQUIRE(told.skipped.size() == static_cast<std::size_t>(4 - broken));
      for (int i = 0; i < 4 - broken; ++i) {
        std::string const& words = told.skipped[static_cast<std::size_t>(i)];
        CHECK_MESSAGE(words.find(path_of(3 - i)) != std::string::npos, words);
      }
      ModelCheckpoints run("run", {}, files);
      auto const newest = run.latest();
      CHECK(newest->step == (damage.at == header ? broken - 1 : 3));
    }
  }
}

TEST_CASE("resume starts anew without checkpoints, and falls back to none that fits by chance") {
  ModelFiles none;
  Held now;
  CHECK(resume(none, now).step == 0);
  ModelFiles files;
  save_three(files);
  zero::run_ranks(1, [&](InProcess& comm) {
    Trained<> other(comm, {{.name = "w", .shape = {7}}});
    toy::load(other);
    ModelCheckpoints run("run", {}, files);
    run.save(other);
  });
  Told const told = resume(files, now);
  CHECK(told.kind == ErrorKind::data);
  CHECK_MESSAGE(told.text.find("does not fit this optimizer") != std::string::npos, told.text);
}

TEST_CASE("what does not fit is told in full on every rank, and advice once") {
  ModelFiles files;
  save_three(files);
  std::vector<std::string> told(ranks);
  zero::run_ranks(ranks, [&](InProcess& comm) {
    std::vector<zero::Tensor> tensors;
    for (int i = 0; i < 100; ++i) {
      tensors.push_back({.name = "a tensor of a long name " + std::to_string(i), .shape = {3}});
    }
    Trained<> optimizer(comm, tensors);
    toy::load(optimizer);
    ModelCheckpoints run("run", {}, files);
    try {
      run.load(optimizer, {.path = path_of(3)});
    } catch (zero::Error const& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.message();
    }
  });
  CHECK_MESSAGE(told[0].find("'a tensor of a long name 99'; not in the optimizer: 'v', 'w'") !=
                    std::string::npos,
                told[0]);
  CHECK(told[1] == told[0]);
}

/// AdamW under another name, which knows its states or does not.
struct Renamed : zero::AdamW {
  static constexpr std::string_view name = "renamed";
};
struct Continued : zero::AdamW {
  static constexpr std::string_view name = "continued";
  static constexpr std::array<std::string_view, 1> states_of{"AdamW"};
};

template <class Rule>
std::string load_under(ModelFiles& files, zero::LoadOptions const& options) {
  std::string words;
  zero::run_ranks(1, [&](InProcess& comm) {
    Trained<Rule> optimizer(comm, model, Rule{});
    toy::load(optimizer);
    ModelCheckpoints run("run", {}, files);
    try {
      run.load(optimizer, {.path = path_of(3)}, options);
    } catch (zero::Error const& error) {
      CHECK(error.kind() == ErrorKind::data);
      words = error.message();
    }
  });
  return words;
}

TEST_CASE("states that another rule has left are refused by its name") {
  ModelFiles files;
  save_three(files);
  auto const check = [&](auto rule) {
    using Rule = decltype(rule);
    for (bool const strict : {true, false}) {
      CHECK(load_under<Rule>(files, {.strict = strict}) ==
            "on rank 0: '" + path_of(3) +
                "' does not fit this optimizer: states of 'w' are of the rule AdamW, and would "
                "mean something else to " +
                std::string(Rule::name) + "; load parameters alone (LoadOptions::parameters_only)");
      CHECK(load_under<Rule>(files, {.strict = strict, .parameters_only = true}) == "");
    }
  };
  check(zero::Adam{});
  check(zero::Lion{});
  check(zero::PlainSgd{});
  check(Renamed{});
  CHECK(load_under<zero::AdamW>(files, {}) == "");
  CHECK(load_under<Continued>(files, {}) == "");
}

}  // namespace
}  // namespace resume_test
