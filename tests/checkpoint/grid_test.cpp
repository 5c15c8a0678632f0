#include "zero/comm/grid.hpp"

#include "checkpoint/stored_model.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "contracts/loop.hpp"
#include "support/refusal.hpp"
#include "support/toy_model.hpp"
#include "zero/checkpoint.hpp"
#include "zero/checkpoint/offline.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Checkpoints and models of optimizers over a grid: what is on disk is the whole model, whatever
// grid it is from, and any grid goes on from it.
namespace grid_test {
namespace {

using checkpoint_tests::slurp;
using checkpoint_tests::TemporaryDirectory;
using zero::Grid;
using zero::InProcess;
using zero::stage::PosGP;
using zero::stage::Replicated;

constexpr int batches = 4;  ///< of a step, shared by the data axis

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
      zero::TensorPart part{each.name, {each.shape.begin(), each.shape.end()}};
      std::vector<std::size_t> own;
      auto const box =
          [&](std::size_t row, std::size_t rows, std::size_t column, std::size_t columns) {
            part.boxes.push_back({{row, column}, {rows, columns}});
            for (std::size_t r = row; r < row + rows; ++r) {
              for (std::size_t c = column; c < column + columns; ++c) {
                own.push_back(r * each.shape[1] + c);
              }
            }
          };
      if (each.axis < 0) {
        for (std::size_t i = 0; i < zero::element_count(tensor); ++i) own.push_back(i);
      } else {
        auto& extent = tensor.shape[static_cast<std::size_t>(each.axis)];
        std::size_t const section = extent / each.sections;
        std::size_t const share = section / static_cast<std::size_t>(model);
        std::size_t const begin = share * static_cast<std::size_t>(rank);
        for (std::size_t s = 0; s < each.sections; ++s) {
          if (each.axis == 0) box(s * section + begin, share, 0, each.shape[1]);
          if (each.axis == 1) box(0, each.shape[0], s * section + begin, share);
        }
        extent = share * each.sections;
        tensor.partitioned = model > 1;
        if (model > 1) parts.push_back(part);
      }
      tensors.push_back(std::move(tensor));
      places.push_back(std::move(own));
    }
  }
};

/// Exact in sums of any grouping.
float value(std::size_t tensor, std::size_t element, int of) {
  float const uniform = toy::uniform(tensor, element, static_cast<std::uint64_t>(of));
  return static_cast<float>(static_cast<int>(uniform * 16.f)) / 8.f - 1.f;
}

template <class Stage>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, zero::Mixed<zero::bf16>>;

/// What a rank of a grid works with.
template <class Stage>
struct Worker {
  Grid<InProcess> grid;
  Part part;
  Optimizer<Stage> optimizer;

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
            out[i] = value(t == 8 ? 0 : t, part.places[t][first + i], 1000);
          }
        });
  }
  /// Steps [first, last). No norm is clipped, so that no grid rounds differently.
  void train(int first, int last) {
    int const each = batches / grid.data().size();
    for (int step = first; step < last; ++step) {
      int const begin = step * batches + grid.data().rank() * each;
      optimizer.micro_step({.weight = static_cast<double>(each), .last = true});
      for (int const unit : optimizer.units_backward()) {
        auto gradients = optimizer.gradients(unit);
        contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
          if (optimizer.tensors()[t].frozen) return;
          auto const out = gradients[i];
          for (std::size_t e = 0; e < out.size(); ++e) {
            float sum = static_cast<float>(out[e]);
            for (int m = begin; m < begin + each; ++m) sum += value(t, part.places[t][e], m);
            out[e] = zero::bf16(sum);
          }
        });
        optimizer.reduce(std::move(gradients));
      }
      optimizer.step();
    }
  }
};

