/// @file
/// Ranks on a grid of a data axis and a model axis.
#pragma once

#include "zero/base/compare_fields.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/grid_communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// `data` × `model` ranks of one group. Ranks that follow each other are on one model axis, so that
/// tensor parallelism, which sends most, stays within a node: rank r is number r / model on its
/// data axis and r % model on its model axis. An optimizer over the grid takes it in the place of a
/// communicator:
///
///     zero::Grid grid{world, 2, 4};
///     zero::ShardedOptimizer opt{grid, tensors, zero::stage::PosG{}};
///     zero::run(grid.model(), {...});  // the trainer's own all-reduces
///
/// All three groups share one fate: a rank that fails on either axis ends all of them, with one
/// sentence that numbers ranks as in `world()` and names the axis: "rank 3 left after 5
/// collectives, without [all_reduce of 8 fp32, no bucket], on the model axis (data 1 of 2)". What
/// `Checked` and `Activations` find different numbers ranks as in the axis that it names.
template <SplittableCommunicator C>
class Grid {
 public:
  using Communicator = C;  ///< of all three groups

  /// @param world  all ranks of the grid; must outlive it
  /// @param data   ranks of a data axis, which share optimizer states
  /// @param model  ranks of a model axis, which divide tensors
  /// @par Collective  yes; blocks, as two calls of `split`
  /// @throws Error (invalid_argument) unless `data` × `model` is the number of ranks, the same on
  ///   all of them: the error says which rank makes which grid, over memory that the host reaches;
  ///   (communication) as `split`
  Grid(C& world, int data, int model)
      : world_(&checked(world, data, model)),
        data_(axis(world, model, world.rank() % model, "data axis (model ", model)),
        model_(axis(world, model, world.rank() / model, "model axis (data ", data)) {
    if (data_.size() == data && model_.size() == model) return;
    fail(ErrorKind::invalid_argument,
         {"ranks make grids of different sizes, ", data, " x ", model, " here"},
         {.rank = world.rank(), .operation = "grid"});
  }

  [[nodiscard]] C& world() noexcept { return *world_; }  ///< all ranks
  [[nodiscard]] C& data() noexcept { return data_; }     ///< of this part of the model
  [[nodiscard]] C& model() noexcept { return model_; }   ///< that have the same data

  /// This rank's place in words, for messages: "rank 5 (data 2 of 4, model 1 of 2)".
  [[nodiscard]] std::string where() const {
    return Message({"rank ",
                    world_->rank(),
                    " (data ",
                    data_.rank(),
                    " of ",
                    data_.size(),
                    ", model ",
                    model_.rank(),
                    " of ",
                    model_.size(),
                    ")"})
        .text();
  }

 private:
  static C& checked(C& world, int data, int model) {
    bool const fits =
        data >= 1 && model >= 1 && world.size() % model == 0 && world.size() / model == data;
    if (!fits) {
      fail(ErrorKind::invalid_argument,
           {"a grid of ",
            data,
            " x ",
            model,
            " ranks (data axis x model axis) over a communicator of ",
            world.size()},
           {.rank = world.rank(), .operation = "grid"});
    }
    if constexpr (C::Space::host_accessible) compare(world, model);
    return world;
  }

  /// Says which ranks make which grid.
  static void compare(C& world, int model) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(world.size()));
    std::int32_t const mine = model;
    run(world,
        {.op = Op::all_gather, .dtype = DType::i32, .count = 1, .send = &mine, .recv = all.data()});
    if (std::count(all.begin(), all.end(), model) == world.size()) return;
    std::vector<std::string> grids;
    for (int const each : all) grids.push_back(Message({world.size() / each, " x ", each}).text());
    fail(ErrorKind::invalid_argument,
         detail::values_of_ranks({"ranks make different grids (data axis x model axis)"}, grids),
         {.rank = world.rank(), .operation = "grid"});
  }

  /// An axis, which is named after its place on the other one, of so many. Ranks that make another
  /// grid come into other groups, which then lack somebody.
  static C axis(C& world, int model, int place, char const* name, int others) {
    int grid = 0;
    for (int smaller = 1; smaller < model; ++smaller) grid += world.size() % smaller == 0 ? 1 : 0;
    return detail::split(world,
                         grid * world.size() + place,
                         world.rank(),
                         Message({name, place, " of ", others, ")"}).text());
  }

  C* world_;
  C data_;
  C model_;
};

}  // namespace zero::inline ZERO_NAMESPACE
