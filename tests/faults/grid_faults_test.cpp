/// One rank of a grid goes wrong, on either axis or on all ranks: every other rank of the grid
/// hears of it, in the same sentence, with the axis named.
#include "cuda/fake_runtime.hpp"
#include "faults/fault_run.hpp"
#include "faults/faulty.hpp"
#include "support/test.hpp"
#include "zero/activations.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/decorators/traced.hpp"
#include "zero/comm/device_threads/device_group.hpp"
#include "zero/comm/grid.hpp"
#include "zero/zero.hpp"

namespace grid_faults_test {
namespace {

using faults::contains;
using faults::hear;
using faults::Outcome;
using faults::Told;
using zero::Collective;
using zero::Error;
using zero::ErrorKind;
using zero::Grid;
using zero::InProcess;
using zero::Op;

/// What the culprit does before one of its calls, or in a collective of one of its groups.
enum class Kind { throws, leaves, differs, hangs };
/// Which call that is, and which group its collectives are of.
enum class Place { fetch, all_reduce, reduce, step };
constexpr Place places[] = {Place::fetch, Place::all_reduce, Place::reduce, Place::step};

struct Plan {
  int data = 1;
  int model = 1;
  int culprit = 0;
  Place place = Place::fetch;
  Kind kind = Kind::throws;
  bool inside = false;  ///< in a collective, not between two calls
  unsigned stage = 2;   ///< replicated, Pos, Pos+g, Pos+g+p
  int at = 0;           ///< the so many-eth call there, or collective
  double deadline_s = 30;
  std::atomic<int>* told = nullptr;  ///< ranks that have failed: who hangs waits for all others
};

std::string model_axis(Plan const& plan, int rank) {
  return "model axis (data " + std::to_string(rank / plan.model) + " of " +
         std::to_string(plan.data) + ")";
}
std::string data_axis(Plan const& plan, int rank) {
  return "data axis (model " + std::to_string(rank % plan.model) + " of " +
         std::to_string(plan.model) + ")";
}
/// The group whose collectives a place has; empty for all ranks.
std::string group_of(Plan const& plan, int rank) {
  if (plan.place == Place::step) return {};
  return plan.place == Place::reduce ? data_axis(plan, rank) : model_axis(plan, rank);
}

/// Three steps with activation checkpoints, tensor parallelism and an optimizer.
template <class Stage = zero::stage::PosG, class C>
void train(C& inner, Plan const& plan) {
  bool armed = false;
  int calls = 0;
  auto meet = [&](std::string_view group, Collective& op) {
    bool const meant = plan.inside && armed && group == group_of(plan, inner.rank());
    if (!meant || calls++ != plan.at) return;
    if (plan.kind == Kind::throws) throw std::runtime_error(faults::reason);
    op.bucket += 1000;
  };
  faults::Faulty world(inner, meet);
  static_assert(zero::NamingCommunicator<decltype(world)>);
  bool const culprit = inner.rank() == plan.culprit;
  Grid grid{world, plan.data, plan.model};
  std::size_t const columns = 24;
  zero::ShardedOptimizer optimizer{
      grid,
      {{.name = "scale", .shape = {100}, .unit = 0},
       {.name = "w", .shape = {50, columns}, .unit = 1, .partitioned = true}},
      Stage{},
      zero::Bucket{64}};
  optimizer.adopt_parameters();
  zero::Activations acts{grid.model(),
                         {{"x", 0, 70, zero::DType::f32}, {"x", 1, 70, zero::DType::f32}}};
  std::vector<float> x(70, 1.f);
  for (int step = 0; step < 3; ++step) {
    auto const now = [&](Place place) {
      armed = culprit && place == plan.place;
      bool const here = armed && !plan.inside && calls++ == plan.at;
      if (here && plan.kind == Kind::throws) throw std::runtime_error(faults::reason);
      if (here && plan.kind == Kind::hangs) {
        while (*plan.told < plan.data * plan.model - 1) std::this_thread::yield();
        return false;
      }
      return here;
    };
    acts.store(0, std::span<float const>(x));
    acts.store(1, std::span<float const>(x));
    for (int unit = 2; unit-- > 0;) {
      if (now(Place::fetch)) return;
      auto const kept = acts.fetch(unit);
      auto const weights = optimizer.parameters(unit);
      if (now(Place::all_reduce)) return;
      run(grid.model(),
          {.op = Op::all_reduce, .count = x.size(), .send = x.data(), .recv = x.data()});
      auto gradients = optimizer.gradients(unit);
      if (now(Place::reduce)) return;
      optimizer.reduce(std::move(gradients));
    }
    if (now(Place::step)) return;
    acts.end_step();
    optimizer.step({.max_norm = 1., .overlap_publish = true});
    armed = false;
  }
  optimizer.settle();
}

template <class Body>
Told run_plan(Plan const& plan, Body const& body) {
  auto group = InProcess::group(plan.data * plan.model, {.deadline_s = plan.deadline_s});
  return hear(std::move(group), [&](InProcess& comm) {
    try {
      body(comm, plan);
    } catch (Error const&) {
      if (plan.told != nullptr) ++*plan.told;
      throw;
    }
  });
}
Told run_plan(Plan const& plan) {
  return run_plan(plan, [](InProcess& comm, Plan const& own) {
    if (own.stage == 0) train<zero::stage::Replicated>(comm, own);
    if (own.stage == 1) train<zero::stage::Pos>(comm, own);
    if (own.stage == 2) train<zero::stage::PosG>(comm, own);
    if (own.stage == 3) train<zero::stage::PosGP>(comm, own);
  });
}

std::string text(Plan const& plan) {
  return std::to_string(plan.data) + " x " + std::to_string(plan.model) + ", rank " +
         std::to_string(plan.culprit) + ", place " + std::to_string(static_cast<int>(plan.place)) +
         ", kind " + std::to_string(static_cast<int>(plan.kind)) + (plan.inside ? ", inside" : "") +
         " at " + std::to_string(plan.at) + ", stage " + std::to_string(plan.stage);
}

/// Does a sentence say that it was on no other groups than the culprit's?
bool names_own_axis(Plan const& plan, std::string const& words) {
  return !contains(words, ", on the ") ||
         contains(words, ", on the " + model_axis(plan, plan.culprit)) ||
         contains(words, ", on the " + data_axis(plan, plan.culprit));
}

/// Calls `visit` with a product of shapes, culprits and places, at random times; of faults between
/// two calls under every stage.
template <class Visit>
void for_each_plan(Kind kind, bool inside, Visit const& visit) {
  std::mt19937 random(7);
  for (auto const& [data, model] : {std::pair{1, 2}, {2, 1}, {5, 1}, {2, 2}, {2, 3}, {3, 2}}) {
    for (int rank = 0; rank < data * model; ++rank) {
      for (Place const place : places) {
        for (unsigned const stage : {0u, 1u, 2u, 3u}) {
          if (inside && stage != 2) continue;
          unsigned const calls = inside || place == Place::step ? 3 : 6;
          Plan plan{.data = data,
                    .model = model,
                    .culprit = rank,
                    .place = place,
                    .kind = kind,
                    .inside = inside,
                    .stage = stage,
                    .at = static_cast<int>(random() % calls)};
          INFO(text(plan));
          visit(plan);
        }
      }
    }
  }
}

/// What a rank was told, without what it was at itself.
std::string story_of(Outcome const& told) {
  return told.message.substr(0, told.message.find("; this rank was in "));
}

/// All but the culprit are told the same, of a failed group.
std::string one_story(Plan const& plan, Told const& told) {
  std::string const story = story_of(told.ranks[plan.culprit == 0 ? 1 : 0]);
  for (int rank = 0; rank < plan.data * plan.model; ++rank) {
    if (rank == plan.culprit) continue;
    Outcome const& one = told.ranks[static_cast<std::size_t>(rank)];
    CHECK(one.failed);
    CHECK(one.kind == ErrorKind::communication);
    CHECK(story_of(one) == story);
    CHECK(!one.operation.empty());
    CHECK_MESSAGE((contains(one.what, one.operation) && contains(one.what, "bucket")), one.what);
    // Where this rank was, which may be elsewhere.
    bool const own = one.group.empty() || one.group == model_axis(plan, rank) ||
                     one.group == data_axis(plan, rank);
    CHECK_MESSAGE(own, one.group);
  }
  return story;
}

TEST_CASE("grid: a rank that throws on any axis ends all ranks with its words") {
  for (bool const inside : {false, true}) {
    for_each_plan(Kind::throws, inside, [](Plan const& plan) {
      // Alone on its model axis a rank gathers nothing.
      if (plan.inside && plan.place == Place::fetch && plan.model == 1) return;
      Told const told = run_plan(plan);
      CHECK(told.thrown == faults::reason);
      std::string const story = one_story(plan, told);
      std::string const expected =
          "rank " + std::to_string(plan.culprit) + " failed: " + faults::reason;
      CHECK_MESSAGE(story.starts_with(expected), story);
    });
  }
}

TEST_CASE("grid: a rank that leaves is named, with the axis where it was missed") {
  for_each_plan(Kind::leaves, false, [](Plan const& plan) {
    Told const told = run_plan(plan);
    std::string const story = one_story(plan, told);
    CHECK_MESSAGE(contains(told.thrown, story), told.thrown);
    // It may leave something behind that it has started.
    std::string const who = "rank " + std::to_string(plan.culprit);
    bool const named =
        story.starts_with(who + " left after ") || story.starts_with(who + " abandoned [");
    CHECK_MESSAGE(named, story);
    CHECK_MESSAGE(names_own_axis(plan, story), story);
  });
}

/// Where a group of one runs into its mistake alone, nobody is misled.
bool is_alone(Plan const& plan) {
  return (plan.place == Place::reduce && plan.data == 1) ||
         ((plan.place == Place::fetch || plan.place == Place::all_reduce) && plan.model == 1);
}

TEST_CASE("grid: a rank that calls something else is told so with all others, on its axis") {
  for_each_plan(Kind::differs, true, [](Plan const& plan) {
    if (is_alone(plan)) return;
    Told const told = run_plan(plan);
    std::string const story = one_story(plan, told);
    CHECK(story_of(told.ranks[static_cast<std::size_t>(plan.culprit)]) == story);
    std::string const group = group_of(plan, plan.culprit);
    CHECK_MESSAGE(contains(story, "rank " + std::to_string(plan.culprit) + " called ["), story);
    std::string const end = "they differ in bucket" + (group.empty() ? "" : ", on the " + group);
    CHECK_MESSAGE(
        contains(story, end + " (usually because a rank alone makes a call that is for all"),
        story);
  });
}

TEST_CASE("grid: a rank that hangs is named, not one that waits for it on another axis") {
  struct Run {
    Plan plan{};
    std::atomic<int> failed{0};
    Told told{};
  };
  std::vector<std::unique_ptr<Run>> runs;
  std::vector<std::thread> threads;
  for (int culprit = 0; culprit < 4; ++culprit) {
    for (Place const place : {Place::all_reduce, Place::reduce}) {
      runs.push_back(std::make_unique<Run>());
      Run& run = *runs.back();
      run.plan = {.data = 2, .model = 2, .culprit = culprit, .place = place, .kind = Kind::hangs};
      run.plan.at = 1;
      run.plan.deadline_s = 0.5;
      run.plan.told = &run.failed;
      // All at once: each is nothing but a wait.
      threads.emplace_back([&run] { run.told = run_plan(run.plan); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (auto const& run : runs) {
    INFO(text(run->plan));
    std::string const story = one_story(run->plan, run->told);
    CHECK(story_of(run->told.ranks[static_cast<std::size_t>(run->plan.culprit)]) == story);
    std::string const expected =
        "rank " + std::to_string(run->plan.culprit) + " did not arrive within 0.5 s";
    CHECK_MESSAGE(story.starts_with(expected), story);
    CHECK_MESSAGE(names_own_axis(run->plan, story), story);
  }
}

TEST_CASE("grid: ranks that wait for each other on two axes are told so all the same") {
  auto const body = [](InProcess& world) {
    Grid grid{world, 2, 2};
    // Along a ring: 0 for 1, 1 for 3, 3 for 2, 2 for 0.
    bool const model_first = world.rank() == 0 || world.rank() == 3;
    run(model_first ? grid.model() : grid.data(), {.op = Op::all_gather});
  };
  CHECK_THROWS_AS(zero::run_ranks(4, body, {.deadline_s = 0.2}), Error);
}

TEST_CASE("grid: what Checked finds on an axis reaches all ranks, with the axis") {
  auto const checked = [](InProcess& comm, Plan const& plan) {
    zero::Checked outer{comm};
    train(outer, plan);
  };
  for_each_plan(Kind::differs, true, [&](Plan const& plan) {
    if (is_alone(plan)) return;
    Told const told = run_plan(plan, checked);
    // Ranks of the group find it themselves; the others are told by one of those.
    std::string const group = group_of(plan, plan.culprit);
    int const on_axis = group.empty()                 ? plan.culprit
                        : plan.place == Place::reduce ? plan.culprit / plan.model
                                                      : plan.culprit % plan.model;
    for (Outcome const& one : told.ranks) {
      CHECK(one.failed);
      CHECK(one.kind == ErrorKind::communication);
      CHECK_MESSAGE(contains(one.message, "they differ in bucket"), one.message);
      CHECK_MESSAGE(names_own_axis(plan, one.message), one.message);
      if (!group.empty()) CHECK_MESSAGE(contains(one.message, "on the " + group), one.message);
      std::string const named = "rank " + std::to_string(on_axis) + " called";
      if (on_axis > 0) CHECK_MESSAGE(contains(one.message, named), one.message);
    }
  });
}

TEST_CASE("grid: ranks of a model axis that describe other activations are told on which") {
  Told const told = hear(InProcess::group(4), [](InProcess& world) {
    Grid grid{world, 2, 2};
    std::size_t const elements = world.rank() == 3 ? 71 : 70;
    zero::Activations acts{grid.model(), {{"x", 0, elements, zero::DType::f32}}};
    run(world, {.op = Op::all_gather});
  });
  for (Outcome const& one : told.ranks) {
    CHECK_MESSAGE(
        contains(one.what, "ranks disagree on the activations' descriptions of checkpoints"),
        one.what);
    CHECK_MESSAGE(contains(one.what, "on the model axis (data 1 of 2)"), one.what);
  }
  CHECK(told.ranks[3].group == "model axis (data 1 of 2)");
}

/// What comes out of an axis has its name.
template <class C>
void fail_on_axes(C& comm) {
  Grid grid{comm, 2, 2};
  // Of the call alone.
  try {
    run(grid.data(), {.op = Op::broadcast, .count = 1, .root = 9});
  } catch (Error const& error) {
    CHECK(error.kind() == ErrorKind::invalid_argument);
    CHECK(contains(error.what(),
                   grid.model().rank() == 0 ? ", on the data axis (model 0 of 2)"
                                            : ", on the data axis (model 1 of 2)"));
  }
  float x = 0;
  std::size_t const count = comm.rank() == 3 ? 0 : 1;
  run(grid.model(), {.op = Op::all_reduce, .count = count, .send = &x, .recv = &x});
  run(grid.world(), {.op = Op::all_gather});
}

TEST_CASE("grid: the axis is named over devices and by every decorator") {
  using Device = zero::DeviceGroup<fake::Api>;
  auto const spaces = fake::spaces(4, std::make_shared<fake::Machine>());
  Told const on_devices = hear(Device::group(spaces), fail_on_axes<Device>);
  Told const decorated = hear(InProcess::group(4), [](InProcess& comm) {
    zero::Counting counting{comm};
    zero::Traced traced{counting};
    fail_on_axes(traced);
  });
  std::string const axis = ", on the model axis (data 1 of 2)";
  for (Told const& told : {on_devices, decorated}) {
    for (Outcome const& one : told.ranks) {
      CHECK_MESSAGE(contains(one.what, "they differ in count" + axis), one.what);
    }
    for (std::size_t const rank : {2u, 3u}) {
      std::string const& what = told.ranks[rank].what;
      CHECK_MESSAGE(contains(what, "in all_reduce" + axis), what);
    }
  }
}

}  // namespace
}  // namespace grid_faults_test
