#include "zero/checkpoint/boxes.hpp"

#include "support/test.hpp"

namespace boxes_test {
namespace {

using zero::Box;
using Shape = std::vector<std::uint64_t>;

/// Places in the whole tensor of all elements of the boxes, one by one.
std::vector<std::uint64_t> places(Shape const& shape, std::vector<Box> const& boxes) {
  std::vector<std::uint64_t> all;
  for (Box const& box : boxes) {
    for (std::uint64_t i = 0; i < zero::detail::volume(box.extent); ++i) {
      std::uint64_t rest = i;
      std::uint64_t place = 0;
      std::uint64_t scale = 1;
      for (std::size_t a = shape.size(); a-- > 0;) {
        place += (box.offset[a] + rest % box.extent[a]) * scale;
        rest /= box.extent[a];
        scale *= shape[a];
      }
      all.push_back(place);
    }
  }
  return all;
}

TEST_CASE("runs of boxes are their elements in order, wherever one begins and ends") {
  std::mt19937_64 random(7);
  auto const below = [&](std::uint64_t count) { return random() % count; };
  std::size_t long_runs = 0;
  for (int i = 0; i < 3000; ++i) {
    Shape shape(below(4));
    for (auto& extent : shape) extent = 1 + below(6);
    std::vector<Box> boxes(1 + below(3));
    for (Box& box : boxes) {
      for (std::uint64_t const extent : shape) {
        box.offset.push_back(below(3) == 0 ? 0 : below(extent));
        std::uint64_t const most = extent - box.offset.back();
        box.extent.push_back(below(2) == 0 ? most : 1 + below(most));
      }
    }
    std::vector<std::uint64_t> const all = places(shape, boxes);
    std::uint64_t const first = below(all.size());
    std::uint64_t const count = below(all.size() - first + 1);
    std::vector<std::uint64_t> visited;
    zero::detail::for_each_run(
        shape, boxes, first, count, [&](std::uint64_t at, std::uint64_t length) {
          REQUIRE(length > 0);
          if (length > 1) ++long_runs;
          for (std::uint64_t e = 0; e < length; ++e) visited.push_back(at + e);
        });
    REQUIRE(std::equal(visited.begin(),
                       visited.end(),
                       all.begin() + static_cast<std::ptrdiff_t>(first),
                       all.begin() + static_cast<std::ptrdiff_t>(first + count)));
  }
  CHECK(long_runs > 1000);
}

TEST_CASE("a box of whole rows is one run") {
  int runs = 0;
  zero::detail::for_each_run({8, 3, 5},
                             std::vector{Box{{2, 0, 0}, {4, 3, 5}}},
                             0,
                             60,
                             [&](std::uint64_t at, std::uint64_t count) {
                               ++runs;
                               CHECK(at == 30);
                               CHECK(count == 60);
                             });
  CHECK(runs == 1);
}

}  // namespace
}  // namespace boxes_test
