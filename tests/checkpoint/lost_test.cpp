#include "checkpoint/proof.hpp"
#include "checkpoint/worker.hpp"

#include <numeric>

// What a load that failed halfway has lost is known by tensor, alike on all ranks, and comes back
// by tensor.
namespace lost_test {
namespace {

using namespace checkpoint_tests;
using zero::InProcess;

/// Data of the first rank are not what was saved.
ModelFiles damaged(ModelFiles const& sound, std::string const& path) {
  ModelFiles files = sound.crashed(0, 0);
  std::string bytes = read_all(files, path + "/rank-00000.safetensors");
  bytes.back() ^= 1;
  write_all(files, path + "/rank-00000.safetensors", bytes);
  return files;
}

/// A tensor has another name, in what some of the ranks have saved.
ModelFiles renamed(ModelFiles const& sound,
                   std::string const& path,
                   std::string const& tensor,
                   std::vector<std::size_t> const& ranks) {
  ModelFiles files = sound.crashed(0, 0);
  for (std::size_t const rank : ranks) {
    reseal_header(files, path, rank, [&](auto& about, auto& header) {
      for (auto& entry : header.entries) {
        if (entry.name.starts_with(tensor + ":")) entry.name.insert(0, "another ");
      }
      if (!about.contains("optimizer")) return;
      for (auto& described : about["optimizer"]["tensors"]) {
        for (char const* const field : {"name", "tied_to"}) {
          if (described[field] == tensor) described[field] = "another " + tensor;
        }
      }
    });
  }
  return files;
}

auto load(
    ModelFiles& files, std::string const& path, Worker& worker, bool strict, bool first = false) {
  zero::Checkpoints run("run", {}, files);
  return run.load(worker.optimizer(),
                  {.path = path},
                  {.strict = strict, .verify_first = first, .parts = worker.parts()});
}

/// What step and save say, which has to be the same.
std::string said(Worker& worker, ModelFiles& files) {
  std::string const step = refusal([&] { worker.step(); });
  worker.optimizer().discard_gradients();
  std::string const save = refusal([&] {
    zero::Checkpoints run("other", {}, files);
    run.save(worker.optimizer(), {.parts = worker.parts()});
  });
  CHECK(save.find(step) != std::string::npos);
  return step;
}

TEST_CASE("what a failed load has lost comes back tensor by tensor, states by themselves") {
  auto all_ranks = everyone;
  for (int const data : {1, 2, 3}) all_ranks.push_back({.data = data, .rows = many_rows});
  std::string const end =
      " are neither the old nor the new; load a checkpoint or a model that has them";
  for (Ranks const& ranks : all_ranks) {
    ModelFiles sound;
    std::string const path = save(sound, ranks);
    ModelFiles bad = damaged(sound, path);
    std::vector<std::size_t> all(static_cast<std::size_t>(ranks.all()));
    std::iota(all.begin(), all.end(), std::size_t{0});
    // Neither under its own name nor under that of the tensor that is tied to it.
    ModelFiles untied = renamed(sound, path, "tied", all);
    untied.settle();
    ModelFiles without = renamed(untied, path, "v", all);
    REQUIRE(zero::verify_checkpoint(path, without).empty());
    for (bool const from_checkpoint : {true, false}) {
      zero::run_ranks(ranks.all(), [&](InProcess& world) {
        Worker worker(world, ranks);
        auto const before = worker.contents();
        CHECK(refusal([&] { load(bad, path, worker, true, true); }) == "of another kind");
        CHECK(worker.contents() == before);
        worker.step();
        CHECK(refusal([&] { load(bad, path, worker, true); }) == "of another kind");
        CHECK(said(worker, sound) ==
              "a load failed halfway: the values of tensor 'w' and of 3 more" + end);
        load(without, path, worker, false);
        CHECK(said(worker, sound) == "a load failed halfway: the values of tensor 'v'" + end);
        toy::load(worker.optimizer());
        CHECK(said(worker, sound)
                  .starts_with("a load failed halfway: the states of tensor 'v' are neither"));
        if (from_checkpoint) {
          load(sound, path, worker, true);
        } else {
          worker.optimizer().fill_owned(
              [&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
                std::ranges::fill(masters, 0.5f);
                for (auto const& state : states) std::ranges::fill(state, 0.25f);
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
  std::string const path = save(sound, ranks);
  ModelFiles bad = damaged(sound, path);
  // Those of the second place on the model axis.
  auto const files =
      zero::detail::parse_manifest("it", read_all(sound, path + "/manifest.json")).files;
  std::vector<std::size_t> second;
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    if (files[rank].leader != files[0].leader) second.push_back(rank);
  }
  REQUIRE(second.size() == 2);
  ModelFiles half = renamed(sound, path, "w", second);
  std::atomic<std::size_t> unfit = 0;
  zero::run_ranks(ranks.all(), [&](InProcess& world) {
    Worker worker(world, ranks);
    CHECK(refusal([&] { load(bad, path, worker, true); }) == "of another kind");
    unfit += load(half, path, worker, false).unfit.size();
    CHECK(said(worker, sound).starts_with("a load failed halfway: the values of tensor 'w' are"));
    load(sound, path, worker, true);
    worker.step();
  });
  CHECK(unfit == 2);
}

}  // namespace
}  // namespace lost_test
