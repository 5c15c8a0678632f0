#include "zero/checkpoint/description.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/stacked.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/model.hpp"

#include <nlohmann/json.hpp>

namespace description_test {
namespace {

using zero::Box;
using zero::TensorPart;

TEST_CASE("boxes that no tensor can have are said to be wrong") {
  using zero::detail::problem_of_boxes;
  std::vector<std::uint64_t> const shape{4, 6};
  CHECK(problem_of_boxes(shape, {{{0, 2}, {4, 4}}, {{1, 1}, {3, 5}}}).empty());
  CHECK(problem_of_boxes(shape, {{{0}, {4}}}) == "has a box of another number of axes");
  CHECK(problem_of_boxes(shape, {{{0, 3}, {4, 4}}}) == "has a box that reaches out of its shape");
  CHECK(problem_of_boxes(shape, {{{5, 0}, {0, 6}}}) == "has a box that reaches out of its shape");
  CHECK(problem_of_boxes({~std::uint64_t{0}, 2}, {}) == "has more elements than can be counted");
  std::vector<Box> many(zero::detail::most_boxes, Box{{0, 0}, {1, 1}});
  CHECK(problem_of_boxes(shape, many).empty());
  many.push_back(many[0]);
  CHECK(problem_of_boxes(shape, many) == "has more than 4096 boxes");
}

TEST_CASE("a tensor is described as the part that the trainer says it is") {
  std::vector<zero::Tensor> const tensors{{.name = "w", .shape = {4, 3}},
                                          {.name = "b", .shape = {3}, .weight_decay = 0.f},
                                          {.name = "s", .shape = {2, 5}, .stacked = true}};
  zero::Slices slices = zero::take_apart(tensors);
  zero::Partition const partition(slices.tensors, {.world_size = 1});
  zero::detail::Model const model(tensors, std::move(slices), partition);
  zero::Counters const counters{.steps = {7, 7, 7, 6}};
  TensorPart const half{.tensor = "w", .shape = {4, 6}, .boxes = {{{0, 3}, {4, 3}}}};
  auto const saved = zero::detail::described(model, {half}, counters, false);
  CHECK(saved[0].shape == half.shape);
  CHECK(saved[0].boxes == half.boxes);
  CHECK(saved[0].steps == 7);
  CHECK(saved[1].boxes == std::vector<Box>{{{0}, {3}}});
  CHECK(saved[1].weight_decay == 0.f);
  CHECK(saved[1].layers == 0);
  CHECK(saved[3].name == "s[1]");
  CHECK(saved[3].shape == std::vector<std::uint64_t>{5});
  CHECK(saved[3].layers == 2);
  CHECK(saved[3].steps == 6);
  // What is written is what is read.
  zero::SavedOptimizer const all{.tensors = saved, .loss_scale = 8.f, .loss_scale_streak = 3};
  auto const again =
      zero::detail::parse_optimizer("it", nlohmann::json::parse(zero::detail::json_of(all).dump()));
  CHECK(zero::detail::json_of(again) == zero::detail::json_of(all));
  CHECK(again.tensors[0].boxes == half.boxes);

  auto const refused = [&](TensorPart const& part) {
    return refusal(
        [&] { static_cast<void>(zero::detail::described(model, {part}, counters, false)); });
  };
  CHECK(refused({.tensor = "x", .shape = {1}, .boxes = {{{0}, {1}}}}) ==
        "the part of tensor 'x' is of no tensor of this optimizer");
  CHECK(refused({.tensor = "w", .shape = {4, 6}, .boxes = {{{0, 3}, {4, 2}}}}) ==
        "the part of tensor 'w' has 8 elements, and the tensor 12");
}

TEST_CASE("layers have one name each") {
  using zero::detail::layer_name;
  REQUIRE(layer_name("h[1].w[12]"));
  CHECK(layer_name("h[1].w[12]")->whole == "h[1].w");
  CHECK(layer_name("h[1].w[12]")->layer == 12);
  for (char const* const name : {"",
                                 "w",
                                 "[1]",
                                 "w[]",
                                 "w[1",
                                 "w[1]x",
                                 "w[01]",
                                 "w[-1]",
                                 "w[+1]",
                                 "w[1 ]",
                                 "w[18446744073709551616]"}) {
    CAPTURE(name);
    CHECK(!layer_name(name));
  }
}

}  // namespace
}  // namespace description_test
