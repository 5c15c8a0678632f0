#include "zero/comm/grid.hpp"

#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/proof.hpp"
#include "zero/checkpoint/offline.hpp"

// Checkpoints and models of optimizers over a grid: what is on disk is the whole model, whatever
// grid it is from, and any grid goes on from it.
namespace grid_test {
namespace {

using namespace checkpoint_tests;
using zero::Checkpoints;
using zero::Grid;
using zero::InProcess;
using namespace zero::stage;

/// A tensor of the whole model, and how a model axis divides it.
struct Whole {
  char const* name;
  std::vector<std::size_t> shape;
  int axis = -1;             ///< that is divided; -1: all have all of it
  std::size_t sections = 1;  ///< of that axis, each of which is divided
  bool frozen = false;
  char const* tied_to = "";
};

/// Up to four ranks divide it.
std::vector<Whole> const whole_model = {
    {"embedding", {24, 5}, 0},
    {"places", {301}},
    {"scalar", {}},
    {"heads", {36, 7}, 0, 3},
    {"back", {7, 12}, 1},
    {"bias", {7}},
    {"still", {13}, -1, 1, true},
    {"cold", {3, 8}, 1, 1, true},
    {"head", {24, 5}, 0, 1, false, "embedding"},
};

/// One rank's part of the model.
struct Part {
  std::vector<zero::Tensor> tensors{};
  std::vector<zero::TensorPart> parts{};
  std::vector<std::vector<std::size_t>> places{};  ///< of each tensor's elements in the whole one

  Part(int model, int rank) {
    for (Whole const& each : whole_model) {
      zero::Tensor tensor{.name = each.name,
                          .shape = each.shape,
                          .unit = each.shape.size() == 2 ? 0 : 1,
                          .frozen = each.frozen,
                          .tied_to = each.tied_to};
      std::vector<std::size_t>& own = places.emplace_back();
      if (each.axis < 0) {
        for (std::size_t i = 0; i < zero::element_count(tensor); ++i) own.push_back(i);
        tensors.push_back(std::move(tensor));
        continue;
      }
      zero::TensorPart part{each.name, {each.shape.begin(), each.shape.end()}};
      auto const axis = static_cast<std::size_t>(each.axis);
      std::size_t const section = each.shape[axis] / each.sections;
      std::size_t const share = section / static_cast<std::size_t>(model);
      for (std::size_t s = 0; s < each.sections; ++s) {
        std::size_t begin[2] = {};
        std::size_t extent[2] = {each.shape[0], each.shape[1]};
        begin[axis] = s * section + share * static_cast<std::size_t>(rank);
        extent[axis] = share;
        part.boxes.push_back({{begin[0], begin[1]}, {extent[0], extent[1]}});
        for (std::size_t i = 0; i < extent[0] * extent[1]; ++i) {
          own.push_back((begin[0] + i / extent[1]) * each.shape[1] + begin[1] + i % extent[1]);
        }
      }
      tensor.shape[axis] = share * each.sections;
      tensor.partitioned = model > 1;
      if (model > 1) parts.push_back(part);
      tensors.push_back(std::move(tensor));
    }
  }
};

/// What a rank of a grid works with.
template <class Stage>
struct Worker {
  Grid<InProcess> grid;
  Part part;
  zero::ShardedOptimizer<InProcess, Stage, zero::Mixed<zero::bf16>> optimizer;

  Worker(InProcess& world, int model)
      : grid(world, world.size() / model, model),
        part(model, grid.model().rank()),
        optimizer(grid, part.tensors, zero::Bucket{1000}, zero::AdamW{.lr = 0.01f}) {}

