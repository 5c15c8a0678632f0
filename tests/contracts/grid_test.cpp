#include "zero/comm/grid.hpp"

#include "contracts/ranks.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

// A model that is divided over one axis of a grid and trained over the other: what is decided for
// all ranks counts every parameter once.
namespace grid_test {
namespace {

using zero::Grid;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;

constexpr std::size_t rows_of_w = 37;
constexpr std::size_t columns = 88;
constexpr int batches = 4;  ///< of a step, shared by the data axis

/// A matrix of which each model rank has so many columns, between two tensors that all have.
std::vector<zero::Tensor> part_of_model(std::size_t model) {
  return {{.name = "before", .shape = {700}, .unit = 0},
          {.name = "w", .shape = {rows_of_w, columns / model}, .unit = 0, .partitioned = true},
          {.name = "after", .shape = {rows_of_w}, .unit = 1},
          {.name = "v", .shape = {columns / model, 3}, .unit = 1, .partitioned = true},
          {.name = "fixed", .shape = {5}, .unit = 1, .frozen = true}};
}

/// The element of the whole model that an element of a part is.
std::size_t in_whole(std::size_t t, std::size_t i, std::size_t model, std::size_t part) {
  std::size_t const own = columns / model;
  if (t == 1) return i / own * columns + part * own + i % own;
  if (t == 3) return part * own * 3 + i;
  return i;
}

/// Exact in sums of any grouping. Squares of wide ones are not: one micro-batch of four has all
/// bits of a float, and those of some rows of the matrix outweigh the rest, so that it shows where
/// their sum is rounded.
float value(std::size_t t, std::size_t element, int micro_batch, bool wide = false) {
  float const uniform = toy::uniform(t, element, static_cast<std::uint64_t>(micro_batch));
  if (!wide) return std::floor(uniform * 16.f) / 8.f - 1.f;
  if (element % batches != static_cast<std::size_t>(micro_batch % batches)) return 0.f;
  std::size_t const row = t == 1 ? element / columns : 0;
  return (row > 10 && row < 23 ? 1.f : 0x1p-20f) / (3.f + uniform);
}

template <class Optimizer>
void load(Optimizer& optimizer, std::size_t model, std::size_t part) {
  auto const& tensors = optimizer.tensors();
  optimizer.load_parameters(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        auto const t = static_cast<std::size_t>(&tensor - tensors.data());
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] = value(t, in_whole(t, first + i, model, part), 1000);
        }
      });
}

/// Gradients of micro-batches [first, last).
template <class Optimizer>
void backward(Optimizer& optimizer, std::size_t model, std::size_t part, int first, int last) {
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
      if (optimizer.tensors()[t].frozen) return;
      auto const out = gradients[i];
      for (std::size_t e = 0; e < out.size(); ++e) {
        float sum = 0;
        for (int m = first; m < last; ++m) {
          sum += value(t, in_whole(t, e, model, part), m, sizeof(typename Optimizer::Wire) == 4);
        }
        out[e] = typename Optimizer::Wire(sum);
      }
    });
    optimizer.reduce(std::move(gradients));
  }
}

/// What all ranks of a grid end with.
struct End {
  std::vector<double> norms{};                   ///< of the steps
  std::vector<std::vector<float>> parameters{};  ///< of the whole model
  bool agree = true;                             ///< all ranks
  friend bool operator==(End const&, End const&) = default;
};

