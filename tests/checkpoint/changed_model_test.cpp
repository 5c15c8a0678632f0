// A model that was changed between save and load: every saved array goes somewhere or the load is
// refused by name, and a tensor without saved states begins as a new one does. Random changes are
// held against a reference by zero_differential_changes.
#include "checkpoint/proof.hpp"

namespace changed_model_test {
namespace {

using namespace checkpoint_tests;
using zero::Checkpoints;
using zero::InProcess;
using Names = std::vector<std::string>;
using Tensors = std::vector<zero::Tensor>;

/// What a tensor is saved with; the last element is another one's business.
struct Saved {
  float value = 1.f;
  float state = 0.25f;
  long steps = 5;
  bool other_end = false;  ///< the last element is something else
};

/// Sets all that this rank owns of each tensor, as it was described.
template <class Optimizer>
void set(Optimizer& optimizer, std::vector<Saved> const& saved) {
  toy::load(optimizer);
  zero::Counters counters{.step = 5};
  std::map<std::string, Saved> by_name;
  for (std::size_t t = 0; t < saved.size(); ++t) {
    counters.steps.push_back(saved[t].steps);
    by_name[optimizer.tensors()[t].name] = saved[t];
  }
  optimizer.fill_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
        Saved const& own = by_name[tensor.name];
        for (std::size_t i = 0; i < masters.size(); ++i) {
          auto const at = static_cast<float>(first + i);
          bool const end = own.other_end && first + i + 1 == zero::element_count(tensor);
          masters[i] = own.value + 0.125f * at + (end ? 1.f : 0.f);
          for (auto const& state : states) state[i] = own.state + 0.5f * at;
        }
      });
  optimizer.restore(counters);
}

/// A checkpoint of a model.
template <class Rule = zero::AdamW>
void save(std::string const& path, Tensors const& tensors, std::vector<Saved> const& saved) {
  zero::run_ranks(2, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, tensors, zero::stage::PosG{}, zero::Bucket{64}, Rule{}};
    set(optimizer, saved);
    Checkpoints{path}.save(optimizer);
  });
}

/// Everything that a load leaves.
struct Left {
  std::string failure{};
  zero::LoadReport report{};
  zero::Counters counters{};
  std::map<std::string, std::vector<std::vector<float>>> arrays{};
};

template <class Rule = zero::AdamW>
Left load(std::string const& path,
          Tensors const& tensors,
          zero::LoadOptions const& options = {},
          int ranks = 3) {
  Left left;
  std::mutex mutex;
  left.failure = failure_of_all(ranks, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, tensors, zero::stage::PosG{}, zero::Bucket{64}, Rule{}};
    toy::load(optimizer);
    std::string failure;
    zero::LoadReport report;
    try {
      report = *Checkpoints{path}.resume(optimizer, options);
    } catch (zero::Error const& error) {
      failure = std::string(name(error.kind())) + ": " + error.message();
    }
    {
      std::lock_guard const lock(mutex);
      left.report = report;
      left.counters = optimizer.counters();
      optimizer.visit_owned(
          [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
            auto& arrays = left.arrays[tensor.name];
            arrays.resize(1 + states.size());
            for (auto& array : arrays) array.resize(zero::element_count(tensor));
            for (std::size_t i = 0; i < masters.size(); ++i) {
              arrays[0][first + i] = masters[i];
              for (std::size_t k = 0; k < states.size(); ++k)
                arrays[1 + k][first + i] = states[k][i];
            }
          });
    }
    if (!failure.empty()) zero::fail(zero::ErrorKind::data, failure);
  });
  if (!left.failure.empty()) left.failure.erase(0, std::string("data: ").size());
  return left;
}

/// Which of a tensor were taken, in a word.
std::string taken(Left const& left, std::string const& tensor) {
  for (zero::TakenTensor const& each : left.report.taken) {
    if (each.tensor != tensor) continue;
    return std::string(each.values ? "values" : "") + (each.states ? " states" : "") + " " +
           std::to_string(each.count);
  }
  return "nothing is said";
}

