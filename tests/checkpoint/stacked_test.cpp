// Stacked tensors are saved layer by layer, and exported whole: on other ranks and stages, and by
// whoever describes every layer, or all of them as one tensor, a run goes on to the same bits. What
// groups were told is the trainer's, who says it again.
#include "checkpoint/proof.hpp"
#include "checkpoint/stored_model.hpp"
#include "zero/checkpoint/offline.hpp"

#include <bit>

namespace stacked_test {
namespace {

using namespace checkpoint_tests;
using zero::Checkpoints;
using zero::InProcess;
using namespace zero::stage;
using Bits = std::vector<std::uint32_t>;
using Names = std::vector<std::string>;
using Steps = std::vector<long>;
using Tensors = std::vector<zero::Tensor>;

constexpr int saved_at = 3;
constexpr int ends_at = 6;

/// All layers of each tensor described at once. Those of "u" are those of "w".
Tensors stacked() {
  return {{.name = "wte", .shape = {700}},
          {.name = "w", .shape = {2, 30, 50}, .unit = 1, .stacked = true},
          {.name = "mask", .shape = {2, 7}, .unit = 1, .frozen = true, .stacked = true},
          {.name = "b", .shape = {2, 5}, .unit = 1, .stacked = true},
          {.name = "u", .shape = {2, 30, 50}, .unit = 3, .tied_to = "w", .stacked = true}};
}
/// The same model layer by layer.
Tensors layered() {
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
Tensors whole() {
  auto tensors = stacked();
  for (auto& tensor : tensors) tensor.stacked = false;
  for (std::size_t t = 1; t < tensors.size(); ++t) tensors[t].unit = static_cast<int>(t);
  return tensors;
}
/// One of groups, and a unit by itself.
Tensors grouped() {
  return {{.name = "wte", .shape = {700}},
          {.name = "w", .shape = {2, 30, 50}, .unit = 1, .stacked = true, .group = "layers"},
          {.name = "mask", .shape = {7}, .unit = 1, .frozen = true},
          {.name = "b", .shape = {5}, .unit = 2, .group = "bias"}};
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

enum class Habit {
  none,
  rests,  ///< units of last layers have no gradient in two steps of three
  tells,  ///< groups have a schedule, steps the trainer's counts, and unit 2 rests now and then
};

/// The schedule of a step, which a trainer that resumes knows as well.
void tell(auto& optimizer, int step) {
  optimizer.set_lr(0.1f / static_cast<float>(step + 1));
  optimizer.set_rule("layers", {.lr = 0.02, .beta1 = step < 2 ? 0.5 : 0.75});
  optimizer.set_lr("bias", 0.25f / static_cast<float>(step + 1));
}

/// Every rank brings the same gradients, whose mean is exact.
void train(auto& optimizer, int from, int to, Habit habit = Habit::none) {
  for (int step = from; step < to; ++step) {
    if (habit == Habit::tells) tell(optimizer, step);
    for (int const unit : optimizer.units_backward()) {
      if ((habit == Habit::rests && (unit == 2 || unit == 4) && step % 3 != 2) ||
          (habit == Habit::tells && unit == 2 && step % 2 == 0)) {
        optimizer.without_gradient(unit);
        continue;
      }
      auto gradients = optimizer.gradients(unit);
      for (std::size_t t = 0; t < gradients.size(); ++t) {
        int i = 0;
        for (auto& gradient : gradients[t]) gradient += static_cast<float>(i++ % 5 - 2 + step);
      }
      optimizer.reduce(std::move(gradients));
    }
    if (habit == Habit::tells) {
      optimizer.step({.count = 10 * step + 1});
    } else {
      optimizer.step();
    }
  }
}

/// The bits of all tensors but tied ones, which come last.
Bits bits_of(auto& optimizer) {
  Bits bits;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < all.size(); ++t) {
    if (!optimizer.tensors()[t].tied_to.empty()) break;
    for (float const value : all[t]) bits.push_back(std::bit_cast<std::uint32_t>(value));
  }
  return bits;
}

/// The steps of each layer, also of tensors that are described as one.
Steps by_layer(Steps const& steps) {
  if (steps.size() == 9) return steps;
  Steps all{steps[0]};
  for (std::size_t t = 1; t < steps.size(); ++t) all.insert(all.end(), 2, steps[t]);
  return all;
}

/// A run that is saved, and what it comes to.
Bits saved_run(std::string const& path, Tensors const& tensors, Habit habit = Habit::none) {
  Bits expected;
  zero::run_ranks(3, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, tensors, PosG{}};
    load(optimizer, 0.01f);
    train(optimizer, 0, saved_at, habit);
    Checkpoints run{path};
    run.save(optimizer);
    train(optimizer, saved_at, ends_at, habit);
    auto const bits = bits_of(optimizer);
    if (comm.rank() == 0) expected = bits;
  });
  return expected;
}

template <class Stage>
void goes_on(std::string const& path,
             InProcess& comm,
             Tensors const& tensors,
             Habit habit,
             Steps const& steps,
             Bits const& expected) {
  zero::ShardedOptimizer optimizer{comm, tensors, Stage{}};
  load(optimizer, 1.f);
  Checkpoints run{path};
  run.load(optimizer, run.latest(optimizer).value());
  CHECK(by_layer(optimizer.counters().steps) == steps);
  train(optimizer, saved_at, ends_at, habit);
  CHECK(bits_of(optimizer) == expected);
}

TEST_CASE("tensors that have rested go on from their own counts, stacked or layer by layer") {
  TemporaryDirectory const directory;
  auto const expected = saved_run(directory.path(), stacked(), Habit::rests);
  Steps const steps{3, 3, 1, 3, 3, 3, 1, 3, 1};
  for (int const ranks : {1, 2, 3}) {
    zero::run_ranks(ranks, [&](InProcess& comm) {
      auto const& path = directory.path();
      goes_on<PosGP>(path, comm, stacked(), Habit::rests, steps, expected);
      goes_on<zero::stage::Replicated>(path, comm, layered(), Habit::rests, steps, expected);
    });
  }
}

TEST_CASE("what was saved in layers, as a stack or as one tensor is loaded as any of these") {
  Steps const steps(9, 3);
  for (auto const& saved : {stacked(), layered(), whole()}) {
    TemporaryDirectory const directory;
    auto const& path = directory.path();
    auto const expected = saved_run(path, saved);
    for (int const ranks : {1, 2}) {
      zero::run_ranks(ranks, [&](InProcess& comm) {
        goes_on<PosGP>(path, comm, stacked(), Habit::none, steps, expected);
        goes_on<Pos>(path, comm, layered(), Habit::none, steps, expected);
        goes_on<PosG>(path, comm, whole(), Habit::none, steps, expected);
      });
    }
  }
}

TEST_CASE("a run whose groups are told again goes on to the same bits, and who does not is told") {
  TemporaryDirectory const directory;
  auto const expected = saved_run(directory.path(), grouped(), Habit::tells);
  for (int const ranks : {1, 2, 4}) {
    zero::run_ranks(ranks, [&](InProcess& comm) {
      zero::ShardedOptimizer optimizer{comm, grouped(), PosGP{}};
      load(optimizer, 1.f);
      Checkpoints run{directory.path()};
      auto const found = run.latest(optimizer).value();
      CHECK(run.load(optimizer, found).differing ==
            Names{"rule.fields.lr: 0.03333333507180214 saved, 0.001 here",
                  "own_rules.bias: {\"beta1\":0.9,\"beta2\":0.999,\"eps\":1e-08,"
                  "\"lr\":0.0833333358168602,\"maximize\":0.0,"
                  "\"weight_decay\":0.01} saved, null here",
                  "own_rules.layers: {\"beta1\":0.75,\"beta2\":0.999,\"eps\":"
                  "1e-08,\"lr\":0.02,\"maximize\":0.0,"
                  "\"weight_decay\":0.01} saved, null here"});
      CHECK(optimizer.rule(1) == zero::AdamW{});
      CHECK(optimizer.counters().step == 21);
      CHECK(optimizer.counters().steps == Steps{21, 21, 11, 21, 11});
      // Before or after the load.
      tell(optimizer, saved_at - 1);
      optimizer.set_rule("layers", {.lr = 0.5f, .beta1 = 0.75});
      CHECK(run.load(optimizer, found).differing ==
            Names{"own_rules.layers.lr: 0.02 saved, 0.5 here"});
      train(optimizer, saved_at, ends_at, Habit::tells);
      CHECK(bits_of(optimizer) == expected);
    });
  }
}

/// What a load of the newest checkpoint says.
zero::LoadReport loaded(std::string const& path,
                        Tensors const& tensors,
                        zero::LoadOptions const& options = {.strict = false},
                        Steps* steps = nullptr) {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, tensors};
  load(optimizer, 1.f);
  Checkpoints run{path};
  auto report = run.load(optimizer, run.latest(optimizer).value(), options);
  if (steps != nullptr) *steps = optimizer.counters().steps;
  return report;
}