template <class Stage, class Precision>
End train(int data, int model, zero::Bucket bucket = {}) {
  End end;
  end.parameters.resize(5);
  std::mutex mutex;
  zero::run_ranks(data * model, [&](InProcess& world) {
    Grid grid{world, data, model};
    auto const parts = static_cast<std::size_t>(model);
    auto const part = static_cast<std::size_t>(grid.model().rank());
    contracts::Optimizer<Stage, Precision> optimizer{
        grid, part_of_model(parts), bucket, zero::AdamW{.lr = 0.01f}};
    load(optimizer, parts, part);
    std::vector<double> norms;
    for (int step = 0; step < 5; ++step) {
      int const each = batches / data;
      int const first = step * batches + grid.data().rank() * each;
      optimizer.micro_step({.weight = static_cast<double>(each), .last = true});
      backward(optimizer, parts, part, first, first + each);
      zero::StepReport const report = optimizer.step({.max_norm = 0.5});
      CHECK(report.weight == batches);
      CHECK(report.clip_coefficient < 1.);
      norms.push_back(report.grad_norm);
    }
    auto const all = optimizer.full_parameters();
    std::lock_guard const lock(mutex);
    for (std::size_t t = 0; t < all.size(); ++t) {
      auto& whole = end.parameters[t];
      whole.resize(all[t].size() * (optimizer.tensors()[t].partitioned ? parts : 1),
                   std::numeric_limits<float>::infinity());
      for (std::size_t e = 0; e < all[t].size(); ++e) {
        float& at = whole[in_whole(t, e, parts, part)];
        auto const now = static_cast<float>(all[t][e]);
        end.agree = end.agree && (std::isinf(at) || at == now);
        at = now;
      }
    }
    end.agree = end.agree && (end.norms.empty() || end.norms == norms);
    end.norms = norms;
  });
  CHECK(end.agree);
  return end;
}

TEST_CASE("every rank is on a data axis and on a model axis, and neighbours on one model axis") {
  std::mutex mutex;
  std::set<std::pair<int, int>> places;
  zero::run_ranks(6, [&](InProcess& world) {
    Grid grid{world, 2, 3};
    CHECK(&grid.world() == &world);
    CHECK(grid.data().size() == 2);
    CHECK(grid.model().size() == 3);
    CHECK(grid.data().rank() == world.rank() / 3);
    CHECK(grid.model().rank() == world.rank() % 3);
    if (world.rank() == 4) CHECK(grid.where() == "rank 4 (data 1 of 2, model 1 of 3)");
    std::lock_guard const lock(mutex);
    places.insert({grid.data().rank(), grid.model().rank()});
  });
  CHECK(places.size() == 6);
  for (auto const& axes : {std::pair{2, 2}, {6, 0}, {-1, -6}, {1, 7}}) {
    zero::run_ranks(6, [&](InProcess& world) {
      int const data = axes.first;
      int const model = axes.second;
      std::string const refused = refusal([&] { Grid{world, data, model}; });
      CHECK(refused == "a grid of " + std::to_string(data) + " x " + std::to_string(model) +
                           " ranks (data axis x model axis) over a communicator of 6");
    });
  }
}

TEST_CASE_TEMPLATE("a divided model has the norm and the steps of the whole one",
                   Precision,
                   zero::Fp32,
                   Bf16) {
  End const whole = train<PosG, Precision>(1, 1);
  for (auto const& axes : {std::pair{1, 2}, {2, 2}, {2, 4}, {4, 1}}) {
    int const data = axes.first;
    int const model = axes.second;
    CAPTURE(data);
    CAPTURE(model);
    End const end = train<PosG, Precision>(data, model);
    // The order in which squares are added differs, and a clip coefficient's last bit with it.
    for (std::size_t s = 0; s < end.norms.size(); ++s) {
      CHECK(end.norms[s] == doctest::Approx(whole.norms[s]).epsilon(1e-14));
    }
    for (std::size_t t = 0; t < whole.parameters.size(); ++t) {
      REQUIRE(end.parameters[t].size() == whole.parameters[t].size());
      float largest = 0;
      for (std::size_t i = 0; i < whole.parameters[t].size(); ++i) {
        largest = (std::max)(largest, std::abs(end.parameters[t][i] - whole.parameters[t][i]));
      }
      CHECK(largest <= (std::is_same_v<Precision, zero::Fp32> ? 1e-6f : 0.02f));
    }
    // For one size of the model axis neither stage, nor bucket, nor data axis changes a bit.
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{9000}}) {
      CHECK(train<PosGP, Precision>(data, model, zero::Bucket{bytes}) == end);
      CHECK(train<Pos, Precision>(data, model, zero::Bucket{bytes}) == end);
      CHECK(train<Replicated, Precision>(data, model, zero::Bucket{bytes}) == end);
    }
    CHECK(train<PosGP, Precision>(1, model) == end);
  }
}