std::vector<float> filled(std::size_t count, float first, float by) {
  std::vector<float> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(first + by * static_cast<float>(i));
  return all;
}
std::vector<float> constructed(std::size_t tensor, std::size_t count) {
  std::vector<float> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(toy::initial_value(tensor, i));
  return all;
}

Tensors untied() {
  return {{.name = "wte", .shape = {6, 5}},
          {.name = "b", .shape = {3}, .unit = 1},
          {.name = "head", .shape = {6, 5}, .unit = 1}};
}
Tensors tied() {
  Tensors tensors = untied();
  tensors[2].tied_to = "wte";
  return tensors;
}

TEST_CASE("tensors that are tied here are loaded where they were saved alike") {
  TemporaryDirectory const directory;
  save(directory.path(), untied(), {{1.f}, {2.f}, {1.f}});
  for (int const ranks : {1, 2, 3}) {
    Left const left = load(directory.path(), tied(), {}, ranks);
    CHECK(left.failure == "");
    CHECK(left.arrays.at("wte") ==
          std::vector{filled(30, 1.f, 0.125f), filled(30, 0.25f, 0.5f), filled(30, 0.25f, 0.5f)});
    CHECK(left.counters.steps == std::vector<long>{5, 5, 5});
    for (char const* const tensor : {"wte", "b", "head"}) {
      CHECK(taken(left, tensor) == "values states 5");
    }
  }
}

TEST_CASE("tensors that are tied here and were saved with something else are refused by name") {
  struct Case {
    Saved head{};
    bool values = false;  ///< are other ones, too
  };
  for (Case const& one : {Case{{.value = 7.f}, true},
                          Case{{.other_end = true}, true},
                          Case{{.state = 0.5f}, false},
                          Case{{.steps = 4}, false}}) {
    TemporaryDirectory const directory;
    save(directory.path(), untied(), {{1.f}, {2.f}, one.head});
    std::string const said = std::string("'wte' and 'head', which are tied here, have different ") +
                             (one.values ? "values" : "states or numbers of updates") +
                             " in the checkpoint";
    for (int const ranks : {1, 2, 3}) {
      Left left = load(directory.path(), tied(), {}, ranks);
      check_says(left.failure, "data: on rank 0: ");
      check_says(left.failure, "does not fit this optimizer: different: " + said);
      CHECK(left.arrays.at("wte")[0] == constructed(0, 30));
      CHECK(left.counters.steps == std::vector<long>{0, 0, 0});

      left = load(directory.path(), tied(), {.strict = false}, ranks);
      CHECK(left.failure == "");
      CHECK(left.report.unfit == Names{said});
      CHECK(left.arrays.at("wte")[0] ==
            (one.values ? constructed(0, 30) : filled(30, 1.f, 0.125f)));
      CHECK(left.arrays.at("wte")[1] == std::vector<float>(30));
      CHECK(left.arrays.at("b")[1] == filled(3, 0.25f, 0.5f));
      CHECK(left.counters.steps == std::vector<long>{0, 5, 0});
      CHECK(taken(left, "wte") == (one.values ? " 0" : "values 0"));
      CHECK(taken(left, "head") == taken(left, "wte"));

      left = load(directory.path(), tied(), {.parameters_only = true}, ranks);
      CHECK((left.failure == "") == !one.values);
    }
  }
}

TEST_CASE("a tensor that is tied here may have been saved under any of its names") {
  for (std::string const name : {"wte", "head", "other"}) {
    TemporaryDirectory const directory;
    save(directory.path(), {{.name = name, .shape = {6, 5}}, untied()[1]}, {{1.f}, {2.f}});
    zero::LoadOptions options;
    if (name == "other") options.names = {{"other", "head"}};
    for (bool const strict : {true, false}) {
      options.strict = strict;
      Left const left = load(directory.path(), tied(), options);
      CHECK(left.failure == "");
      CHECK(left.arrays.at("wte")[0] == filled(30, 1.f, 0.125f));
      CHECK(left.counters.steps == std::vector<long>{5, 5, 5});
      CHECK(left.report.missing == Names{});
    }
  }
  TemporaryDirectory const directory;
  save(directory.path(), {untied()[1]}, {{2.f}});
  CHECK(load(directory.path(), tied(), {.strict = false}).report.missing == Names{"wte", "head"});
}

