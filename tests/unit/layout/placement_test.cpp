/// Tensors, and where they lie.
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/layout/placement.hpp>
#include <zero/layout/tensor.hpp>

namespace placement_test {
namespace {

using zero::Placement;
using zero::Tensor;

std::string refused(std::vector<Tensor> const& model) {
  return refusal([&] { Placement const placement(model); });
}

Tensor tensor(std::string name, std::size_t size, int unit) {
  return {.name = std::move(name), .shape = {size}, .unit = unit};
}

Tensor tied(std::string name, std::size_t size, int unit, std::string to) {
  Tensor result = tensor(std::move(name), size, unit);
  result.tied_to = std::move(to);
  return result;
}

Tensor frozen(std::string name, std::size_t size, int unit) {
  Tensor result = tensor(std::move(name), size, unit);
  result.frozen = true;
  return result;
}

Tensor whole(std::string name, std::size_t size, int unit) {
  Tensor result = frozen(std::move(name), size, unit);
  result.whole = true;
  return result;
}

constexpr std::size_t two_to(int exponent) { return std::size_t{1} << exponent; }

std::string const multiplied = "a size does not fit in 64 bits (multiplication overflows)";
std::string const added = "a size does not fit in 64 bits (addition overflows)";

}  // namespace

TEST_CASE("kinds begin at a block, and who shares memory is of one kind") {
  std::vector<Tensor> const model{
      tensor("a", 5, 0), tensor("b", 600, 1), tensor("c", 7, 0), tied("d", 5, 2, "a")};
  Placement const placement(model, {1, 0, 1, 1});
  CHECK(placement.kinds() == std::vector<zero::StorageKind>{{}, {.types = 1}});
  CHECK(placement.trained_kinds() == 2);
  CHECK(placement.places()[1].offset == 0);
  // What is tied comes first in its unit, and kinds in their order.
  CHECK(placement.places()[0].offset == 1024);
  CHECK(placement.places()[2].offset == 1536);
  CHECK(placement.places()[3].offset == 1024);
  for (zero::Cluster const& cluster : placement.clusters()) {
    CHECK(cluster.kind == (cluster.begin == 0 ? 0 : 1));
  }
  CHECK(refusal([&] {
          Placement const other(model, {1, 0, 1, 0});
        }) == "tensor 'd' is tied to 'a', which is held in other types");
}

TEST_CASE("a tensor has the product of its shape as elements, if that fits") {
  struct Row {
    std::vector<std::size_t> shape;
    std::uint64_t elements;
  };
  for (Row const& row : {Row{{}, 1},
                         Row{{7}, 7},
                         Row{{3, 4, 5}, 60},
                         Row{{1, 1}, 1},
                         Row{{0}, 0},
                         Row{{5, 0, 3}, 0},
                         Row{{two_to(31), two_to(31)}, two_to(62)},
                         Row{{two_to(32) + 1}, two_to(32) + 1},
                         Row{{two_to(63)}, two_to(63)},
                         // Empty, it does not overflow, whichever extent is zero.
                         Row{{0, two_to(63), 4}, 0},
                         Row{{two_to(63), 4, 0}, 0}}) {
    CHECK(zero::element_count({.name = "x", .shape = row.shape}) == row.elements);
  }
  for (auto const& shape :
       {std::vector{two_to(32), two_to(32)}, std::vector{std::size_t{3}, two_to(63)}}) {
    CHECK(refusal([&] { (void)zero::element_count({.name = "x", .shape = shape}); }) == multiplied);
  }
}

TEST_CASE("a size that went below 0 is told with its tensor, whatever the other extents are") {
  std::size_t const below = std::size_t{0} - 1;
  for (auto const& shape : {std::vector{below}, std::vector{std::size_t{0}, below, two_to(63)}}) {
    std::string const message =
        "tensor 'w' has an extent of 18446744073709551615, as has a size that was less than 0";
    CHECK(refusal([&] { (void)zero::element_count({.name = "w", .shape = shape}); }) == message);
    CHECK(refusal([&] {
            Placement({tensor("v", 3, 0), {.name = "w", .shape = shape}});
          }) == message);
  }
  CHECK(refusal([] {
          (void)zero::element_count({.name = "w", .shape = {two_to(63) + 1}});
        }).starts_with("tensor 'w' has an extent of 9223372036854775809"));
}

TEST_CASE("by default a tensor is a trained scalar, in unit 0, with the rule's own numbers") {
  // No warning asks for a shape.
  Tensor const scalar{.name = "temperature", .unit = 1};
  CHECK(zero::element_count(scalar) == 1);
  CHECK(scalar.unit == 1);
  Tensor const tensor{.name = "x", .shape = {2}};
  CHECK(tensor.unit == 0);
  CHECK(tensor.weight_decay == 1.f);
  CHECK(tensor.learning_rate == 1.f);
  CHECK_FALSE(tensor.frozen);
  CHECK_FALSE(tensor.whole);
  CHECK(tensor.tied_to.empty());
}

TEST_CASE("tensors lie in order of unit, then of registration, aligned") {
  Placement const placement(
      {tensor("c", 40, 1), tensor("a", 3, 0), tensor("d", 5, 1), tensor("b", 33, 0)});
  auto const& places = placement.places();
  CHECK(places[1].offset == 0);
  CHECK(places[3].offset == 32);
  CHECK(places[0].offset == 512);  // another unit begins at a block
  CHECK(places[2].offset == 512 + 64);
  CHECK(placement.by_offset() == std::vector<std::size_t>{1, 3, 0, 2});
  REQUIRE(placement.clusters().size() == 2);
  CHECK(placement.clusters()[0].begin == 0);
  CHECK(placement.clusters()[0].count == 32 + 33);
  CHECK(placement.clusters()[1].begin == 512);
  CHECK(placement.clusters()[1].count == 64 + 5);
  CHECK(placement.trainable_elements() == 3 + 33 + 40 + 5);
  CHECK(placement.unit_count() == 2);
}

TEST_CASE("a tied tensor has the place of the first in its chain") {
  Placement const placement({tensor("wte", 100, 0),
                             tensor("h", 10, 1),
                             tied("head", 100, 2, "wte"),
                             tied("again", 100, 3, "head")});
  auto const& places = placement.places();
  for (std::size_t const alias : {std::size_t{2}, std::size_t{3}}) {
    CHECK(places[alias].storage == 0);
    CHECK(places[alias].offset == places[0].offset);
    CHECK(places[alias].count == 100);
    CHECK(places[alias].cluster == places[0].cluster);
  }
  CHECK(placement.trainable_elements() == 110);  // counted once
  CHECK(placement.clusters()[places[0].cluster].tied);
  CHECK(placement.clusters()[places[0].cluster].units == std::vector<int>{0, 2, 3});
  CHECK_FALSE(placement.clusters()[places[1].cluster].tied);
}

TEST_CASE("a tie inside one unit is not shared between units") {
  Placement const placement({tensor("a", 10, 4), tied("b", 10, 4, "a"), tensor("c", 10, 4)});
  REQUIRE(placement.clusters().size() == 1);
  CHECK_FALSE(placement.clusters()[0].tied);
  CHECK(placement.clusters()[0].units == std::vector<int>{4});
}

TEST_CASE("what only one unit uses is one range, however the tensors are listed") {
  Placement const placement({tensor("a", 10, 1),
                             tensor("shared", 10, 1),
                             tensor("b", 10, 1),
                             tied("head", 10, 3, "shared"),
                             tensor("c", 10, 1)});
  auto const& places = placement.places();
  REQUIRE(placement.clusters().size() == 2);
  CHECK(places[1].cluster == 0);
  for (std::size_t const t : {std::size_t{0}, std::size_t{2}, std::size_t{4}}) {
    CHECK(places[t].cluster == 1);
  }
}

TEST_CASE("frozen tensors are kinds of their own, behind the trained ones") {
  Placement const placement(
      {frozen("f", 33, 0), tensor("a", 10, 0), whole("w", 5, 0), frozen("g", 7, 1)});
  auto const& places = placement.places();
  CHECK(places[0].frozen);
  CHECK(places[1].offset == 0);
  CHECK(places[0].offset == 512);
  CHECK(places[3].offset == 1024);
  CHECK(places[2].offset == 1536);
  CHECK(placement.kinds() ==
        std::vector<zero::StorageKind>{{}, {.frozen = true}, {.frozen = true, .whole = true}});
  CHECK(placement.trained_kinds() == 1);
  CHECK(placement.frozen_elements() == 33 + 5 + 7);
  CHECK(placement.trainable_elements() == 10);
  CHECK(placement.unit_count() == 2);  // a unit of frozen tensors is a unit
  CHECK(placement.clusters().size() == 4);
  CHECK(placement.by_offset() == std::vector<std::size_t>{1, 0, 3, 2});
  // Without any that is trained, too, and of whatever types.
  Placement const only({frozen("f", 3, 0), frozen("g", 3, 0), frozen("h", 3, 1)}, {1, 0, 1});
  CHECK(only.kinds() == std::vector<zero::StorageKind>{
                            {}, {.types = 1, .frozen = true}, {.types = 0, .frozen = true}});
  CHECK(only.places()[2].kind == 1);
}

TEST_CASE("frozen tensors do not move the trained ones") {
  Placement const with(
      {frozen("f", 999, 0), tensor("a", 10, 0), frozen("g", 7, 1), tensor("b", 600, 1)});
  Placement const without({tensor("a", 10, 0), tensor("b", 600, 1)});
  CHECK(with.places()[1].offset == without.places()[0].offset);
  CHECK(with.places()[3].offset == without.places()[1].offset);
}

TEST_CASE("a model may be empty, and tensors without elements have a place") {
  Placement const none({});
  CHECK(none.unit_count() == 0);
  CHECK(none.trainable_elements() == 0);
  CHECK(none.frozen_elements() == 0);
  CHECK(none.clusters().empty());
  Placement const placement({tensor("e", 0, 0), tensor("a", 1, 0), tensor("z", 0, 5)});
  CHECK(placement.trainable_elements() == 1);
  CHECK(placement.unit_count() == 6);
  CHECK(placement.by_offset() == std::vector<std::size_t>{1});
  CHECK(placement.clusters().size() == 2);
  CHECK(placement.clusters()[1].count == 0);
}

TEST_CASE("places beyond 2^32 elements are exact, and sizes that do not fit are refused") {
  std::size_t const large = two_to(61);
  Placement const placement({tensor("a", large, 0), tensor("b", large + 1, 0), tensor("c", 5, 1)});
  CHECK(placement.places()[1].offset == large);
  CHECK(placement.places()[2].offset == 2 * large + 512);
  CHECK(placement.trainable_elements() == 2 * large + 6);
  std::size_t const half = two_to(63);
  CHECK(refused({tensor("a", half, 0), tensor("b", half, 0)}) == added);
  CHECK(refused({frozen("a", half, 0), frozen("b", half, 0)}) == added);
  Tensor const most{.name = "a", .shape = {two_to(32) - 1, two_to(32) + 1}};
  CHECK(refused({most, tensor("b", 1, 0)}) == multiplied);
}

TEST_CASE("a mistaken model is refused by the tensor's name") {
  struct Row {
    std::vector<Tensor> model;
    char const* said;
  };
  std::vector<Tensor> scaled{{.name = "wte", .shape = {4}, .weight_decay = 0.f},
                             {.name = "head", .shape = {4}, .unit = 1, .tied_to = "wte"}};
  Row const rows[] = {
      {{tensor("a", 1, 0), tensor("a", 2, 1)}, "tensor 'a' is described twice"},
      {{tensor("a", 1, 0), tensor("", 2, 1)}, "tensor 1 has no name"},
      {{tensor("a", 1, -1)}, "tensor 'a' has unit -1, outside [0, 2^20)"},
      {{tensor("a", 1, 1 << 20)}, "tensor 'a' has unit 1048576, outside [0, 2^20)"},
      {{tensor("a", 1, (1 << 20) - 1)}, ""},
      {{tied("b", 1, 0, "a")}, "tensor 'b' is tied to 'a', which is not described before it"},
      {{tied("b", 1, 0, "a"), tensor("a", 1, 0)},
       "tensor 'b' is tied to 'a', which is not described before it"},
      {{tied("b", 1, 0, "b")}, "tensor 'b' is tied to 'b', which is not described before it"},
      {{tensor("a", 2, 0), tied("b", 1, 0, "a")},
       "tensor 'b' is tied to 'a', which has another shape"},
      {{{.name = "a", .shape = {2, 3}}, {.name = "b", .shape = {3, 2}, .tied_to = "a"}},
       "tensor 'b' is tied to 'a', which has another shape"},
      {{frozen("a", 2, 0), tied("b", 2, 1, "a")},
       "tensor 'b' is tied to 'a', but only one of them is frozen"},
      {{whole("a", 2, 0), {.name = "b", .shape = {2}, .frozen = true, .tied_to = "a"}},
       "tensor 'b' is tied to 'a', but only one of them is whole"},
      {{tensor("a", 2, 0), {.name = "b", .shape = {2}, .whole = true}},
       "tensor 'b' is whole, which only a frozen tensor can be"},
  };
  for (Row const& row : rows) CHECK(refused(row.model) == row.said);
  CHECK(refused(scaled).find("another weight decay or learning rate") != std::string::npos);
  scaled[1].weight_decay = 0.f;
  CHECK(refused(scaled) == "");
}

}  // namespace placement_test