using Optimizer = contracts::Optimizer<PosG, zero::Fp32>;

/// A grid of 2 x 2 and the optimizer of a divided model over it, whose description may be changed.
struct Trainer {
  template <class Change>
  Trainer(InProcess& world, Change const& change)
      : grid{world, 2, 2}, part(static_cast<std::size_t>(grid.model().rank())) {
    auto tensors = part_of_model(2);
    change(grid, tensors);
    optimizer.emplace(grid, tensors);
    load(*optimizer, 2, part);
  }
  explicit Trainer(InProcess& world) : Trainer(world, [](auto&, auto&) {}) {}
  void step(zero::StepOptions const& options = {}) {
    backward(*optimizer, 2, part, 0, 1);
    optimizer->step(options);
  }
  Grid<InProcess> grid;
  std::size_t part;
  std::optional<Optimizer> optimizer{};
};

using Words = std::vector<std::string>;

/// Four ranks that are refused alike: each is told this, and of its place.
template <class Work>
void check_refused(Words const& places, std::string const& expected, Work const& work) {
  zero::run_ranks(4, [&](InProcess& world) {
    try {
      work(world);
      FAIL_CHECK("not refused");
    } catch (zero::Error const& error) {
      CHECK_MESSAGE(error.message().find(expected) != std::string::npos, error.message());
      CHECK(error.group() == places[static_cast<std::size_t>(world.rank())]);
      if (error.group().starts_with("grid")) CHECK(error.rank() == world.rank());
    }
  });
}

Words const grid_places{"grid (data 0 of 2, model 0 of 2)",
                        "grid (data 0 of 2, model 1 of 2)",
                        "grid (data 1 of 2, model 0 of 2)",
                        "grid (data 1 of 2, model 1 of 2)"};

TEST_CASE("ranks that have described another model, on either axis, are named") {
  // Rank 3 alone, both ranks of a model axis, both of a data axis.
  struct {
    bool (*is_wrong)(Grid<InProcess>&);
    void (*wrong)(zero::Tensor&);
    char const* expected;
  } const rows[]{
      {[](auto& grid) { return grid.world().rank() == 3; },
       [](auto& w) { w.partitioned = false; },
       ", 'w' [37, 44], partitioned flag: 1 on rank 0 1 2; 0 on rank 3"},
      {[](auto& grid) { return grid.model().rank() == 1; },
       [](auto& w) { w.partitioned = false; },
       ", 'w' [37, 44], partitioned flag: 1 on rank 0 2; 0 on rank 1 3"},
      {[](auto& grid) { return grid.data().rank() == 1; },
       [](auto& w) { w.shape = {rows_of_w * columns / 2}; },
       ": 'w' [37, 44] on rank 0 1; 'w' [1628] on rank 2 3"},
  };
  for (auto const& row : rows) {
    check_refused(grid_places, "tensor 1" + std::string(row.expected), [&](InProcess& world) {
      Trainer{world, [&](auto& grid, auto& tensors) {
                if (row.is_wrong(grid)) row.wrong(tensors[1]);
              }};
    });
  }
}

TEST_CASE("tensors that all ranks of a model axis should have alike are compared") {
  check_refused(
      {"model axis (data 0 of 2)",
       "model axis (data 0 of 2)",
       "model axis (data 1 of 2)",
       "model axis (data 1 of 2)"},
      "ranks 0 and 1 of a model axis start from different values of tensor 'w'",
      [](InProcess& world) {
        Trainer trainer{world, [](auto&, auto& tensors) { tensors[1].partitioned = false; }};
        trainer.step();
      });
}