TEST_CASE("names that make two tensors one, or lead to none, are refused") {
  TemporaryDirectory const directory;
  save(directory.path(), untied(), {{1.f}, {2.f}, {7.f}});
  Tensors one = untied();
  one.pop_back();
  for (bool const strict : {true, false}) {
    check_says(load(directory.path(), one, {.strict = strict, .names = {{"head", "wte"}}}).failure,
               "two tensors of the checkpoint are called 'wte' here");
    Tensors other = one;
    other[0].name = "x";
    std::map<std::string, std::string> const both{{"head", "x"}, {"wte", "x"}};
    check_says(load(directory.path(), other, {.strict = strict, .names = both}).failure,
               "two tensors of the checkpoint are called 'x' here");
    // The one that is there is taken, whatever else could be called so.
    std::map<std::string, std::string> const older{{"a", "x"}, {"wte", "x"}, {"zzz", "x"}};
    CHECK(load(directory.path(), other, {.strict = false, .names = older}).arrays.at("x")[0] ==
          filled(30, 1.f, 0.125f));
  }
  check_says(load(directory.path(), untied(), {.names = {{"head", "haed"}}}).failure,
             "'head' is called 'haed' here, and this optimizer has no such tensor");
  Left const left =
      load(directory.path(), untied(), {.strict = false, .names = {{"head", "haed"}}});
  CHECK(left.arrays.at("head")[0] == constructed(2, 30));
  CHECK(left.report.missing == Names{"head"});
  CHECK(left.report.unexpected == Names{"head"});
}

TEST_CASE("names of what the checkpoint does not have hide nothing that it has") {
  TemporaryDirectory const directory;
  std::string const plain = directory.path() + "/plain";
  std::string const layers = directory.path() + "/layers";
  save(plain, untied(), {{1.f}, {2.f}, {7.f}});
  save(layers, {{.name = "w[0]", .shape = {5}}, {.name = "w[1]", .shape = {5}}}, {{1.f}, {3.f}});
  for (bool const strict : {true, false}) {
    // What earlier checkpoints called these, said for all of them.
    zero::LoadOptions options{.strict = strict, .names = {{"older", "wte"}, {"zzz", "head"}}};
    Left left = load(plain, untied(), options);
    CHECK(left.failure == "");
    CHECK(left.report.missing == Names{});
    CHECK(left.report.unexpected == Names{});
    for (char const* const name : {"wte", "b", "head"})
      CHECK(taken(left, name) == "values states 5");
    CHECK(left.arrays.at("head")[0] == filled(30, 7.f, 0.125f));

    options.names = {{"older", "w"}, {"zzz", "w"}};
    left = load(layers, {{.name = "w", .shape = {2, 5}}}, options);
    CHECK(left.failure == "");
    CHECK(taken(left, "w") == "values states 5");
  }
}

/// Lion, which believes that the states of AdamW mean the same to it.
struct Fewer : zero::Lion {
  static constexpr std::string_view name = "fewer";
  static constexpr std::array<std::string_view, 1> states_of{"AdamW"};
};

TEST_CASE("states that nothing here takes are refused by name") {
  TemporaryDirectory const directory;
  save(directory.path(), untied(), {{1.f}, {2.f}, {7.f}});
  Tensors frozen = untied();
  frozen[2].frozen = true;
  std::string const advice = "; parameters alone can be loaded (LoadOptions::parameters_only)";
  check_says(load(directory.path(), frozen).failure,
             "'head' is frozen here, and has states in the checkpoint" + advice);
  Left left = load(directory.path(), frozen, {.strict = false});
  CHECK(taken(left, "head") == "values 0");
  CHECK(taken(left, "wte") == "values states 5");
  CHECK(load(directory.path(), frozen, {.parameters_only = true}).failure == "");

  check_says(load<Fewer>(directory.path(), untied()).failure,
             "this rule has no state 'exp_avg_sq', which 'wte' has in the checkpoint");
  left = load<Fewer>(directory.path(), untied(), {.strict = false});
  CHECK(taken(left, "wte") == "values states 5");
  CHECK(left.arrays.at("wte")[1] == filled(30, 0.25f, 0.5f));
}

