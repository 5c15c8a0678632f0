/// One rank of a grid goes wrong, on either axis or on all ranks: every other rank of the grid
/// hears of it, in the same sentence, with the axis named.
#include "cuda/fake_runtime.hpp"
#include "faults/fault_run.hpp"
#include "zero/activations.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/decorators/traced.hpp"
#include "zero/comm/device_threads/group.hpp"
#include "zero/comm/grid.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace grid_faults_test {
namespace {

using faults::contains;
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
  int at = 0;           ///< that of its step, or the so many-eth collective of its step
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

/// Passes collectives on, until those of one group go wrong.
template <class C>
class Faulty {
 public:
  using Space = typename C::Space;
  using Ticket = typename C::Ticket;

  Faulty(C& comm, bool const& armed, Plan const& plan)
      : comm_(comm), armed_(&armed), plan_(&plan), world_rank_(comm.rank()) {}

  [[nodiscard]] int rank() const noexcept { return comm_.get().rank(); }
  [[nodiscard]] int size() const noexcept { return comm_.get().size(); }
  Ticket start(Collective op) {
    bool const meant =
        plan_->inside && *armed_ && std::string(group_name()) == group_of(*plan_, world_rank_);
    if (meant && calls_++ == plan_->at) {
      if (plan_->kind == Kind::throws) throw std::runtime_error(faults::reason);
      op.bucket += 1000;
    }
    return comm_.get().start(op);
  }
  void wait(Ticket& ticket) { comm_.get().wait(ticket); }
  [[nodiscard]] Faulty split(int color, int key, std::string_view name = {}) {
    return Faulty(zero::detail::split(comm_.get(), color, key, name), *this);
  }
  [[nodiscard]] std::string_view group_name() const {
    return zero::detail::group_name(comm_.get());
  }

 private:
  Faulty(C&& comm, Faulty const& parent)
      : comm_(std::move(comm)),
        armed_(parent.armed_),
        plan_(parent.plan_),
        world_rank_(parent.world_rank_) {}

