#include "zero/checkpoint/model_layout.hpp"

#include "support/test.hpp"
#include "zero/base/error.hpp"

namespace model_layout_test {
namespace {

TEST_CASE("tensors are laid out in files that are full, and never divided") {
  auto const parts_of = [](std::vector<std::uint64_t> const& sizes, std::uint64_t most) {
    std::vector<zero::safetensors::Entry> entries;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      entries.push_back({.name = std::to_string(i), .dtype = "U8", .shape = {sizes[i]}});
    }
    auto const layout = zero::detail::lay_out_model("d/m", entries, {}, most);
    std::vector<std::size_t> parts;
    for (auto const& spot : layout.spots) parts.push_back(spot.file);
    return parts;
  };
  using Parts = std::vector<std::size_t>;
  CHECK(parts_of({4, 4, 2, 9, 1}, 10) == Parts{0, 0, 0, 1, 1});
  CHECK(parts_of({11, 1, 11, 0, 12}, 10) == Parts{0, 1, 2, 2, 3});
  CHECK(parts_of({1, 1}, 0) == Parts{0, 1});
  auto const layout = zero::detail::lay_out_model(
      "d/m", {{.name = "a", .dtype = "F32", .shape = {2}}}, {{"k", "v"}}, 100);
  CHECK(layout.files[0].path == "d/m");
  CHECK(layout.index.empty());
  CHECK(layout.spots[0].offset == layout.files[0].header.size());
  CHECK(layout.bytes == layout.files[0].header.size() + 8);
  CHECK_THROWS_AS(
      static_cast<void>(zero::detail::lay_out_model("m", {{.name = "a", .dtype = "F9"}}, {}, 1)),
      zero::Error);
}

}  // namespace
}  // namespace model_layout_test
