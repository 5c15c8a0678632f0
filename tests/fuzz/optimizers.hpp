/// @file
/// Optimizers that load what a fuzzer has made: alone, on several ranks, on grids; and all that a
/// rank can see of one.
#pragma once

#include "fuzz/input.hpp"
#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/grid.hpp"
#include "zero/zero.hpp"

namespace fuzz {

/// Who takes part: ranks of one data axis, or in pairs on model axes; and whether they hold more
/// than the 4 MiB from where on two threads read.
struct Group {
  int ranks = 1;
  bool grid = false;
  bool large = false;
};
inline constexpr Group groups[] = {{}, {2}, {3}, {2, true}, {1, false, true}, {4, true}};

/// One of the groups. Most inputs get the first: the others take ten to a hundred times as long, so
/// that only the first input that asks for one gets it, and then one in so many.
inline std::size_t chosen_group(Input& input) {
  static std::size_t turns[std::size(groups)]{};
  std::size_t const choice = input.below(64);
  if (choice < 59) return 0;
  std::size_t const group = choice == 59 ? 5 : choice - 59;
  return turns[group]++ % (groups[group].large ? 1000 : 50) == 0 ? group : 0;
}

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

/// Elements that lie one after the other.
struct Piece {
  std::string tensor{};
  int array = 0;                    ///< -1: parameters; 0: master weights; then states
  std::uint64_t first = 0;          ///< in the whole tensor
  std::vector<std::uint32_t> bits;  ///< of floats, as they are held

  Piece(std::string name, int of, std::uint64_t from, std::size_t size)
      : tensor(std::move(name)), array(of), first(from), bits(size) {}
  bool operator==(Piece const&) const = default;
  void set(std::size_t element, float value) {
    if (array < 0) value = static_cast<float>(zero::fp16(value));
    bits[element] = std::bit_cast<std::uint32_t>(value);
  }
};

/// Which part of the whole model a rank has whose "w" begins at a row.
inline std::vector<zero::TensorPart> parts(Group const& group, std::uint64_t row) {
  if (!group.grid) return {};
  return {{"w", {6, 5}, {{{row, 0}, {3, 5}}}}, {"head", {6, 5}, {{{row, 0}, {3, 5}}}}};
}

/// All that a rank can see. Collective.
template <class Optimizer>
std::vector<Piece> held(Optimizer& optimizer, std::uint64_t row) {
  std::vector<Piece> all;
  auto const add = [&](zero::Tensor const& tensor, int array, std::size_t first, auto values) {
    if (tensor.partitioned) first += row * 5;
    Piece& piece = all.emplace_back(tensor.name, array, first, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) piece.set(i, static_cast<float>(values[i]));
  };
  optimizer.visit_owned([&](auto const& tensor, auto first, auto masters, auto const& states) {
    add(tensor, 0, first, masters);
    int array = 0;
    for (auto const& state : states) add(tensor, ++array, first, state);
  });
  for (int const unit : optimizer.units()) {
    auto const weights = optimizer.parameters(unit);
    std::size_t i = 0;
    for (zero::Tensor const& tensor : optimizer.tensors())
      if (tensor.unit == unit) add(tensor, -1, 0, weights[i++]);
  }
  optimizer.settle();
  return all;
}

/// Calls `work(optimizer, rank, row)` on each rank of a group, under one of two stages.
template <class Work>
void with_ranks(bool stage, Group const& group, Work const& work) {
  auto const run = [&]<class Comm, class Stage>(Comm& comm, Stage /*stage*/) {
    int const pair = group.grid ? 2 : 1;
    zero::Grid<Comm> grid(comm, group.ranks / pair, pair);
    zero::ShardedOptimizer<Comm, Stage, zero::Mixed<zero::fp16>> optimizer(
        grid, model(group), zero::Bucket{group.large ? zero::Bucket{}.bytes : 64});
    toy::load(optimizer);
    work(optimizer, comm.rank(), 3u * static_cast<unsigned>(comm.rank() % pair));
  };
  if (group.ranks > 1) {
    return zero::run_ranks(group.ranks, [&](zero::InProcess& comm) {
      return stage ? run(comm, zero::stage::PosGP{}) : run(comm, zero::stage::PosG{});
    });
  }
  zero::Self alone;
  return stage ? run(alone, zero::stage::PosGP{}) : run(alone, zero::stage::Pos{});
}

/// Why `work` throws, if it does; it may be of these kinds alone.
template <class Work>
std::string failure(std::vector<zero::ErrorKind> const& kinds, Work const& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    require(std::ranges::count(kinds, error.kind()) > 0, error.what());
    return error.what();
  }
  return {};
}

/// Takes a step, unless values of a tensor are lost. Collective.
/// @returns whether it was taken
template <class Optimizer>
bool steps(Optimizer& optimizer) {
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      std::ranges::fill(gradients[i], zero::fp16(0.001f * optimizer.loss_scale()));
    optimizer.reduce(std::move(gradients));
  }
  auto const why = failure({zero::ErrorKind::invalid_argument}, [&] { optimizer.step(); });
  require(why.empty() || why.find(" of tensor '") != why.npos, "no tensor is named: " + why);
  if (!why.empty()) optimizer.discard_gradients();
  return why.empty();
}

}  // namespace fuzz
