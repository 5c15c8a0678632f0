/// Tensors found by name.
#include "support/test.hpp"
#include <zero/layout/name_index.hpp>

namespace name_index_test {
namespace {

TEST_CASE("of each name the first tensor is found, and of others none") {
  for (std::size_t const count : {0u, 1u, 2u, 3u, 4u, 5u, 63u, 64u, 65u, 1000u}) {
    CAPTURE(count);
    std::vector<zero::Tensor> tensors;
    for (std::size_t t = 0; t < count; ++t) tensors.push_back({.name = "w" + std::to_string(t)});
    for (std::size_t t = 0; t < count; t += 3) tensors.push_back({.name = "w" + std::to_string(t)});
    zero::detail::NameIndex const index(tensors);
    for (std::size_t t = 0; t < count; ++t) CHECK(index.find(tensors, tensors[t].name) == t);
    for (char const* other : {"", "w", "w1000", "v0", "w00"}) {
      CHECK(index.find(tensors, other) == tensors.size());
    }
  }
}

}  // namespace
}  // namespace name_index_test
