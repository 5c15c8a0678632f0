/// @file
/// A small optimizer on each rank of a group, all that it holds, and files.
#pragma once

#include "equivalence/toy_model.hpp"
#include "fuzz/input.hpp"
#include "fuzz/place.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/comm/grid.hpp"
#include "zero/zero.hpp"

#include <memory>
#include <optional>

namespace fuzz {

using zero::ErrorKind;

/// Who takes part: data ranks, or with `grid` a model axis of two; and whether they hold more than
/// the 4 MiB from where on two threads read.
struct Group {
  int ranks = 1;
  bool grid = false;
  bool large = false;
};

/// Whether an input that asks for much gets it: the first does, and then one in a hundred, for each
/// takes as long as a hundred small ones.
inline bool much(bool asked) {
  static std::size_t turn = 0;
  return asked && turn++ % 100 == 0;
}

/// Elements that lie one after the other.
struct Piece {
  std::string tensor{};
  int array = 0;            ///< -1: parameters; 0: master weights; then states
  std::uint64_t first = 0;  ///< in the whole tensor
  std::vector<float> values{};

  /// Bit by bit; parameters are master weights in fp16.
  friend bool operator==(Piece const& a, Piece const& b) {
    auto const bits = [&](float x) {
      return std::bit_cast<std::uint32_t>(a.array < 0 ? static_cast<float>(zero::fp16(x)) : x);
    };
    return a.tensor == b.tensor && a.array == b.array &&
           std::ranges::equal(a.values, b.values, {}, bits, bits);
  }
};

/// "w" is divided over a model axis, and "head" is tied to it.
inline std::vector<zero::Tensor> model(Group const& group) {
  std::size_t const rows = group.grid ? 3 : 6;
  std::vector<zero::Tensor> tensors{
      {.name = "b", .shape = {}, .unit = 0},
      {.name = "fixed", .shape = {7}, .unit = 0, .frozen = true},
      {.name = "w", .shape = {rows, 5}, .unit = 1, .partitioned = group.grid},
      {.name = "v", .shape = {11}, .unit = 1},
      {.name = "head", .shape = {rows, 5}, .unit = 2, .tied_to = "w", .partitioned = group.grid}};
  if (group.large) tensors.push_back({.name = "big", .shape = {400, 1000}, .unit = 2});
  return tensors;
}

/// One rank.
template <class Stage>
class Rank {
 public:
  using Optimizer = zero::ShardedOptimizer<zero::InProcess, Stage, zero::Mixed<zero::fp16>>;

  Rank(zero::InProcess& comm, Group const& group) {
    zero::Bucket const bucket{group.large ? zero::Bucket{}.bytes : 64};
    if (group.grid) {
      grid_.emplace(comm, 1, 2);
      optimizer_ = std::make_unique<Optimizer>(*grid_, model(group), bucket);
      row_ = 3 * static_cast<std::uint64_t>(comm.rank());
    } else {
      optimizer_ = std::make_unique<Optimizer>(comm, model(group), bucket);
    }
    toy::load(*optimizer_);
  }

  [[nodiscard]] Optimizer& operator*() { return *optimizer_; }
  /// Which part of the whole model this rank has.
  [[nodiscard]] std::vector<zero::TensorPart> parts() const {
    if (!grid_) return {};
    return {{"w", {6, 5}, {{{row_, 0}, {3, 5}}}}, {"head", {6, 5}, {{{row_, 0}, {3, 5}}}}};
  }
  /// Collective.
  void step() {
    for (int const unit : optimizer_->units_backward()) {
      auto gradients = optimizer_->gradients(unit);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        for (auto& each : gradients[i]) each = zero::fp16(0.001f * optimizer_->loss_scale());
      }
      optimizer_->reduce(std::move(gradients));
    }
    try {
      optimizer_->step();
    } catch (zero::Error const&) {
      // What others have to do with this rank is brought to an end.
      optimizer_->discard_gradients();
      throw;
    }
  }
  /// All that this rank can see. Collective.
  [[nodiscard]] std::vector<Piece> held() {
    std::vector<Piece> all;
    auto const add = [&](std::string const& name, int array, std::size_t first, auto values) {
      if (name == "w" || name == "head") first += row_ * 5;
      all.push_back({name, array, first, {}});
      for (auto const value : values) all.back().values.push_back(static_cast<float>(value));
    };
    optimizer_->visit_owned([&](auto const& tensor, auto first, auto masters, auto const& states) {
      add(tensor.name, 0, first, masters);
      int array = 0;
      for (auto const& state : states) add(tensor.name, ++array, first, state);
    });
    for (int const unit : optimizer_->units()) {
      auto const weights = optimizer_->parameters(unit);
      std::size_t i = 0;
      for (zero::Tensor const& tensor : optimizer_->tensors()) {
        if (tensor.unit == unit) add(tensor.name, -1, 0, weights[i++]);
      }
    }
    optimizer_->settle();
    return all;
  }

 private:
  std::optional<zero::Grid<zero::InProcess>> grid_{};
  std::unique_ptr<Optimizer> optimizer_{};
  std::uint64_t row_ = 0;
};

/// Calls `work(rank, number)` on each rank of a group, under one of three stages.
template <class Work>
void with_ranks(std::size_t stage, Group const& group, Work const& work) {
  auto const run = [&]<class Stage>(Stage /*stage*/) {
    auto const body = [&](zero::InProcess& comm) {
      Rank<Stage> rank(comm, group);
      work(rank, comm.rank());
    };
    zero::run_ranks(group.grid ? 2 : group.ranks, body, {.deadline_s = 5});
  };
  if (stage == 0) return run(zero::stage::Pos{});
  if (stage == 1) return run(zero::stage::PosG{});
  run(zero::stage::PosGP{});
}

/// Why `work` throws, if it does; it may be of these kinds alone.
template <class Work>
[[nodiscard]] std::string failure(std::vector<ErrorKind> const& kinds, Work const& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    require(std::ranges::count(kinds, error.kind()) > 0, error.what());
    return error.what();
  }
  return {};
}

/// Is a tensor among those that a report names, with a reason or without?
inline bool named(std::vector<std::string> const& texts, std::string const& tensor) {
  std::string const name = tensor == "head" ? "w" : tensor;
  return std::ranges::any_of(
      texts, [&](std::string const& text) { return text == name || text.starts_with(name + " "); });
}

}  // namespace fuzz
