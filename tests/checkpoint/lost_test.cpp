#include "checkpoint/resealed.hpp"
#include "checkpoint/worker.hpp"
#include "support/refusal.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <vector>

// What a load that failed halfway has lost is known by tensor, alike on all ranks, and comes back
// by tensor.
namespace lost_test {
namespace {

using checkpoint_tests::everyone;
using checkpoint_tests::many_rows;
using checkpoint_tests::ModelFiles;
using checkpoint_tests::Ranks;
using checkpoint_tests::Worker;
using nlohmann::json;
using zero::InProcess;
using ModelCheckpoints = zero::BasicCheckpoints<ModelFiles>;

/// Data of the first rank are not what was saved.
ModelFiles damaged(ModelFiles const& sound, std::string const& path) {
  ModelFiles files = sound.crashed(0, 0);
  std::string bytes = checkpoint_tests::read_all(files, path + "/rank-00000.safetensors");
  bytes.back() ^= 1;
  checkpoint_tests::write_all(files, path + "/rank-00000.safetensors", bytes);
  return files;
}

/// A tensor has another name, in what some of the ranks have saved.
ModelFiles renamed(ModelFiles const& sound,
                   std::string const& path,
                   std::string const& tensor,
                   std::vector<std::size_t> const& ranks) {
  ModelFiles files = sound.crashed(0, 0);
  for (std::size_t const rank : ranks) {
    checkpoint_tests::reseal_header(files, path, rank, [&](json& about, auto& header) {
      for (auto& entry : header.entries) {
        if (entry.name.starts_with(tensor + ":")) entry.name.insert(0, "another ");
      }
      if (!about.contains("optimizer")) return;
      for (json& described : about["optimizer"]["tensors"]) {
        for (char const* const field : {"name", "tied_to"}) {
          if (described[field] == tensor) described[field] = "another " + tensor;
        }
      }
    });
  }
  return files;
}

/// What step and save say, which has to be the same.
std::string said(Worker& worker, ModelFiles& files) {
  std::string const step = refusal([&] { worker.step(); });
  worker.optimizer().discard_gradients();
  std::string const save = refusal([&] {
    ModelCheckpoints run("other", {}, files);
    run.save(worker.optimizer(), {.parts = worker.parts()});
  });
  CHECK(save.find(step) != std::string::npos);
  return step;
}

TEST_CASE("what a failed load has lost comes back tensor by tensor, states by themselves") {
  auto all_ranks = everyone;
  for (int const data : {1, 2, 3}) all_ranks.push_back({.data = data, .rows = many_rows});
  for (Ranks const& ranks : all_ranks) {
    ModelFiles sound;
    std::string const path = checkpoint_tests::save(sound, ranks);
    ModelFiles bad = damaged(sound, path);
    std::vector<std::size_t> all;
    for (int rank = 0; rank < ranks.all(); ++rank) all.push_back(static_cast<std::size_t>(rank));
    ModelFiles without = renamed(sound, path, "v", all);
    REQUIRE(zero::verify_checkpoint(path, without).empty());
    for (bool const from_checkpoint : {true, false}) {
      zero::run_ranks(ranks.all(), [&](InProcess& world) {
        Worker worker(world, ranks);
        auto& optimizer = worker.optimizer();
        auto const load = [&](ModelFiles& files, bool strict, bool first = false) {
          ModelCheckpoints run("run", {}, files);
          run.load(optimizer,
                   {.path = path},
                   {.strict = strict, .verify_first = first, .parts = worker.parts()});
        };
        auto const before = worker.contents();
        CHECK(refusal([&] { load(bad, true, true); }) == "of another kind");
        CHECK(worker.contents() == before);
        worker.step();
        CHECK(refusal([&] { load(bad, true); }) == "of another kind");
        CHECK(said(worker, sound) ==
              "a load failed halfway: the values of tensor 'w' and of 3 more are neither the old "
              "nor the new; load a checkpoint or a model that has them");
        load(without, false);
        CHECK(said(worker, sound) ==
              "a load failed halfway: the values of tensor 'v' are neither the old nor the new; "
              "load a checkpoint or a model that has them");
        toy::load(optimizer);
        CHECK(said(worker, sound)
                  .starts_with("a load failed halfway: the states of tensor 'v' are neither"));
        if (from_checkpoint) {
          load(sound, true);
        } else {
          optimizer.fill_owned(
              [&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
                std::fill(masters.begin(), masters.end(), 0.5f);
                for (auto const& state : states) std::fill(state.begin(), state.end(), 0.25f);
              });
        }
        worker.step();
      });
    }
  }
}

TEST_CASE("a tensor of which one part alone was found stays lost on all ranks of a grid") {
  Ranks const ranks{2, 2};
  ModelFiles sound;
  std::string const path = checkpoint_tests::save(sound, ranks);
  ModelFiles bad = damaged(sound, path);
  // Those of the second place on the model axis.
  zero::Manifest const manifest = zero::detail::parse_manifest(
      "it", checkpoint_tests::read_all(sound, path + "/manifest.json"));
  std::vector<std::size_t> second;
  for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
    if (manifest.files[rank].leader != manifest.files[0].leader) second.push_back(rank);
  }
  REQUIRE(second.size() == 2);
  ModelFiles half = renamed(sound, path, "w", second);
  std::mutex mutex;
  std::size_t unfit = 0;
  zero::run_ranks(ranks.all(), [&](InProcess& world) {
    Worker worker(world, ranks);
    auto const load = [&](ModelFiles& files, bool strict) {
      ModelCheckpoints run("run", {}, files);
      return run.load(
          worker.optimizer(), {.path = path}, {.strict = strict, .parts = worker.parts()});
    };
    CHECK(refusal([&] { load(bad, true); }) == "of another kind");
    auto const report = load(half, false);
    {
      std::lock_guard const lock(mutex);
      unfit += report.unfit.size();
    }
    CHECK(said(worker, sound).starts_with("a load failed halfway: the values of tensor 'w' are"));
    load(sound, true);
    worker.step();
  });
  CHECK(unfit == 2);
}

}  // namespace
}  // namespace lost_test