  void load_initial() {
    auto const* const first_tensor = optimizer.tensors().data();
    optimizer.load_parameters(
        [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
          auto const t = static_cast<std::size_t>(&tensor - first_tensor);
          for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = toy::initial_value(t == 8 ? 0 : t, part.places[t][first + i]);
          }
        });
  }
  /// Steps [first, last). No norm is clipped, so that no grid rounds differently.
  void train(long first, long last) {
    checkpoint_tests::train(optimizer,
                            grid.data().rank(),
                            grid.data().size(),
                            first,
                            last,
                            {},
                            [&](std::size_t t, std::size_t e) { return part.places[t][e]; });
  }
  void save(Checkpoints& run) { run.save(optimizer, {.parts = part.parts}); }
  void export_to(std::string const& path, zero::ExportDType dtype = {}) {
    zero::export_model(optimizer, path, {.dtype = dtype, .parts = part.parts});
  }
};

/// All arrays of a checkpoint as whole tensors, bit for bit.
using Arrays = std::map<std::string, std::vector<std::byte>>;

Arrays arrays_in(std::string const& path) {
  zero::DiskFiles files;
  zero::Catalog const catalog = zero::read_catalog(files, path);
  zero::CheckpointReader reader(files, catalog);
  Arrays all;
  for (auto const& [name, tensor] : catalog.tensors) {
    for (auto const& [array, saved] : tensor.arrays) {
      std::uint64_t const count = zero::detail::volume(tensor.about.shape);
      auto& bytes = all[name + " " + array];
      bytes.resize(static_cast<std::size_t>(count) * zero::size_of(saved.dtype));
      reader.read(saved, 0, count, saved.dtype, bytes.data());
    }
  }
  return all;
}

std::string const first_name = "/000001-step-3";
std::string const second_name = "/000002-step-5";

/// All that a run leaves in its directory.
struct Left {
  Arrays then;
  Arrays later;
  std::string model;

