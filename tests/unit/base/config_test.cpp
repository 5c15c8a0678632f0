#include <zero/base/config.hpp>

#include <doctest/doctest.h>

namespace config_test {
namespace {

ZERO_HOST_DEVICE constexpr int on_both() { return 1; }
ZERO_ALWAYS_INLINE int always() { return 2; }
struct Member {
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static int both() { return 3; }
};

}  // namespace

TEST_CASE("the macros stand where functions are declared") {
  static_assert(on_both() == 1);
  CHECK(always() == 2);
  CHECK(Member::both() == 3);
}

}  // namespace config_test
