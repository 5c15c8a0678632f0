/// @file
/// Ranks of a small run with a loss scale, over a grid too, that save and load.
#pragma once

#include "checkpoint/proof.hpp"
#include "zero/comm/grid.hpp"

#include <memory>

namespace checkpoint_tests {

/// Who saves or loads.
struct Ranks {
  int data = 1;
  int model = 1;          ///< of a grid, if more than one
  std::size_t rows = 38;  ///< of the largest tensor

  [[nodiscard]] int all() const noexcept { return data * model; }
};
/// A rank's file is above the size from which two threads read it.
inline constexpr std::size_t many_rows = 100'000;

inline std::vector<Ranks> const everyone{{1}, {2}, {3}, {1, 2}, {2, 2}};

/// One rank, with a loss scale.
class Worker {
 public:
  using Optimizer =
      zero::ShardedOptimizer<zero::InProcess, zero::stage::PosG, zero::Mixed<zero::fp16>>;

  Worker(zero::InProcess& world, Ranks const& ranks) {
    std::vector<zero::Tensor> model{{.name = "w", .shape = {ranks.rows, 11}},
                                    {.name = "fixed", .shape = {40}, .frozen = true},
                                    {.name = "b", .shape = {}},
                                    {.name = "v", .shape = {301}},
                                    {.name = "tied", .shape = {301}, .tied_to = "v"}};
    if (ranks.model == 1) {
      optimizer_ = std::make_unique<Optimizer>(world, std::move(model), zero::Bucket{1 << 20});
    } else {
      grid_.emplace(world, ranks.data, ranks.model);
      std::uint64_t const share = ranks.rows / 2;
      auto const place = share * static_cast<std::uint64_t>(grid_->model().rank());
      parts_ = {{"w", {ranks.rows, 11}, {{{place, 0}, {share, 11}}}}};
      model[0].shape[0] = share;
      model[0].partitioned = true;
      optimizer_ = std::make_unique<Optimizer>(*grid_, std::move(model), zero::Bucket{1 << 20});
    }
    toy::load(*optimizer_);
  }
  [[nodiscard]] Optimizer& optimizer() noexcept { return *optimizer_; }
  [[nodiscard]] std::vector<zero::TensorPart> const& parts() const noexcept { return parts_; }

  void step() {
    for (int const unit : optimizer_->units_backward()) {
      auto gradients = optimizer_->gradients(unit);
      for (std::size_t i = 0; i < gradients.size(); ++i)
        std::ranges::fill(gradients[i], zero::fp16(64.f));
      optimizer_->reduce(std::move(gradients));
    }
    optimizer_->step();
  }
  /// All that this rank owns, and all that is counted.
  [[nodiscard]] std::pair<std::vector<float>, zero::Counters> contents() {
    return {owned(*optimizer_), optimizer_->counters()};
  }

 private:
  std::optional<zero::Grid<zero::InProcess>> grid_;
  std::vector<zero::TensorPart> parts_;
  std::unique_ptr<Optimizer> optimizer_;
};

/// Two steps and a save.
inline std::string save(ModelFiles& files, Ranks const& ranks) {
  std::string path;
  zero::run_ranks(ranks.all(), [&](zero::InProcess& world) {
    Worker worker(world, ranks);
    worker.step();
    worker.step();
    zero::Checkpoints run("run", {}, files);
    auto const saved = run.save(worker.optimizer(), {.parts = worker.parts()});
    if (world.rank() == 0) path = saved.path;
  });
  files.settle();
  return path;
}

}  // namespace checkpoint_tests
