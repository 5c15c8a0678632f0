/// What everything stands on, but numbers: bytes, dtypes, errors, names of versions and flags.
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/base/bytes.hpp>
#include <zero/base/config.hpp>
#include <zero/base/dtype.hpp>
#include <zero/base/error.hpp>
#include <zero/base/flags.hpp>
#include <zero/base/function_ref.hpp>
#include <zero/base/unit_flags.hpp>
#include <zero/base/version.hpp>

namespace base_test {
namespace {

using zero::DType;
using zero::Error;
using zero::ErrorKind;

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

ZERO_HOST_DEVICE constexpr int on_both() { return 1; }
ZERO_ALWAYS_INLINE int always() { return 2; }
struct Member {
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static int both() { return 3; }
};

template <class Work>
Error caught(Work&& work) {
  try {
    work();
  } catch (Error const& error) {
    return error;
  }
  FAIL("nothing was thrown");
  std::terminate();
}

/// What an error says of `arguments`.
template <class... Arguments>
std::string line_of(Arguments... arguments) {
  return caught([&] { zero::fail(arguments...); }).what();
}

}  // namespace

TEST_CASE("sizes are exact or refused, and units are powers of 1024") {
  using namespace zero;
  static_assert(KiB == 1024 && MiB == 1024 * KiB && GiB == 1024 * MiB);
  static_assert(checked_add(2, 3) == 5 && checked_mul(6, 7) == 42);
  CHECK(checked_add(most, 0) == most);
  CHECK(checked_add(most - 5, 5) == most);
  CHECK(checked_mul(0, most) == 0);
  CHECK(checked_mul(most, 0) == 0);
  CHECK(checked_mul(most, 1) == most);
  constexpr std::uint64_t half = std::uint64_t{1} << 32;
  CHECK(checked_mul(half, half - 1) == most - (half - 1));
  static_assert(ceil_div(0, 8) == 0 && ceil_div(1, 8) == 1);
  CHECK(ceil_div(8, 8) == 1);
  CHECK(ceil_div(9, 8) == 2);
  CHECK(ceil_div(most, 2) == most / 2 + 1);
  CHECK(ceil_div(most, most) == 1);
  static_assert(round_up(0, 512) == 0 && round_up(1, 512) == 512);
  CHECK(round_up(512, 512) == 512);
  CHECK(round_up(513, 512) == 1024);
  CHECK(round_up(most, 1) == most);
  CHECK(is_refused([] { (void)checked_add(most, 1); }));
  CHECK(is_refused([] { (void)checked_add(1, most); }));
  CHECK(is_refused([] { (void)checked_mul(half, half); }));
  CHECK(is_refused([] { (void)checked_mul(most, 2); }));
  CHECK(is_refused([] { (void)round_up(most, 2); }));
}

TEST_CASE("the macros stand where functions are declared") {
  static_assert(on_both() == 1);
  CHECK(always() == 2);
  CHECK(Member::both() == 3);
}

TEST_CASE_TEMPLATE("the size of a name is the size of its type",
                   T,
                   float,
                   double,
                   zero::bf16,
                   zero::fp16,
                   std::int32_t,
                   std::int64_t,
                   std::uint8_t) {
  static_assert(zero::Element<T>);
  CHECK(zero::size_of(zero::dtype_of<T>) == sizeof(T));
}

TEST_CASE("names of dtypes are distinct; what is no type has no size and no name") {
  std::set<std::string_view> names;
  for (DType type :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    names.insert(name(type));
  }
  CHECK(names.size() == 7);
  CHECK(names.count("bf16") == 1);
  CHECK(names.count("fp16") == 1);
  CHECK(names.count("unknown") == 0);
  auto const none = static_cast<DType>(200);
  CHECK(zero::size_of(none) == 0);
  CHECK(name(none) == "unknown");
}

TEST_CASE("what is an element and what is not") {
  static_assert(zero::FloatElement<float> && zero::FloatElement<zero::bf16>);
  static_assert(zero::FloatElement<zero::fp16>);
  static_assert(!zero::Element<char> && !zero::Element<bool> && !zero::Element<long double>);
  static_assert(!zero::Element<float const> && !zero::Element<float*>);
  static_assert(!zero::FloatElement<char>);
  static_assert(zero::dtype_of<float> == DType::f32 && zero::dtype_of<zero::bf16> == DType::bf16);
}

TEST_CASE("an error is one line that says what, where and on which rank") {
  auto const error = caught([] {
    zero::fail(ErrorKind::communication, "a rank left", {3, "reduce_scatter", 7});
  });
  CHECK(std::string(error.what()) ==
        "zero: communication: a rank left, rank 3, in reduce_scatter, bucket 7");
  CHECK(error.kind() == ErrorKind::communication);
  CHECK(error.message() == "a rank left");
  CHECK(error.rank() == 3);
  CHECK(error.operation() == "reduce_scatter");
  CHECK(error.bucket() == 7);
}

TEST_CASE("what does not apply is not printed") {
  using zero::ErrorContext;
  CHECK(line_of(ErrorKind::resource, "no memory") == "zero: resource: no memory");
  CHECK(line_of(ErrorKind::data, "NaN", ErrorContext{.rank = 0}) == "zero: data: NaN, rank 0");
  CHECK(line_of(ErrorKind::data, "NaN", ErrorContext{.bucket = 0}) == "zero: data: NaN, bucket 0");
  auto const error = caught([] { zero::fail(ErrorKind::data, "NaN", {.group = "model axis"}); });
  CHECK(std::string(error.what()) == "zero: data: NaN, on the model axis");
  CHECK(error.group() == "model axis");
}

TEST_CASE("numbers are told as they were written, floats and doubles") {
  auto const told = [](double number) { return zero::Message({number}).text(); };
  CHECK(told(0.001f) == "0.001");
  CHECK(told(0.001) == "0.001");
  CHECK(told(-3e-4f) == "-0.0003");
  CHECK(told(1e10f) == "1e+10");
  CHECK(told(16777217.) == "16777217");
  CHECK(told(1. + 0x1p-52) == "1.0000000000000002");
  CHECK(told(HUGE_VAL) == "inf");
  // Neighbours have different texts, and one that is read back is the same.
  for (float value : {0.1f, 3e-4f, 1.f, 65504.f, 1.17549435e-38f, 1e-45f}) {
    float const next = std::nextafter(value, 2.f * value);
    CHECK(told(value) != told(next));
    for (float const each : {value, next}) {
      CHECK(std::strtof(told(each).c_str(), nullptr) == each);
      CHECK(told(each).size() <= 15);
      std::string const exact = zero::detail::number_text(each, false);
      CHECK(std::strtod(exact.c_str(), nullptr) == double{each});
    }
  }
}

TEST_CASE("the place is the caller's") {
  auto const error = caught([] { zero::fail(ErrorKind::invalid_argument, "x"); });
  CHECK(std::string_view(error.where().file).ends_with("base_test.cpp"));
  CHECK(error.where().line > 0);
}

TEST_CASE("an error is a std::exception and survives copies") {
  try {
    zero::fail(ErrorKind::invalid_argument, "twice");
  } catch (std::exception const& error) {
    CHECK(std::string(error.what()) == "zero: invalid argument: twice");
  }
  Error const copy = caught([] { zero::fail(ErrorKind::data, "copied", {1, "step", 2}); });
  Error const second = copy;  // the point
  CHECK(std::string(second.what()) == copy.what());
  CHECK(second.what() != copy.what());  // a text of its own
}

TEST_CASE("kinds have names") {
  CHECK(name(ErrorKind::invalid_argument) == "invalid argument");
  CHECK(name(ErrorKind::communication) == "communication");
  CHECK(name(ErrorKind::resource) == "resource");
  CHECK(name(ErrorKind::data) == "data");
  CHECK(name(static_cast<ErrorKind>(99)) == "unknown");
}

#define FLAGS_TEST_ON 1
#define FLAGS_TEST_OFF 0
#define FLAGS_TEST_LEVEL 3
#define FLAGS_TEST_PART _b

TEST_CASE("names are put together from what macros are") {
  static_assert(ZERO_IF(FLAGS_TEST_ON, 1, 2) == 1);
  static_assert(ZERO_IF(FLAGS_TEST_OFF, 1, 2) == 2);
  static_assert(ZERO_IF(FLAGS_TEST_NOT_DEFINED, 1, 2) == 2);
  static_assert(ZERO_UNLESS(FLAGS_TEST_OFF, FLAGS_TEST_ON) == 1);
  static_assert(ZERO_UNLESS(FLAGS_TEST_ON, FLAGS_TEST_ON) == 0);
  static_assert(ZERO_LEVEL(FLAGS_TEST_LEVEL, 3) == 1);
  static_assert(ZERO_LEVEL(FLAGS_TEST_LEVEL, 2) == 0);
  static_assert(ZERO_LEVEL(FLAGS_TEST_NOT_DEFINED, 3) == 0);
  constexpr std::string_view name = ZERO_TEXT(ZERO_JOIN(a, FLAGS_TEST_PART, , _d, , , , _h));
  CHECK(name == "a_b_d_h");
}

TEST_CASE("a name of flags begins with that of what units share") {
  constexpr std::string_view shared = ZERO_TEXT(ZERO_SHARED_NAMESPACE);
  constexpr std::string_view own = ZERO_TEXT(ZERO_NAMESPACE);
  CHECK(own.substr(0, shared.size()) == shared);
  CHECK((own == shared) == zero::flags().empty());
}

TEST_CASE("flags are listed by name") {
  std::string const flags = " " + std::string(zero::flags()) + " ";
  CHECK((flags.find(" fma ") != std::string::npos) == (ZERO_IF(__FMA__, 1, 0) == 1));
  CHECK((flags.find(" no_rtti ") != std::string::npos) == (ZERO_IF(__GXX_RTTI, 0, 1) == 1));
  CHECK(flags.find("  ") == (zero::flags().empty() ? 0 : std::string::npos));
}

TEST_CASE("a copy calls the function, not what it was copied from") {
  using zero::detail::FunctionRef;
  int sum = 0;
  auto const add = [&](int value) { return sum += value; };
  FunctionRef<void(int)> first(add);
  auto const copy = FunctionRef<void(int)>(first);
  auto const never = [](int /*value*/) { FAIL("another function was called"); };
  first = FunctionRef<void(int)>(never);
  copy(3);
  CHECK(sum == 3);
}

TEST_CASE("arguments arrive as they are given") {
  int value = 1;
  auto set = [](int& to, int const& from) { to = from; };
  zero::detail::FunctionRef<void(int&, int const&)>{set}(value, 5);
  CHECK(value == 5);
}

TEST_CASE("the version is a value that ranks can compare") {
  static_assert(zero::version == zero::Version{});
  static_assert(zero::version.major == ZERO_VERSION_MAJOR);
  static_assert(zero::version.minor == ZERO_VERSION_MINOR);
  static_assert(zero::version.patch == ZERO_VERSION_PATCH);
  CHECK(zero::version != zero::Version{.major = zero::version.major + 1});
  CHECK(zero::version != zero::Version{.minor = zero::version.minor + 1});
  CHECK(zero::version != zero::Version{.patch = zero::version.patch + 1});
}

TEST_CASE("the namespace carries the version") {
  static_assert(std::is_same_v<zero::Version, zero::v0_3::Version>);
  static_assert(ZERO_VERSION_MAJOR == 0 && ZERO_VERSION_MINOR == 3, "rename the inline namespace");
}

}  // namespace base_test
