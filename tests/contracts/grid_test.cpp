#include "zero/comm/grid.hpp"

#include "contracts/loop.hpp"
#include "support/refusal.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

constexpr std::size_t rows = 37;
constexpr std::size_t columns = 88;
constexpr int batches = 4;  ///< of a step, shared by the data axis

/// A matrix of which each model rank has so many columns, between two tensors that all have.
std::vector<zero::Tensor> part_of_model(std::size_t model) {
  return {{.name = "before", .shape = {700}, .unit = 0},
          {.name = "w", .shape = {rows, columns / model}, .unit = 0, .partitioned = true},
          {.name = "after", .shape = {rows}, .unit = 1},
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
    zero::ShardedOptimizer<InProcess, Stage, Precision> optimizer{
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
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
      std::lock_guard const lock(mutex);
      contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
        auto& whole = end.parameters[t];
        whole.resize(weights[i].size() * (optimizer.tensors()[t].partitioned ? parts : 1),
                     std::numeric_limits<float>::infinity());
        for (std::size_t e = 0; e < weights[i].size(); ++e) {
          float& at = whole[in_whole(t, e, parts, part)];
          auto const now = static_cast<float>(weights[i][e]);
          end.agree = end.agree && (std::isinf(at) || at == now);
          at = now;
        }
      });
    }
    std::lock_guard const lock(mutex);
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

/// Two steps on a grid of 2 x 2, with something wrong on rank 3: what all are told, and where.
template <class Wrong>
std::vector<std::string> refused(Wrong const& wrong, std::vector<std::string>* places = nullptr) {
  std::vector<std::string> said(4);
  zero::run_ranks(4, [&](InProcess& world) {
    Grid grid{world, 2, 2};
    auto tensors = part_of_model(2);
    auto const part = static_cast<std::size_t>(grid.model().rank());
    try {
      wrong(grid, tensors, [&](auto& optimizer, zero::StepOptions const& options) {
        if (optimizer.steps() == 0) load(optimizer, 2, part);
        backward(optimizer, 2, part, 0, 1);
        optimizer.step(options);
      });
    } catch (zero::Error const& error) {
      auto const rank = static_cast<std::size_t>(world.rank());
      said[rank] = error.message();
      if (places != nullptr) (*places)[rank] = error.group();
      CHECK(error.rank() == world.rank());
    }
  });
  return said;
}

using Optimizer = contracts::Optimizer<PosG, zero::Fp32>;

std::vector<std::string> const grid_places{"grid (data 0 of 2, model 0 of 2)",
                                           "grid (data 0 of 2, model 1 of 2)",
                                           "grid (data 1 of 2, model 0 of 2)",
                                           "grid (data 1 of 2, model 1 of 2)"};

TEST_CASE("ranks that have described another model, on either axis, are named") {
  // Rank 3 alone, both ranks of a model axis, both of a data axis.
  auto const check = [](auto const& is_wrong, auto const& wrong, std::string const& expected) {
    std::vector<std::string> places(4);
    auto const said = refused(
        [&](auto& grid, auto tensors, auto const&) {
          if (is_wrong(grid)) wrong(tensors);
          Optimizer optimizer{grid, tensors};
        },
        &places);
    for (std::string const& text : said)
      CHECK_MESSAGE(text.find(expected) != std::string::npos, text);
    CHECK(places == grid_places);
  };
  auto const rank_3 = [](auto& grid) { return grid.world().rank() == 3; };
  auto const model_1 = [](auto& grid) { return grid.model().rank() == 1; };
  auto const data_1 = [](auto& grid) { return grid.data().rank() == 1; };
  auto const whole = [](auto& tensors) { tensors[1].partitioned = false; };
  auto const wide = [](auto& tensors) { tensors[1].shape = {rows * columns / 2}; };
  std::string const w = "tensor 1, here 'w', ";
  check(rank_3, whole, w + "partitioned flag: 1 on rank 0 1 2; 0 on rank 3");
  check(model_1, whole, w + "partitioned flag: 1 on rank 0 2; 0 on rank 1 3");
  check(data_1, wide, w + "shape: '[37, 44]' on rank 0 1; '[1628]' on rank 2 3");
}

TEST_CASE("tensors that all ranks of a model axis should have alike are compared") {
  std::vector<std::string> places(4);
  zero::run_ranks(4, [&](InProcess& world) {
    Grid grid{world, 2, 2};
    auto tensors = part_of_model(2);
    tensors[1].partitioned = false;
    Optimizer optimizer{grid, tensors};
    auto const rank = static_cast<std::size_t>(world.rank());
    load(optimizer, 2, rank % 2);
    try {
      backward(optimizer, 2, rank % 2, 0, 1);
      optimizer.step();
    } catch (zero::Error const& error) {
      CHECK(error.message() ==
            "ranks of a model axis start from different values of tensor 'w': 0 and 1, 1 and 0");
      places[rank] = error.group();
    }
  });
  CHECK(places == std::vector<std::string>{"model axis (data 0 of 2)",
                                           "model axis (data 0 of 2)",
                                           "model axis (data 1 of 2)",
                                           "model axis (data 1 of 2)"});
}

