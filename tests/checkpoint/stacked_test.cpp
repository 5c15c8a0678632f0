// Stacked tensors are saved layer by layer, and exported whole: on other ranks and stages, and by
// whoever describes every layer, or all of them as one tensor, a run goes on to the same bits.
#include "checkpoint/model_files.hpp"
#include "checkpoint/resealed.hpp"
#include "checkpoint/stored_model.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "zero/checkpoint.hpp"
#include "zero/checkpoint/offline.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stacked_test {
namespace {

using checkpoint_tests::TemporaryDirectory;
using Names = std::vector<std::string>;

constexpr int saved_at = 3;

/// All layers of each tensor described at once. Those of "u" are those of "w".
std::vector<zero::Tensor> stacked() {
  return {{.name = "wte", .shape = {700}},
          {.name = "w", .shape = {2, 30, 50}, .unit = 1, .stacked = true},
          {.name = "mask", .shape = {2, 7}, .unit = 1, .frozen = true, .stacked = true},
          {.name = "b", .shape = {2, 5}, .unit = 1, .stacked = true},
          {.name = "u", .shape = {2, 30, 50}, .unit = 3, .tied_to = "w", .stacked = true}};
}
/// The same model layer by layer.
std::vector<zero::Tensor> layered() {
  return {{.name = "wte", .shape = {700}},
          {.name = "w[0]", .shape = {30, 50}, .unit = 1},
          {.name = "w[1]", .shape = {30, 50}, .unit = 2},
          {.name = "mask[0]", .shape = {7}, .unit = 1, .frozen = true},
          {.name = "mask[1]", .shape = {7}, .unit = 2, .frozen = true},
          {.name = "b[0]", .shape = {5}, .unit = 1},
          {.name = "b[1]", .shape = {5}, .unit = 2},
          {.name = "u[0]", .shape = {30, 50}, .unit = 3, .tied_to = "w[0]"},
          {.name = "u[1]", .shape = {30, 50}, .unit = 4, .tied_to = "w[1]"}};
}
/// The same tensors, each as one.
std::vector<zero::Tensor> whole() {
  auto tensors = stacked();
  for (auto& tensor : tensors) tensor.stacked = false;
  for (std::size_t t = 1; t < tensors.size(); ++t) tensors[t].unit = static_cast<int>(t);
  return tensors;
}

/// Element i of the whole tensor is `by` i, however it is described.
void load(auto& optimizer, float by) {
  optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
    std::size_t const layer = tensor.name.ends_with("[1]") ? zero::element_count(tensor) : 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = by * static_cast<float>(layer + first + i);
    }
  });
}

/// Every rank brings the same gradients, whose mean is exact. In layers, the last may rest at
/// first.
void train(auto& optimizer, int from, int to, bool rests = false) {
  for (int step = from; step < to; ++step) {
    for (int const unit : optimizer.units_backward()) {
      if (rests && (unit == 2 || unit == 4) && step < 2) {
        optimizer.without_gradient(unit);
        continue;
      }
      auto gradients = optimizer.gradients(unit);
      for (std::size_t t = 0; t < gradients.size(); ++t) {
        std::size_t i = 0;
        for (auto& gradient : gradients[t]) {
          gradient += static_cast<float>(static_cast<int>(i++ % 5) - 2 + step);
        }
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step();
  }
}

/// The bits of wte, w, mask and b.
std::vector<std::uint32_t> bits_of(auto& optimizer) {
  std::vector<std::uint32_t> bits;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (float const value : all[t]) bits.push_back(std::bit_cast<std::uint32_t>(value));
  }
  bits.resize(700 + 2 * 1500 + 2 * 7 + 2 * 5);
  return bits;
}

std::vector<long> merged(std::vector<long> steps) {
  return steps.size() == 9 ? steps
                           : std::vector<long>{steps[0],
                                               steps[1],
                                               steps[1],
                                               steps[2],
                                               steps[2],
                                               steps[3],
                                               steps[3],
                                               steps[4],
                                               steps[4]};
}

/// A run that is saved, and what it comes to.
std::vector<std::uint32_t> saved_run(std::string const& path,
                                     std::vector<zero::Tensor> const& tensors,
                                     bool rests) {
  std::vector<std::uint32_t> expected;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, tensors, zero::stage::PosG{}};
    load(optimizer, 0.01f);
    train(optimizer, 0, saved_at, rests);
    zero::Checkpoints run{path};
    run.save(optimizer);
    train(optimizer, saved_at, saved_at + 3);
    auto const bits = bits_of(optimizer);
    if (comm.rank() == 0) expected = bits;
  });
  return expected;
}