TEST_CASE("layers that differ are no one tensor, and what has a name of its own is no layer") {
  TemporaryDirectory const directory;
  std::string const rested = directory.path() + "/rested";
  saved_run(rested, stacked(), Habit::rests);
  auto report = loaded(rested, whole());
  CHECK(report.unfit == Names{"layers of 'w' have different numbers of steps in the checkpoint",
                              "layers of 'b' have different numbers of steps in the checkpoint",
                              "layers of 'u' have different numbers of steps in the checkpoint"});
  CHECK(report.unexpected == Names{});
  CHECK(loaded(rested, whole(), {.parameters_only = true}).unfit == Names{});

  // What is called otherwise there has its steps here, and so have its layers.
  Tensors renamed = stacked();
  renamed.pop_back();
  renamed[1].name = "h.w";
  renamed[3].name = "h.b";
  Steps steps;
  loaded(
      rested,
      renamed,
      {.strict = false,
       .names = {{"w[0]", "h.w[0]"}, {"w[1]", "h.w[1]"}, {"b[0]", "h.b[0]"}, {"b[1]", "h.b[1]"}}},
      &steps);
  CHECK(steps == Steps{3, 3, 1, 3, 3, 3, 1});

  std::string const as_whole = directory.path() + "/whole";
  saved_run(as_whole, whole());
  report =
      loaded(as_whole, renamed, {.strict = false, .names = {{"w", "h.w"}, {"b", "h.b"}}}, &steps);
  CHECK(report.missing == Names{});
  CHECK(report.unexpected == Names{"u"});
  CHECK(steps == Steps(7, 3));

  // All layers that were saved are to be loaded.
  Tensors fewer = layered();
  for (auto& tensor : fewer) tensor.tied_to.clear();
  fewer.resize(7);
  std::erase_if(fewer, [](zero::Tensor const& t) { return t.name.ends_with("[0]"); });
  for (auto& tensor : fewer) tensor.unit = tensor.name == "wte" ? 0 : 1;
  fewer.push_back({.name = "b[2]", .shape = {5}, .unit = 1});
  fewer.push_back({.name = "w[01]", .shape = {30, 50}, .unit = 1});
  report = loaded(as_whole, fewer);
  CHECK(report.missing == Names{"b[2]", "w[01]"});
  CHECK(report.unexpected == Names{"b[0]", "mask[0]", "u", "w[0]"});
  CHECK(report.unfit == Names{});

  Tensors both = whole();
  both.push_back({.name = "b[1]", .shape = {5}, .unit = 4});
  report = loaded(as_whole, both);
  CHECK(report.missing == Names{"b[1]"});
  CHECK(report.unexpected == Names{});

  saved_run(directory.path() + "/layered", layered());
  both = layered();
  both.push_back({.name = "b", .shape = {2, 5}, .unit = 4});
  report = loaded(directory.path() + "/layered", both);
  CHECK(report.missing == Names{"b"});
  CHECK(report.unexpected == Names{});
}

