#include "support/test.hpp"
#include "zero/checkpoint/together.hpp"

namespace side_by_side_test {
namespace {

using zero::detail::side_by_side;

/// What is thrown, and what was done before.
template <class First, class Second, class Alive>
std::string thrown(First const& first, Second const& second, Alive const& alive) {
  try {
    side_by_side(first, second, alive);
  } catch (std::runtime_error const& error) {
    return error.what();
  }
  return "";
}

constexpr auto nothing = [](auto const&) {};
constexpr auto fails = [](auto const&) { throw std::runtime_error("failed"); };
/// Works until it is told to stop.
constexpr auto works_on = [](auto const& alive) {
  for (;;) {
    alive();
    std::this_thread::yield();
  }
};

TEST_CASE("both halves are done on return, in two threads") {
  std::thread::id first;
  std::thread::id second;
  side_by_side([&](auto const&) { first = std::this_thread::get_id(); },
               [&](auto const&) { second = std::this_thread::get_id(); },
               [] {});
  CHECK(first == std::this_thread::get_id());
  CHECK(second != std::thread::id());
  CHECK(second != first);
}

TEST_CASE("who fails ends the other one, and is what is thrown") {
  CHECK(thrown(fails, works_on, [] {}) == "failed");
  CHECK(thrown(works_on, fails, [] {}) == "failed");
  CHECK(thrown(nothing, fails, [] {}) == "failed");
}

TEST_CASE("whoever ends the work from outside ends both halves") {
  std::atomic<int> left{3};
  auto const until = [&] {
    if (--left == 0) throw std::runtime_error("ended");
  };
  CHECK(thrown(works_on, works_on, until) == "ended");
  left = 3;
  CHECK(thrown(nothing, works_on, until) == "ended");
}

}  // namespace
}  // namespace side_by_side_test