  zero::detail::Wrapped<C> comm_;
  bool const* armed_;
  Plan const* plan_;
  int world_rank_;
  int calls_ = 0;
};
static_assert(zero::NamingCommunicator<Faulty<InProcess>>);

/// Three steps with activation checkpoints, tensor parallelism and an optimizer.
template <class C>
void train(C& inner, Plan const& plan) {
  bool armed = false;
  Faulty<C> world(inner, armed, plan);
  bool const culprit = inner.rank() == plan.culprit;
  Grid grid{world, plan.data, plan.model};
  std::size_t const columns = 24;
  zero::ShardedOptimizer optimizer{
      grid,
      {{.name = "scale", .shape = {100}, .unit = 0},
       {.name = "w", .shape = {50, columns}, .unit = 1, .partitioned = true}},
      zero::stage::PosG{},
      zero::Bucket{64}};
  optimizer.adopt_parameters();
  zero::Activations acts{grid.model(),
                         {{"x", 0, 70, zero::DType::f32}, {"x", 1, 70, zero::DType::f32}}};
  std::vector<float> x(70, 1.f);
  for (int step = 0; step < 3; ++step) {
    auto const now = [&](Place place) {
      armed = culprit && place == plan.place;
      bool const here = armed && !plan.inside && step == plan.at;
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
      if (now(Place::all_reduce)) return;
      run(grid.model(),
          {.op = Op::all_reduce, .count = x.size(), .send = x.data(), .recv = x.data()});
      if (now(Place::reduce)) return;
      optimizer.reduce(optimizer.gradients(unit));
    }
    if (now(Place::step)) return;
    acts.end_step();
    optimizer.step();
    armed = false;
  }
}

struct Told {
  bool failed = false;
  ErrorKind kind = ErrorKind::data;
  std::string message{};
  std::string group{};
};

/// Every rank's error, and what `run_ranks` threw in the end.
template <class Wrap>
std::pair<std::vector<Told>, std::string> run_plan(Plan const& plan, Wrap const& wrap) {
  std::vector<Told> told(static_cast<std::size_t>(plan.data * plan.model));
  std::string thrown;
  auto const body = [&](InProcess& comm) {
    try {
      wrap(comm, [&](auto& inner) { train(inner, plan); });
    } catch (Error const& error) {
      told[static_cast<std::size_t>(comm.rank())] = {
          true, error.kind(), error.message(), error.group()};
      if (plan.told != nullptr) ++*plan.told;
      throw;
    }
  };
  try {
    zero::run_ranks(plan.data * plan.model, body, {.deadline_s = plan.deadline_s});
  } catch (std::exception const& error) {
    thrown = error.what();
  }
  return {std::move(told), std::move(thrown)};
}

std::string text(Plan const& plan) {
  return std::to_string(plan.data) + " x " + std::to_string(plan.model) + ", rank " +
         std::to_string(plan.culprit) + ", place " + std::to_string(static_cast<int>(plan.place)) +
         ", kind " + std::to_string(static_cast<int>(plan.kind)) + (plan.inside ? ", inside" : "") +
         " at " + std::to_string(plan.at);
}

/// Does a sentence say that it was on no other groups than the culprit's?
bool names_own_axis(Plan const& plan, std::string const& words) {
  return !contains(words, ", on the ") ||
         contains(words, ", on the " + model_axis(plan, plan.culprit)) ||
         contains(words, ", on the " + data_axis(plan, plan.culprit));
}

/// Calls `visit` with a product of shapes, culprits and places, at random times.
template <class Visit>
void for_each_plan(Kind kind, bool inside, Visit const& visit) {
  std::mt19937 random(7);
  for (auto const& shape : {std::pair{1, 2}, {2, 1}, {2, 2}, {2, 3}, {3, 2}}) {
    for (int culprit = 0; culprit < shape.first * shape.second; ++culprit) {
      for (Place const place : places) {
        Plan plan{.data = shape.first,
                  .model = shape.second,
                  .culprit = culprit,
                  .place = place,
                  .kind = kind,
                  .inside = inside,
                  .at = static_cast<int>(random() % 3)};
        INFO(text(plan));
        visit(plan);
      }
    }
  }
}

/// All but the culprit are told the same, of a failed group.
std::string one_story(Plan const& plan, std::vector<Told> const& told) {
  std::string story;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (static_cast<int>(rank) == plan.culprit) continue;
    CHECK(told[rank].failed);
    CHECK(told[rank].kind == ErrorKind::communication);
    if (story.empty()) story = told[rank].message;
    CHECK(told[rank].message == story);
    // Where this rank was, which may be elsewhere.
    std::string const& group = told[rank].group;
    int const number = static_cast<int>(rank);
    bool const own =
        group.empty() || group == model_axis(plan, number) || group == data_axis(plan, number);
    CHECK_MESSAGE(own, group);
  }
  return story;
}

auto const plain = [](InProcess& comm, auto const& body) { body(comm); };

TEST_CASE("grid: a rank that throws on any axis ends all ranks with its words") {
  for (bool const inside : {false, true}) {
    for_each_plan(Kind::throws, inside, [](Plan const& plan) {
      // Alone on its model axis a rank gathers nothing.
      if (plan.inside && plan.place == Place::fetch && plan.model == 1) return;
      auto const [told, thrown] = run_plan(plan, plain);
      CHECK(thrown == faults::reason);
      std::string const story = one_story(plan, told);
      std::string const expected =
          "rank " + std::to_string(plan.culprit) + " failed: " + faults::reason;
      CHECK_MESSAGE(story.substr(0, expected.size()) == expected, story);
    });
  }
}