template <class Stage>
void goes_on(std::string const& path,
             zero::InProcess& comm,
             std::vector<zero::Tensor> const& tensors,
             std::vector<long> const& steps,
             std::vector<std::uint32_t> const& expected) {
  zero::ShardedOptimizer optimizer{comm, tensors, Stage{}};
  load(optimizer, 1.f);
  zero::Checkpoints run{path};
  run.load(optimizer, run.latest(optimizer).value());
  CHECK(merged(optimizer.counters().steps) == steps);
  train(optimizer, saved_at, saved_at + 3);
  CHECK(bits_of(optimizer) == expected);
}

TEST_CASE("a stacked model goes on from its checkpoint, stacked or layer by layer") {
  TemporaryDirectory const directory;
  auto const expected = saved_run(directory.path(), stacked(), true);
  std::vector<long> const steps{3, 3, 1, 3, 3, 3, 1, 3, 1};
  for (int const ranks : {1, 2, 3}) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      goes_on<zero::stage::PosGP>(directory.path(), comm, stacked(), steps, expected);
      goes_on<zero::stage::Replicated>(directory.path(), comm, layered(), steps, expected);
    });
  }
}

TEST_CASE("what was saved in layers, as a stack or as one tensor is loaded as any of these") {
  std::vector<long> const steps(9, 3);
  for (auto const& saved : {stacked(), layered(), whole()}) {
    TemporaryDirectory const directory;
    auto const expected = saved_run(directory.path(), saved, false);
    for (int const ranks : {1, 2}) {
      zero::run_ranks(ranks, [&](zero::InProcess& comm) {
        goes_on<zero::stage::PosGP>(directory.path(), comm, stacked(), steps, expected);
        goes_on<zero::stage::Pos>(directory.path(), comm, layered(), steps, expected);
        goes_on<zero::stage::PosG>(directory.path(), comm, whole(), steps, expected);
      });
    }
  }
}

/// What a load of the newest checkpoint says.
zero::LoadReport loaded(std::string const& path,
                        std::vector<zero::Tensor> const& tensors,
                        zero::LoadOptions const& options) {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, tensors};
  load(optimizer, 1.f);
  zero::Checkpoints run{path};
  return run.load(optimizer, run.latest(optimizer).value(), options);
}

TEST_CASE("layers that differ are no one tensor, and all that were saved are to be loaded") {
  TemporaryDirectory const directory;
  saved_run(directory.path() + "/rested", stacked(), true);
  auto const rested = loaded(directory.path() + "/rested", whole(), {.strict = false});
  CHECK(rested.unfit == Names{"layers of 'w' have different numbers of steps in the checkpoint",
                              "layers of 'b' have different numbers of steps in the checkpoint",
                              "layers of 'u' have different numbers of steps in the checkpoint"});
  CHECK(rested.unexpected == Names{});
  CHECK(loaded(directory.path() + "/rested", whole(), {.parameters_only = true}).unfit == Names{});

  saved_run(directory.path() + "/whole", whole(), false);
  auto fewer = layered();
  for (auto& tensor : fewer) tensor.tied_to.clear();
  fewer.resize(7);
  std::erase_if(fewer, [](zero::Tensor const& t) { return t.name.ends_with("[0]"); });
  for (auto& tensor : fewer) tensor.unit = tensor.name == "wte" ? 0 : 1;
  fewer.push_back({.name = "b[2]", .shape = {5}, .unit = 1});
  fewer.push_back({.name = "w[01]", .shape = {30, 50}, .unit = 1});
  auto const report = loaded(directory.path() + "/whole", fewer, {.strict = false});
  CHECK(report.missing == Names{"b[2]", "w[01]"});
  CHECK(report.unexpected == Names{"b[0]", "mask[0]", "u", "w[0]"});
  CHECK(report.unfit == Names{});
}