TEST_CASE("a model file has tensors as they were described, and gives them back") {
  TemporaryDirectory const directory;
  for (auto const& described : {stacked(), layered()}) {
    std::string const file = directory.path() + "/model.safetensors";
    std::string const offline = directory.path() + "/offline.safetensors";
    Bits expected;
    zero::run_ranks(3, [&](InProcess& comm) {
      zero::ShardedOptimizer optimizer{comm, described, PosG{}};
      load(optimizer, 0.01f);
      train(optimizer, 0, saved_at);
      zero::export_model(optimizer, file);
      auto const bits = bits_of(optimizer);
      if (comm.rank() == 0) expected = bits;
      Checkpoints run{directory.path() + "/run"};
      auto const saved = run.save(optimizer);
      if (comm.rank() == 0) zero::export_checkpoint(saved.path, offline);
    });
    std::map<std::string, std::vector<std::uint64_t>> shapes;
    std::map<std::string, std::vector<std::uint64_t>> as_described;
    zero::DiskFiles files;
    for (auto const& tensor : zero::detail::open_model(files, file).tensors)
      shapes[tensor.entry.name] = tensor.entry.shape;
    for (zero::Tensor const& tensor : described) {
      if (tensor.tied_to.empty())
        as_described[tensor.name] = {tensor.shape.begin(), tensor.shape.end()};
    }
    CHECK(shapes == as_described);
    CHECK(slurp(offline) == slurp(file));
    for (int const ranks : {1, 2, 3}) {
      zero::run_ranks(ranks, [&](InProcess& comm) {
        auto const check = [&]<class Stage>(Tensors const& tensors, Stage stage) {
          zero::ShardedOptimizer optimizer{comm, tensors, stage};
          CHECK(zero::load_parameters_from(optimizer, file).missing.empty());
          CHECK(bits_of(optimizer) == expected);
        };
        check(stacked(), PosGP{});
        check(described, Pos{});
      });
    }
  }
}

TEST_CASE("a checkpoint whose layers are not those of a stack is not exported") {
  ModelFiles sound;
  std::string path;
  zero::run_ranks(1, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, stacked(), PosG{}};
    load(optimizer, 0.01f);
    path = zero::Checkpoints{"run", {}, sound}.save(optimizer).path;
  });
  auto const exported = [&](Names const& changed) {
    ModelFiles files = sound.crashed(sound.changes(), 0);
    reseal_header(files, path, 0, [&](nlohmann::json& about, auto&) {
      for (auto& tensor : about["optimizer"]["tensors"]) {
        if (std::ranges::count(changed, tensor["name"].get<std::string>()) > 0)
          tensor["layers"] = 3;
      }
    });
    return failure_of([&] { zero::export_checkpoint(path, "run/model.safetensors", {}, files); });
  };
  CHECK(exported({}) == "");
  CHECK(exported({"b[1]"}) == "data: '" + path + "' has 'b[1]' where it does not belong");
  CHECK(exported({"b[0]", "b[1]"}) == "data: '" + path + "' does not have all layers of 'b'");
}

TEST_CASE("what a model file lacks of a stacked tensor, or has otherwise, is said once") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  zero::Self comm;
  auto const difference = [&](Tensors const& there) {
    spill(file, model_file<float>(there, [](auto, auto) { return 1.f; }));
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
