#include <zero/base/flags.hpp>

#include <doctest/doctest.h>

#include <string_view>

namespace flags_test {

#define FLAGS_TEST_ON 1
#define FLAGS_TEST_OFF 0
#define FLAGS_TEST_LEVEL 3
#define FLAGS_TEST_PART _b

TEST_CASE("names are put together from what macros are") {
  static_assert(ZERO_IF(FLAGS_TEST_ON, 1, 2) == 1);
  static_assert(ZERO_IF(FLAGS_TEST_OFF, 1, 2) == 2);
  static_assert(ZERO_IF(FLAGS_TEST_NOT_DEFINED, 1, 2) == 2);
  constexpr std::string_view level = ZERO_TEXT(ZERO_LEVEL(FLAGS_TEST_LEVEL, _l));
  CHECK(level == "_l3");
  constexpr std::string_view none = ZERO_TEXT(ZERO_LEVEL(FLAGS_TEST_NOT_DEFINED, _l));
  CHECK(none.empty());
  constexpr std::string_view name = ZERO_TEXT(ZERO_JOIN(a, FLAGS_TEST_PART, , _d, , , , _h));
  CHECK(name == "a_b_d_h");
}

TEST_CASE("a name of flags begins with that of what units share") {
  constexpr std::string_view shared = ZERO_TEXT(ZERO_SHARED_NAMESPACE);
  constexpr std::string_view own = ZERO_TEXT(ZERO_NAMESPACE);
  CHECK(own.substr(0, shared.size()) == shared);
  CHECK((own.find("_avx") != std::string_view::npos) == (ZERO_IF(__AVX__, 1, 0) == 1));
}

}  // namespace flags_test