TEST_CASE("options that differ on a model axis are named with the ranks of the world") {
  std::vector<std::string> places(4);
  auto const said = refused(
      [](auto& grid, auto tensors, auto const& step) {
        Optimizer optimizer{grid, tensors};
        step(optimizer, {.max_norm = grid.world().rank() == 3 ? 2. : 1.});
      },
      &places);
  for (std::string const& text : said) {
    CHECK_MESSAGE(text.find("max_norm: 1 on rank 0 1 2; 2 on rank 3") != std::string::npos, text);
  }
  CHECK(places == grid_places);
}

TEST_CASE("grids that are mixed up end all ranks with one story") {
  // One rank trains over the other grid, whose axes have the same sizes and other ranks.
  std::vector<std::string> said(4);
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
    CHECK_MESSAGE(text.find(" did not arrive within 0.3") != std::string::npos, text);
    CHECK(text == said[0]);
  }
}

TEST_CASE("ranks that make grids of different sizes are told so") {
  // Wherever the one rank is: of its axes, or of those that lack it, all others are told by it.
  for (int odd = 0; odd < 6; ++odd) {
    std::vector<std::string> said(6);
    auto const body = [&](InProcess& world) {
      try {
        bool const other = world.rank() == odd;
        Grid grid{world, other ? 2 : 3, other ? 3 : 2};
        zero::run(world, {.op = zero::Op::all_gather});
      } catch (zero::Error const& error) {
        said[static_cast<std::size_t>(world.rank())] = error.message();
        throw;
      }
    };
    CHECK_THROWS_AS(zero::run_ranks(6, body), zero::Error);
    for (std::string const& text : said) {
      CHECK_MESSAGE(text.find("ranks make grids of different sizes, ") != std::string::npos, text);
    }
  }
}

TEST_CASE("a grid that a rank gives up before the others are through is an error that names it") {
  std::vector<std::string> said(4);
  auto const body = [&](InProcess& world) {
    try {
      {
        Grid grid{world, 2, 2};
        if (world.rank() != 2) zero::run(grid.model(), {.op = zero::Op::all_gather});
      }
      zero::run(world, {.op = zero::Op::all_gather});
    } catch (zero::Error const& error) {
      said[static_cast<std::size_t>(world.rank())] = error.message();
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(4, body), zero::Error);
  for (std::string const& text : said) {
    CHECK(text ==
          "rank 2 left after 0 collectives, without [all_gather of 0 fp32, no bucket], on the "
          "model axis (data 1 of 2)");
  }
}

TEST_CASE("a gradient that is not finite on one rank of the grid stops the step of all") {
  zero::run_ranks(4, [](InProcess& world) {
    Grid grid{world, 2, 2};
    Optimizer optimizer{grid, part_of_model(2)};
    load(optimizer, 2, static_cast<std::size_t>(grid.model().rank()));
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      if (unit == 0 && world.rank() == 3) gradients["w"][5] = NAN;
      optimizer.reduce(std::move(gradients));
    }
    CHECK(optimizer.step({.non_finite = zero::NonFinite::skip}).skipped);
    CHECK(optimizer.steps() == 0);
  });
}

TEST_CASE("a rank that fails on one axis ends all ranks of the grid with one story") {
  std::vector<std::string> said(6);
  auto const body = [&](InProcess& world) {
    try {
      Grid grid{world, 3, 2};
      Optimizer optimizer{grid, part_of_model(2)};
      load(optimizer, 2, static_cast<std::size_t>(grid.model().rank()));
      for (int step = 0; step < 3; ++step) {
        backward(optimizer, 2, static_cast<std::size_t>(grid.model().rank()), 0, 1);
        if (world.rank() == 3 && step == 1) throw std::runtime_error("the disk is on fire");
        optimizer.step();
      }
    } catch (std::exception const& error) {
      said[static_cast<std::size_t>(world.rank())] = error.what();
      throw;
    }
  };
  CHECK_THROWS_WITH_AS(zero::run_ranks(6, body), "the disk is on fire", std::runtime_error);
  for (std::string const& text : said) {
    CHECK_MESSAGE(text.find("the disk is on fire") != std::string::npos, text);
  }
}

TEST_CASE("a rank of a grid holds what its part of the model is planned to take") {
  zero::run_ranks(4, [](InProcess& world) {
    Grid grid{world, 2, 2};
    Optimizer optimizer{grid, part_of_model(2)};
    auto const plan = Optimizer::plan({.world_size = 2}, part_of_model(2));
    CHECK(optimizer.held() == plan.memory);
    CHECK(plan.memory.total() <
          Optimizer::plan({.world_size = 2}, part_of_model(1)).memory.total());
  });
}

}  // namespace
}  // namespace grid_test