TEST_CASE("what has a name of its own here is not taken for a layer, nor for a whole") {
  TemporaryDirectory const directory;
  std::string const whole_path = directory.path() + "/whole";
  saved_run(whole_path, whole(), false);
  auto both = whole();
  both.push_back({.name = "b[1]", .shape = {5}, .unit = 4});
  auto report = loaded(whole_path, both, {.strict = false});
  CHECK(report.missing == Names{"b[1]"});
  CHECK(report.unexpected == Names{});

  std::string const layered_path = directory.path() + "/layered";
  saved_run(layered_path, layered(), false);
  both = layered();
  both.push_back({.name = "b", .shape = {2, 5}, .unit = 4});
  report = loaded(layered_path, both, {.strict = false});
  CHECK(report.missing == Names{"b"});
  CHECK(report.unexpected == Names{});
}

TEST_CASE("what is called otherwise in a checkpoint has its steps here, and so have its layers") {
  TemporaryDirectory const directory;
  saved_run(directory.path(), stacked(), true);
  zero::Self comm;
  std::vector<zero::Tensor> tensors = stacked();
  tensors.pop_back();
  tensors[1].name = "h.w";
  tensors[3].name = "h.b";
  zero::ShardedOptimizer optimizer{comm, tensors};
  load(optimizer, 1.f);
  zero::Checkpoints run{directory.path()};
  run.load(
      optimizer,
      run.latest(optimizer).value(),
      {.strict = false,
       .names = {{"w[0]", "h.w[0]"}, {"w[1]", "h.w[1]"}, {"b[0]", "h.b[0]"}, {"b[1]", "h.b[1]"}}});
  CHECK(optimizer.counters().steps == std::vector<long>{3, 3, 1, 3, 3, 3, 1});

  saved_run(directory.path() + "/whole", whole(), false);
  zero::Checkpoints other{directory.path() + "/whole"};
  auto const report = other.load(optimizer,
                                 other.latest(optimizer).value(),
                                 {.strict = false, .names = {{"w", "h.w"}, {"b", "h.b"}}});
  CHECK(report.missing == Names{});
  CHECK(report.unexpected == Names{"u"});
  CHECK(optimizer.counters().steps == std::vector<long>(7, 3));
}

/// Names and shapes in a model file.
std::map<std::string, std::vector<std::uint64_t>> shapes_in(std::string const& file) {
  std::map<std::string, std::vector<std::uint64_t>> shapes;
  zero::DiskFiles files;
  for (auto const& tensor : zero::detail::open_model(files, file).tensors) {
    shapes[tensor.entry.name] = tensor.entry.shape;
  }
  return shapes;
}