// What a run saves, and what it has become when it goes on.
Tensors before() {
  return {{.name = "w", .shape = {40}},
          {.name = "thawed", .shape = {9}, .frozen = true},
          {.name = "grown", .shape = {6, 4}, .unit = 1}};
}
Tensors after() {
  return {{.name = "w", .shape = {40}},
          {.name = "thawed", .shape = {9}},
          {.name = "grown", .shape = {8, 4}, .unit = 1},
          {.name = "new", .shape = {5}, .unit = 1}};
}

/// One update, of gradients that depend on tensor and element.
void step(auto& optimizer) {
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    std::size_t use = 0;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      if (optimizer.tensors()[t].unit != unit) continue;
      if (optimizer.tensors()[t].frozen) {
        ++use;
        continue;
      }
      int i = static_cast<int>(t);
      for (auto& gradient : gradients[use++]) {
        gradient = std::remove_cvref_t<decltype(gradient)>(0.25f * static_cast<float>(i++ % 5 - 2));
      }
    }
    optimizer.reduce(std::move(gradients));
  }
  optimizer.step();
}

/// The bits of all parameters, by tensor.
std::vector<std::vector<float>> values_of(auto& optimizer) {
  std::vector<std::vector<float>> all;
  auto const parameters = optimizer.full_parameters();
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    auto& values = all.emplace_back();
    for (auto const value : parameters[t]) values.push_back(static_cast<float>(value));
  }
  return all;
}

template <class Stage, class Precision, class Rule>
void grows(int ranks, bool in_mid_run) {
  TemporaryDirectory const directory;
  std::vector<std::vector<float>> going_on;
  std::vector<std::vector<float>> saved;
  zero::run_ranks(2, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, before(), Stage{}, Precision{}, Rule{}};
    toy::load(optimizer);
    for (int i = 0; i < 10; ++i) step(optimizer);
    // As if it had been 3,000.
    optimizer.restore({.steps = std::vector<long>(3, 3000), .step = 3000});
    Checkpoints{directory.path()}.save(optimizer);
    auto const now = values_of(optimizer);
    step(optimizer);
    auto const then = values_of(optimizer);
    if (comm.rank() == 0) saved = now, going_on = then;
  });
  zero::run_ranks(ranks, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, after(), Stage{}, Precision{}, Rule{}};
    toy::load(optimizer);
    if (in_mid_run) step(optimizer);
    auto const own = values_of(optimizer);
    Checkpoints run{directory.path()};
    std::string const refused = failure_of([&] { run.resume(optimizer); });
    check_says(refused,
               "not in the checkpoint: 'new'; different: 'thawed' has no state 'exp_avg' in the "
               "checkpoint, 'grown' has shape [8, 4] here and [6, 4] in the checkpoint");
    auto const report = *run.resume(optimizer, {.strict = false});
    CHECK(report.step == 3000);
    CHECK(optimizer.counters().step == 3000);
    CHECK(optimizer.counters().steps == std::vector<long>{3000, 0, 0, 0});
    Left const left{.report = report};
    CHECK(taken(left, "w") == "values states 3000");
    CHECK(taken(left, "thawed") == "values 0");
    CHECK(taken(left, "grown") == " 0");
    CHECK(taken(left, "new") == " 0");
    CHECK(report.missing == Names{"new"});

    auto const resumed = values_of(optimizer);
    CHECK(resumed[0] == saved[0]);
    CHECK(resumed[1] == saved[1]);
    CHECK(resumed[2] == own[2]);
    CHECK(resumed[3] == own[3]);
    // One whose tensors are all new, from the same values.
    zero::ShardedOptimizer fresh{comm, after(), Stage{}, Precision{}, Rule{}};
    fresh.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
      auto const t = static_cast<std::size_t>(&tensor - fresh.tensors().data());
      for (std::size_t i = 0; i < out.size(); ++i) {
        // Masters of what was constructed have more digits than parameters.
        out[i] = t == 1 || in_mid_run ? resumed[t][first + i] : toy::initial_value(t, first + i);
      }
    });
    step(optimizer);
    step(fresh);
    auto const stepped = values_of(optimizer);
    auto const first = values_of(fresh);
    CHECK(stepped[0] == going_on[0]);
    for (std::size_t t = 1; t < 4; ++t) CHECK(stepped[t] == first[t]);
  });
}