/// All arrays of a checkpoint as whole tensors, bit for bit.
std::map<std::string, std::vector<std::byte>> arrays_in(std::string const& path) {
  zero::DiskFiles files;
  zero::Catalog const catalog = zero::read_catalog(files, path);
  zero::CheckpointReader reader(files, catalog);
  std::map<std::string, std::vector<std::byte>> all;
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

/// Trains `model`-wise to step 3, saves and exports, goes on to step 5 and saves again.
template <class Stage>
void train_and_save(int data, int model, std::string const& at) {
  zero::run_ranks(data * model, [&](InProcess& world) {
    Worker<Stage> worker(world, model);
    worker.load_initial();
    worker.train(0, 3);
    zero::Checkpoints run{at};
    run.save(worker.optimizer, {.parts = worker.part.parts});
    zero::export_model(worker.optimizer, at + "/model", {.parts = worker.part.parts});
    zero::export_model(worker.optimizer,
                       at + "/masters",
                       {.dtype = zero::ExportDType::master, .parts = worker.part.parts});
    worker.train(3, 5);
    run.save(worker.optimizer, {.parts = worker.part.parts});
  });
}

/// Loads the first checkpoint in `from`, saves it again without a step, and goes on to step 5.
template <class Stage>
void load_and_save(int data, int model, std::string const& from, std::string const& at) {
  zero::run_ranks(data * model, [&](InProcess& world) {
    Worker<Stage> worker(world, model);
    zero::Checkpoints source{from, {.lock = false}};
    CHECK(source.latest(worker.optimizer)->number == 2);
    zero::LoadReport const report =
        source.load(worker.optimizer, source.list().front(), {.parts = worker.part.parts});
    CHECK(report.step == 3);
    CHECK(report.missing.empty());
    zero::Checkpoints run{at, {.snapshot_bytes = zero::Checkpoints::plan(worker.optimizer)}};
    run.save_async(worker.optimizer, {.parts = worker.part.parts});
    run.finish();
    zero::export_model(worker.optimizer, at + "/model", {.parts = worker.part.parts});
    worker.train(3, 5);
    run.save(worker.optimizer, {.parts = worker.part.parts});
  });
}

std::string const first_name = "/000001-step-3";
std::string const second_name = "/000002-step-5";

TEST_CASE("a checkpoint is of the whole model, and goes on over any other grid") {
  TemporaryDirectory const directory;
  std::string const whole = directory.path() + "/whole";
  train_and_save<Replicated>(1, 1, whole);
  auto const then = arrays_in(whole + first_name);
  auto const later = arrays_in(whole + second_name);
  CHECK(then != later);
  CHECK(then.size() == 3 * 6 + 2);
  std::string const model = slurp(whole + "/model");
  std::string const masters = slurp(whole + "/masters");
  CHECK(model.size() != masters.size());

  std::vector<std::pair<int, int>> const grids = {{2, 1}, {1, 2}, {2, 2}, {1, 4}};
  for (auto const& axes : grids) {
    int const data = axes.first;
    int const ranks = axes.second;
    CAPTURE(data);
    CAPTURE(ranks);
    std::string const at = directory.path() + "/" + std::to_string(data) + std::to_string(ranks);
    train_and_save<PosGP>(data, ranks, at);
    CHECK(zero::verify_checkpoint(at + first_name).empty());
    CHECK(arrays_in(at + first_name) == then);
    CHECK(arrays_in(at + second_name) == later);
    CHECK(slurp(at + "/model") == model);
    CHECK(slurp(at + "/masters") == masters);
    zero::export_checkpoint(at + first_name, at + "/offline");
    CHECK(slurp(at + "/offline") == model);
    int number = 0;
    for (auto const& other : grids) {
      CAPTURE(number);
      std::string const there = at + "/" + std::to_string(++number);
      load_and_save<PosGP>(other.first, other.second, at, there);
      CHECK(arrays_in(there + first_name) == then);
      CHECK(arrays_in(there + second_name) == later);
      CHECK(slurp(there + "/model") == model);
    }
    load_and_save<Replicated>(2, 2, at, at + "/replicated");
    CHECK(arrays_in(at + "/replicated" + first_name) == then);
    CHECK(arrays_in(at + "/replicated" + second_name) == later);
    CHECK(slurp(at + "/replicated/model") == model);
  }
}

TEST_CASE("a rank may have nothing to save") {
  TemporaryDirectory const directory;
  zero::run_ranks(2, [&](InProcess& world) {
    Grid grid{world, 1, 2};
    Optimizer<PosGP> optimizer{grid, {{.name = "all have", .shape = {5}}}};
    optimizer.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> values) {
      for (float& each : values) each = 3.f;
    });
    std::uint64_t const bytes = zero::Checkpoints::plan(optimizer);
    CHECK((bytes == 0) == (world.rank() == 1));
    zero::Checkpoints run{directory.path(), {.snapshot_bytes = bytes}};
    run.save_async(optimizer);
    run.finish();
    run.save(optimizer);
    CHECK(run.load(optimizer, *run.latest(optimizer)).missing.empty());
  });
  CHECK(zero::verify_checkpoint(directory.path() + "/000001-step-0").empty());
  CHECK(zero::verify_checkpoint(directory.path() + "/000002-step-0").empty());
}

/// Do all ranks of a 2 x 2 grid get an error that says this?
template <class Call>
bool all_say(std::string const& said, Call&& call) {
  std::atomic<int> heard = 0;
  zero::run_ranks(4, [&](InProcess& world) {
    Worker<PosGP> worker(world, 2);
    worker.load_initial();
    std::string const told = refusal([&] { call(worker); });
    INFO(told);
    CHECK(told.find(said) != std::string::npos);
    if (told.find(said) != std::string::npos) ++heard;
  });
  return heard == 4;
}

TEST_CASE("all ranks of a grid refuse what one of them cannot do") {
  TemporaryDirectory const directory;
  std::string const at = directory.path() + "/run";
  std::string const untold =
      "tensor 'embedding' is partitioned over the model axis, and no TensorPart says which part";
  CHECK(all_say(untold, [&](auto& worker) { zero::Checkpoints{at}.save(worker.optimizer); }));
  CHECK(all_say(untold, [&](auto& worker) {
    zero::export_model(worker.optimizer, directory.path() + "/model");
  }));
  CHECK(zero::Checkpoints{at}.list().empty());
  train_and_save<PosGP>(2, 2, at);
  CHECK(all_say(untold, [&](auto& worker) {
    zero::Checkpoints run{at};
    run.load(worker.optimizer, *run.latest());
  }));
  // One rank of one model axis is told something else.
  CHECK(all_say("on rank 3: the part of tensor 'heads' has a box that reaches out of its shape",
                [&](auto& worker) {
                  zero::Checkpoints run{at};
                  auto parts = worker.part.parts;
                  if (worker.grid.world().rank() == 3) parts[1].boxes[0].offset[0] = 36;
                  run.load(worker.optimizer, *run.latest(), {.parts = parts});
                }));
  CHECK(all_say("ranks load different checkpoints", [&](auto& worker) {
    zero::Checkpoints run{at};
    auto const all = run.list();
    bool const other = worker.grid.model().rank() == 1;
    run.load(worker.optimizer, all[other ? 0 : 1], {.parts = worker.part.parts});
  }));
  CHECK(all_say("ranks export to different paths", [&](auto& worker) {
    bool const other = worker.grid.model().rank() == 1;
    zero::export_model(
        worker.optimizer, directory.path() + (other ? "/a" : "/b"), {.parts = worker.part.parts});
  }));
}

}  // namespace
}  // namespace grid_test