TEST_CASE("a model file has tensors as they were described, and gives them back") {
  TemporaryDirectory const directory;
  for (auto const& described : {stacked(), layered()}) {
    std::string const file = directory.path() + "/model.safetensors";
    std::string const offline = directory.path() + "/offline.safetensors";
    std::vector<std::uint32_t> expected;
    zero::run_ranks(3, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer optimizer{comm, described, zero::stage::PosG{}};
      load(optimizer, 0.01f);
      train(optimizer, 0, saved_at);
      zero::export_model(optimizer, file);
      auto const bits = bits_of(optimizer);
      if (comm.rank() == 0) expected = bits;
      zero::Checkpoints run{directory.path() + "/run"};
      auto const saved = run.save(optimizer);
      if (comm.rank() == 0) zero::export_checkpoint(saved.path, offline);
    });
    auto const shapes = shapes_in(file);
    std::map<std::string, std::vector<std::uint64_t>> as_described;
    for (zero::Tensor const& tensor : described) {
      if (!tensor.tied_to.empty()) continue;
      as_described[tensor.name] = {tensor.shape.begin(), tensor.shape.end()};
    }
    CHECK(shapes == as_described);
    CHECK(checkpoint_tests::slurp(offline) == checkpoint_tests::slurp(file));
    for (int const ranks : {1, 2, 3}) {
      zero::run_ranks(ranks, [&](zero::InProcess& comm) {
        zero::ShardedOptimizer stack{comm, stacked(), zero::stage::PosGP{}};
        CHECK(zero::load_parameters_from(stack, file).missing.empty());
        CHECK(bits_of(stack) == expected);
        zero::ShardedOptimizer own{comm, described, zero::stage::Pos{}};
        CHECK(zero::load_parameters_from(own, file).missing.empty());
        CHECK(bits_of(own) == expected);
      });
    }
  }
}

TEST_CASE("a checkpoint whose layers are not those of a stack is not exported") {
  checkpoint_tests::ModelFiles sound;
  std::string path;
  zero::run_ranks(1, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, stacked(), zero::stage::PosG{}};
    load(optimizer, 0.01f);
    path =
        zero::BasicCheckpoints<checkpoint_tests::ModelFiles>{"run", {}, sound}.save(optimizer).path;
  });
  auto const refusal = [&](auto const& change) {
    checkpoint_tests::ModelFiles files = sound.crashed(sound.changes(), 0);
    checkpoint_tests::reseal_header(files, path, 0, [&](nlohmann::json& about, auto&) {
      for (auto& tensor : about["optimizer"]["tensors"]) change(tensor);
    });
    try {
      zero::export_checkpoint(path, "run/model.safetensors", {}, files);
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::data);
      return error.message();
    }
    return std::string();
  };
  CHECK(refusal([](auto&) {}) == "");
  CHECK(refusal([](auto& tensor) {
          if (tensor["name"] == "b[1]") tensor["layers"] = 3;
        }) == "'" + path + "' has 'b[1]' where it does not belong");
  CHECK(refusal([](auto& tensor) {
          if (tensor["name"] == "b[0]" || tensor["name"] == "b[1]") tensor["layers"] = 3;
        }) == "'" + path + "' does not have all layers of 'b'");
}

TEST_CASE("what a model file lacks of a stacked tensor, or has otherwise, is said once") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  zero::Self comm;
  auto const difference = [&](std::vector<zero::Tensor> const& there) {
    checkpoint_tests::spill(
        file, checkpoint_tests::model_file<float>(there, [](auto, auto) { return 1.f; }));
    zero::ShardedOptimizer optimizer{comm, stacked()};
    load(optimizer, 1.f);
    return zero::load_parameters_from(optimizer, file, {.strict = false}).text();
  };
  CHECK(difference(stacked()) == "");
  CHECK(difference(layered()) == "");
  auto other = stacked();
  other[1].shape = other[4].shape = {3, 30, 50};
  CHECK(difference(other) ==
        "different: 'w' has shape [2, 30, 50] here and [3, 30, 50] in the file");
  other = layered();
  other.erase(other.begin() + 6);                     // b[1]
  other.erase(other.begin() + 3, other.begin() + 5);  // mask[0], mask[1]
  CHECK(difference(other) == "not in the file: 'mask', 'b[1]'");
  other = stacked();
  other.push_back({.name = "b[0]", .shape = {5}});
  CHECK(difference(other) == "not in the optimizer: 'b[0]'");
}

}  // namespace
}  // namespace stacked_test