TEST_CASE("tensors that are new, reshaped or thawed begin as new ones do") {
  using namespace zero::stage;
  for (bool const in_mid_run : {false, true}) {
    grows<PosG, zero::Fp32, zero::AdamW>(1, in_mid_run);
    grows<PosGP, zero::Fp32, zero::AdamW>(3, in_mid_run);
    grows<Pos, zero::Fp32, zero::NAdam>(2, in_mid_run);
    grows<Replicated, zero::Fp32, zero::AdamW>(2, in_mid_run);
  }
  grows<PosGP, zero::Mixed<zero::bf16>, zero::AdamW>(2, false);
}

TEST_CASE("names of several optimizers stay with theirs") {
  TemporaryDirectory const directory;
  Tensors const one{{.name = "w", .shape = {3}}};
  Tensors const other{{.name = "x", .shape = {3}}};
  zero::Self comm;
  zero::ShardedOptimizer a{comm, one};
  zero::ShardedOptimizer b{comm, one};
  set(a, {{1.f}});
  set(b, {{2.f}});
  Checkpoints run{directory.path()};
  run.save({{"a", &a}, {"b", &b}});
  zero::ShardedOptimizer c{comm, other};
  auto const resume = [&](std::map<std::string, std::string> const& names, bool strict = true) {
    toy::load(b);
    return failure_of([&] {
      static_cast<void>(run.resume({{"a", &c}, {"b", &b}}, {.strict = strict, .names = names}));
    });
  };
  CHECK(resume({{"a/w", "a/x"}}) == "");
  CHECK(c.parameter(0)[1] == 1.125f);
  for (bool const strict : {true, false}) {
    check_says(resume({{"a/w", "b/x"}}, strict),
               "'a/w' cannot be called 'b/x' here: it would be another optimizer's");
  }
  check_says(resume({{"w", "x"}}), "these optimizers have no such tensor");
  check_says(resume({{"b/w", "b/v"}}), "this optimizer has no such tensor");
  CHECK(resume({}, false) == "");
  auto const report = *run.resume({{"a", &c}, {"b", &b}}, {.strict = false});
  REQUIRE(report.taken.size() == 2);
  CHECK(report.taken[0].tensor == "a/x");
  CHECK(!report.taken[0].values);
  CHECK(report.taken[1].tensor == "b/w");
  CHECK(report.taken[1].states);
}

TEST_CASE("a checkpoint whose tied tensors are damaged is passed over") {
  ModelFiles files;
  zero::run_ranks(2, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, untied()};
    set(optimizer, {{1.f}, {2.f}, {1.f}});
    Checkpoints run{"run", {}, files};
    for (int i = 0; i < 2; ++i) run.save(optimizer);
  });
  std::string const newest = "run/000002-step-5/" + rank_file(1);
  std::string bytes = read_all(files, newest);
  bytes.back() ^= 1;
  write_all(files, newest, bytes);
  zero::run_ranks(2, [&](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, tied()};
    toy::load(optimizer);
    auto const report = *Checkpoints{"run", {}, files}.resume(optimizer);
    CHECK(report.path == "run/000001-step-5");
    REQUIRE(report.skipped.size() == 1);
    check_says(report.skipped[0], newest);
    CHECK(optimizer.parameter(0)[1] == 1.125f);
  });
}

}  // namespace
}  // namespace changed_model_test