  explicit Left(std::string const& at)
      : then(arrays_in(at + first_name)),
        later(arrays_in(at + second_name)),
        model(slurp(at + "/model")) {}
  friend bool operator==(Left const&, Left const&) = default;
};

/// Trains `model`-wise to step 3, saves and exports, goes on to step 5 and saves again.
template <class Stage>
void train_and_save(int data, int model, std::string const& at) {
  zero::run_ranks(data * model, [&](InProcess& world) {
    Worker<Stage> worker(world, model);
    worker.load_initial();
    worker.train(0, 3);
    Checkpoints run{at};
    worker.save(run);
    worker.export_to(at + "/model");
    worker.export_to(at + "/masters", zero::ExportDType::master);
    worker.train(3, 5);
    worker.save(run);
  });
}

/// Loads the first checkpoint in `from`, saves it again without a step, and goes on to step 5.
template <class Stage>
void load_and_save(int data, int model, std::string const& from, std::string const& at) {
  zero::run_ranks(data * model, [&](InProcess& world) {
    Worker<Stage> worker(world, model);
    Checkpoints source{from, {.lock = false}};
    CHECK(source.latest(worker.optimizer)->number == 2);
    zero::LoadReport const report =
        source.load(worker.optimizer, source.list().front(), {.parts = worker.part.parts});
    CHECK(report.step == 3);
    CHECK(report.missing.empty());
    Checkpoints run{at, {.snapshot_bytes = Checkpoints::plan(worker.optimizer)}};
    run.save_async(worker.optimizer, {.parts = worker.part.parts});
    run.finish();
    worker.export_to(at + "/model");
    worker.train(3, 5);
    worker.save(run);
  });
}

TEST_CASE("a checkpoint is of the whole model, and goes on over any other grid") {
  TemporaryDirectory const directory;
  std::string const whole = directory.path() + "/whole";
  train_and_save<Replicated>(1, 1, whole);
  Left const expected(whole);
  CHECK(expected.then != expected.later);
  CHECK(expected.then.size() == 3 * 6 + 2);
  std::string const masters = slurp(whole + "/masters");
  CHECK(expected.model.size() != masters.size());

  struct Axes {
    int data;
    int model;
    std::string name = std::to_string(data) + "x" + std::to_string(model);
  };
  std::vector<Axes> const grids = {{2, 1}, {1, 2}, {2, 2}, {1, 4}};
  for (Axes const& axes : grids) {
    CAPTURE(axes.name);
    std::string const at = directory.path() + "/" + axes.name;
    train_and_save<PosGP>(axes.data, axes.model, at);
    CHECK(zero::verify_checkpoint(at + first_name).empty());
    CHECK(Left(at) == expected);
    CHECK(slurp(at + "/masters") == masters);
    zero::export_checkpoint(at + first_name, at + "/offline");
    CHECK(slurp(at + "/offline") == expected.model);
    for (Axes const& other : grids) {
      CAPTURE(other.name);
      std::string const there = at + "/" + other.name;
      load_and_save<PosGP>(other.data, other.model, at, there);
      CHECK(Left(there) == expected);
    }
    load_and_save<Replicated>(2, 2, at, at + "/replicated");
    CHECK(Left(at + "/replicated") == expected);
  }
}

TEST_CASE("a rank may have nothing to save") {
  TemporaryDirectory const directory;
  zero::run_ranks(2, [&](InProcess& world) {
    Grid grid{world, 1, 2};
    zero::ShardedOptimizer<InProcess, PosGP, zero::Mixed<zero::bf16>> optimizer{
        grid, {{.name = "all have", .shape = {5}}}};
    toy::load(optimizer);
    std::uint64_t const bytes = Checkpoints::plan(optimizer);
    CHECK((bytes == 0) == (world.rank() == 1));
    Checkpoints run{directory.path(), {.snapshot_bytes = bytes}};
    run.save_async(optimizer);
    run.finish();
    run.save(optimizer);
    CHECK(run.load(optimizer, *run.latest(optimizer)).missing.empty());
  });
  CHECK(zero::verify_checkpoint(directory.path() + "/000001-step-0").empty());
  CHECK(zero::verify_checkpoint(directory.path() + "/000002-step-0").empty());
}

/// All ranks of a 2 x 2 grid get an error that says this.
template <class Call>
void check_all_say(std::string const& words, Call&& call) {
  auto const told = failures(4, [&](InProcess& world) {
    Worker<PosGP> worker(world, 2);
    worker.load_initial();
    call(worker);
  });
  for (std::string const& text : told) {
    CHECK(text.starts_with("invalid argument: "));
    check_says(text, words);
  }
}

TEST_CASE("all ranks of a grid refuse what one of them cannot do") {
  TemporaryDirectory const directory;
  std::string const at = directory.path() + "/run";
  std::string const untold =
      "tensor 'embedding' is partitioned over the model axis, and no TensorPart says which part";
  check_all_say(untold, [&](auto& worker) { Checkpoints{at}.save(worker.optimizer); });
  check_all_say(untold, [&](auto& worker) { zero::export_model(worker.optimizer, at + "model"); });
  CHECK(Checkpoints{at}.list().empty());
  train_and_save<PosGP>(2, 2, at);
  check_all_say(untold, [&](auto& worker) {
    Checkpoints run{at};
    run.load(worker.optimizer, *run.latest());
  });
  // One rank of one model axis is told something else.
  check_all_say("on rank 3: the part of tensor 'heads' has a box that reaches out of its shape",
                [&](auto& worker) {
                  Checkpoints run{at};
                  auto parts = worker.part.parts;
                  if (worker.grid.world().rank() == 3) parts[1].boxes[0].offset[0] = 36;
                  run.load(worker.optimizer, *run.latest(), {.parts = parts});
                });
  check_all_say("ranks load different checkpoints", [&](auto& worker) {
    Checkpoints run{at};
    auto const which = worker.grid.model().rank() == 1 ? 0u : 1u;
    run.load(worker.optimizer, run.list()[which], {.parts = worker.part.parts});
  });
  check_all_say("ranks export to different paths", [&](auto& worker) {
    worker.export_to(at + (worker.grid.model().rank() == 1 ? "a" : "b"));
  });
}

}  // namespace
}  // namespace grid_test
