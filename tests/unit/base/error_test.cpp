#include <zero/base/error.hpp>

#include <doctest/doctest.h>

#include <exception>
#include <string>
#include <string_view>

namespace error_test {
namespace {

using zero::Error;
using zero::ErrorKind;

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

}  // namespace

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
  CHECK(std::string(caught([] { zero::fail(ErrorKind::resource, "no memory"); }).what()) ==
        "zero: resource: no memory");
  CHECK(std::string(caught([] { zero::fail(ErrorKind::data, "NaN", {.rank = 0}); }).what()) ==
        "zero: data: NaN, rank 0");
  CHECK(std::string(caught([] { zero::fail(ErrorKind::data, "NaN", {.bucket = 0}); }).what()) ==
        "zero: data: NaN, bucket 0");
  auto const error = caught([] { zero::fail(ErrorKind::data, "NaN", {.group = "model axis"}); });
  CHECK(std::string(error.what()) == "zero: data: NaN, on the model axis");
  CHECK(error.group() == "model axis");
}

TEST_CASE("the place is the caller's") {
  auto const error = caught([] { zero::fail(ErrorKind::invalid_argument, "x"); });
  CHECK(std::string_view(error.where().file).ends_with("error_test.cpp"));
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

}  // namespace error_test
