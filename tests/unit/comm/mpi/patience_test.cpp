#include "zero/comm/mpi/patience.hpp"

#include <doctest/doctest.h>

#include <chrono>

namespace patience_test {
namespace {

using zero::mpi::detail::Patience;
using Step = Patience::Step;
using std::chrono::milliseconds;

TEST_CASE("a wait asks after every eighth of the deadline, and blames after all of it") {
  Patience::Time const start{milliseconds(5000)};
  Patience patience(2, start);
  CHECK(patience.look(start) == Step::wait);
  CHECK(patience.look(start + milliseconds(249)) == Step::wait);
  CHECK(patience.look(start + milliseconds(251)) == Step::ask);
  CHECK(patience.look(start + milliseconds(252)) == Step::wait);
  for (int eighths = 2; eighths < 8; ++eighths) {
    CHECK(patience.look(start + milliseconds(250 * eighths - 1)) == Step::wait);
    CHECK(patience.look(start + milliseconds(250 * eighths + 1)) == Step::ask);
  }
  CHECK(patience.look(start + milliseconds(1999)) == Step::wait);
  CHECK(patience.look(start + milliseconds(2001)) == Step::blame);
  CHECK(patience.look(start + milliseconds(2099)) == Step::blame);
  CHECK(patience.look(start + milliseconds(2101)) == Step::blame);
  CHECK(patience.graces(start + milliseconds(2001)) == 0);
  CHECK(patience.graces(start + milliseconds(2099)) == 0);
  CHECK(patience.graces(start + milliseconds(2101)) == 1);
  CHECK(patience.graces(start + milliseconds(2350)) == 3);
  CHECK(patience.graces(start + std::chrono::hours(1)) == 1000);
}

TEST_CASE("what moves starts all of it again") {
  Patience::Time const start{milliseconds(5000)};
  Patience patience(2, start);
  CHECK(patience.look(start + milliseconds(300)) == Step::ask);
  patience.reset(start + milliseconds(1000));
  CHECK(patience.look(start + milliseconds(1249)) == Step::wait);
  CHECK(patience.look(start + milliseconds(1251)) == Step::ask);
  CHECK(patience.look(start + milliseconds(2700)) == Step::ask);
  CHECK(patience.look(start + milliseconds(2850)) == Step::ask);
  CHECK(patience.look(start + milliseconds(3001)) == Step::blame);
}

TEST_CASE("who did not run for a while leaves others time to answer before blaming them") {
  Patience::Time const start{milliseconds(5000)};
  Patience patience(2, start);
  CHECK(patience.look(start + milliseconds(9000)) == Step::ask);
  CHECK(patience.look(start + milliseconds(9099)) == Step::wait);
  CHECK(patience.look(start + milliseconds(9101)) == Step::blame);
}

}  // namespace
}  // namespace patience_test