TEST_CASE("grid: a rank that leaves is named, with the axis where it was missed") {
  for_each_plan(Kind::leaves, false, [](Plan const& plan) {
    auto const [told, thrown] = run_plan(plan, plain);
    std::string const story = one_story(plan, told);
    CHECK_MESSAGE(contains(thrown, story), thrown);
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
    auto const [told, thrown] = run_plan(plan, plain);
    std::string const story = one_story(plan, told);
    CHECK(told[static_cast<std::size_t>(plan.culprit)].message == story);
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
    std::vector<Told> told{};
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
      threads.emplace_back([&run] { run.told = run_plan(run.plan, plain).first; });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (auto const& run : runs) {
    INFO(text(run->plan));
    std::string const story = one_story(run->plan, run->told);
    CHECK(run->told[static_cast<std::size_t>(run->plan.culprit)].message == story);
    std::string const expected =
        "rank " + std::to_string(run->plan.culprit) + " did not arrive within 0.5";
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
  auto const checked = [](InProcess& comm, auto const& body) {
    zero::Checked outer{comm};
    body(outer);
  };
  std::mt19937 random(7);
  for (int culprit = 0; culprit < 6; ++culprit) {
    for (Place const place : places) {
      Plan const plan{.data = 2,
                      .model = 3,
                      .culprit = culprit,
                      .place = place,
                      .kind = Kind::differs,
                      .inside = true,
                      .at = static_cast<int>(random() % 3)};
      INFO(text(plan));
      auto const [told, thrown] = run_plan(plan, checked);
      // Ranks of the group find it themselves; the others are told by one of those.
      std::string const group = group_of(plan, culprit);
      int const on_axis = group.empty()                 ? culprit
                          : plan.place == Place::reduce ? culprit / plan.model
                                                        : culprit % plan.model;
      for (Told const& one : told) {
        CHECK(one.failed);
        CHECK(one.kind == ErrorKind::communication);
        CHECK_MESSAGE(contains(one.message, "they differ in bucket"), one.message);
        CHECK_MESSAGE(names_own_axis(plan, one.message), one.message);
        if (!group.empty()) CHECK_MESSAGE(contains(one.message, "on the " + group), one.message);
        if (on_axis > 0) {
          CHECK_MESSAGE(contains(one.message, "rank " + std::to_string(on_axis) + " called"),
                        one.message);
        }
      }
    }
  }
}

TEST_CASE("grid: ranks of a model axis that describe other activations are told on which") {
  std::vector<Told> told(4);
  auto const body = [&](InProcess& world) {
    Grid grid{world, 2, 2};
    try {
      std::size_t const elements = world.rank() == 3 ? 71 : 70;
      zero::Activations acts{grid.model(), {{"x", 0, elements, zero::DType::f32}}};
      run(world, {.op = Op::all_gather});
    } catch (Error const& error) {
      told[static_cast<std::size_t>(world.rank())] = {
          true, error.kind(), error.what(), error.group()};
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(4, body), Error);
  for (Told const& one : told) {
    CHECK_MESSAGE(contains(one.message, "ranks differ in the descriptions of checkpoints"),
                  one.message);
    CHECK_MESSAGE(contains(one.message, "on the model axis (data 1 of 2)"), one.message);
  }
  CHECK(told[3].group == "model axis (data 1 of 2)");
}

/// Groups over devices, and decorators: what comes out of an axis has its name.
template <class C>
void check_names(C& comm, std::vector<std::string>& what) {
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
  auto const rank = static_cast<std::size_t>(comm.rank());
  try {
    float x = 0;
    std::size_t const count = rank == 3 ? 0 : 1;
    run(grid.model(), {.op = Op::all_reduce, .count = count, .send = &x, .recv = &x});
    run(grid.world(), {.op = Op::all_gather});
  } catch (Error const& error) {
    what[rank] = error.what();
    throw;
  }
}
void check_names(std::vector<std::string> const& what) {
  for (std::string const& words : what) {
    CHECK_MESSAGE(contains(words, "they differ in count, on the model axis (data 1 of 2)"), words);
  }
  for (std::size_t const rank : {2u, 3u}) {
    CHECK_MESSAGE(contains(what[rank], "in all_reduce, on the model axis (data 1 of 2)"),
                  what[rank]);
  }
}

TEST_CASE("grid: the axis is named over devices and by every decorator") {
  std::vector<std::string> what(4);
  using Device = zero::DeviceGroup<fake::Api>;
  auto const on_devices = [&](Device& comm) { check_names(comm, what); };
  auto const spaces = fake::spaces(4, std::make_shared<fake::Machine>());
  CHECK_THROWS_AS(zero::run_ranks(Device::group(spaces), on_devices), Error);
  check_names(what);
  auto const decorated = [&](InProcess& comm) {
    zero::Counting counting{comm};
    zero::Traced traced{counting};
    check_names(traced, what);
  };
  CHECK_THROWS_AS(zero::run_ranks(4, decorated), Error);
  check_names(what);
}

}  // namespace
}  // namespace grid_faults_test