TEST_CASE("options that differ on a model axis are named with the ranks of the world") {
  check_refused(grid_places, "max_norm: 1 on rank 0 1 2; 2 on rank 3", [](InProcess& world) {
    Trainer trainer{world};
    trainer.step({.max_norm = world.rank() == 3 ? 2. : 1.});
  });
}

TEST_CASE("grids that are mixed up end all ranks with one story") {
  // One rank trains over the other grid, whose axes have the same sizes and other ranks.
  Words said(4);
  auto const body = [&](InProcess& world) {
    InProcess turned = world.split(0, world.rank() < 2 ? world.rank() : 5 - world.rank());
    Grid grid{world, 2, 2};
    Grid other{turned, 2, 2};
    try {
      Optimizer optimizer{world.rank() == 3 ? other : grid, part_of_model(2)};
      load(optimizer, 2, 0);
      zero::run(grid.model(), {.op = zero::Op::all_gather});
    } catch (zero::Error const& error) {
      said[static_cast<std::size_t>(world.rank())] = error.message();
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(4, body, {.deadline_s = 0.3}), zero::Error);
  for (std::string const& text : said) {
    CHECK_MESSAGE(text.find(" did not arrive within 0.3 s") != std::string::npos, text);
    CHECK(text == said[0]);
  }
}

TEST_CASE("ranks that make grids of different sizes are told so") {
  // Wherever the one rank is, and also those are told whose axes are complete.
  for (int odd = 0; odd < 6; ++odd) {
    auto const said = contracts::endings(6, [&](InProcess& world) {
      bool const other = world.rank() == odd;
      Grid grid{world, other ? 2 : 3, other ? 3 : 2};
      zero::run(world, {.op = zero::Op::all_gather});
    });
    std::string others;
    for (int rank = 0; rank < 6; ++rank) {
      if (rank != odd) others += " " + std::to_string(rank);
    }
    std::string const usual = "3 x 2 on rank" + others;
    std::string const other = "2 x 3 on rank " + std::to_string(odd);
    for (std::string const& text : said) {
      CHECK(text == "ranks make different grids (data axis x model axis): " +
                        (odd == 0 ? other + "; " + usual : usual + "; " + other));
    }
  }
}

TEST_CASE("a gradient that is not finite on one rank of the grid stops the step of all") {
  zero::run_ranks(4, [](InProcess& world) {
    Trainer trainer{world};
    auto& optimizer = *trainer.optimizer;
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      if (unit == 0 && world.rank() == 3) gradients["w"][5] = NAN;
      optimizer.reduce(std::move(gradients));
    }
    CHECK(optimizer.step({.non_finite = zero::NonFinite::skip}).skipped);
    CHECK(optimizer.steps() == 0);
    // Rank 1 has the same part of the model; ranks 0 and 2 have nothing to do with the element.
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      if (unit == 0 && world.rank() == 3) gradients["w"][5] = NAN;
      optimizer.reduce(std::move(gradients));
    }
    auto const result = optimizer.try_step();
    REQUIRE(result.error() != nullptr);
    CHECK(result.error()->message() ==
          "gradients are not finite: first element 5 of 'w', which rank 1 owns");
  });
}

TEST_CASE("a rank of a grid holds what its part of the model is planned to take") {
  zero::run_ranks(4, [](InProcess& world) {
    Trainer const trainer{world};
    auto const plan = Optimizer::plan({.world_size = 2}, part_of_model(2));
    CHECK(trainer.optimizer->held() == plan.memory);
    CHECK(plan.memory.total() <
          Optimizer::plan({.world_size = 2}, part_of_model(1)).memory.total());
  });
}

}  // namespace
}  // namespace grid_test
