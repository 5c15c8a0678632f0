#include "zero/device/vector.hpp"

#include "support/test.hpp"
#include "zero/base/float16.hpp"

namespace vector_test {
namespace {

using zero::device::Cut;
using zero::device::Cutter;

TEST_CASE("arrays that are equally far from a vector are cut there") {
  alignas(256) float a[64] = {};
  alignas(256) zero::bf16 b[64] = {};
  Cut const whole = Cutter(4).meet(a).meet(b).cut(64);
  CHECK(whole == Cut{.head = 0, .vectors = 16, .apart = 0});
  Cut const shifted = Cutter(4).meet(a + 1).meet(b + 1).cut(20);
  CHECK(shifted.head == 3);
  CHECK(shifted.vectors == 4);
  CHECK(Cutter(4).meet(a + 1).meet(b + 5).cut(20).vectors == 4);
}

TEST_CASE("vectors begin where lines do, if there are so many elements") {
  alignas(256) float a[256] = {};
  alignas(256) zero::bf16 b[256] = {};
  // A line has 32 of the first, and 64 of the second.
  CHECK(Cutter(4).meet(a + 1).cut(31).head == 3);
  CHECK(Cutter(4).meet(a + 1).cut(40).head == 31);
  CHECK(Cutter(4).meet(a + 1).cut(40).vectors == 2);
  Cut const both = Cutter(4).meet(a + 1).meet(b + 1).cut(200);
  CHECK(both == Cut{.head = 63, .vectors = 34, .apart = 0});
  CHECK(Cutter(4).meet(b + 1).meet(a + 1).cut(200) == both);
  // One that is in the middle of its line where the first begins one does not decide.
  CHECK(Cutter(4).meet(a).meet(b + 32).cut(200).head == 32);
  CHECK(Cutter(4).meet(a).meet(b + 4).cut(200) == Cut{.head = 0, .vectors = 50, .apart = 0});
  CHECK(Cutter(4).meet(a).meet(a + 4).cut(200).head == 0);
  // Nor does one that is not aligned.
  CHECK(Cutter(4).meet(a + 1).meet(b + 2).cut(200) == Cut{.head = 31, .vectors = 42, .apart = 2});
  CHECK(Cutter(4).meet(b + 2).meet(a + 1).meet(a + 1).where_most().meet(b + 2).meet(a + 1).cut(
            200) == Cut{.head = 31, .vectors = 42, .apart = 1});
  // What is left is less than a block of threads.
  for (std::size_t at = 0; at < 64; ++at) {
    Cut const cut = Cutter(8).meet(b + at).cut(1000);
    CHECK(1000 - cut.vectors * 8 < 64 + 8);
    CHECK((at + cut.head) % 64 == 0);
  }
}

TEST_CASE("vectors that begin at a given element do so whatever is aligned there") {
  alignas(256) float a[256] = {};
  CHECK(Cutter(4, 1).meet(a).meet(a + 3).cut(20) == Cut{.head = 1, .vectors = 4, .apart = 1});
  CHECK(Cutter(4, 0).meet(a + 1).meet(a + 2).cut(20) == Cut{.head = 0, .vectors = 5, .apart = 3});
  // Where a line begins, if that is as far.
  CHECK(Cutter(4, 3).meet(a).meet(a + 1).cut(200) == Cut{.head = 31, .vectors = 42, .apart = 1});
  CHECK(Cutter(4, 3).meet(a + 1).cut(3) == Cut{});
}

TEST_CASE("arrays that are not aligned where vectors begin are noted") {
  alignas(16) float a[64] = {};
  alignas(16) float b[64] = {};
  Cutter const cutter = Cutter(4).meet(a + 1).meet(b + 1).meet(b + 2).meet(a + 5);
  Cut const cut = cutter.cut(40);
  CHECK(cut.head % 4 == 3);
  CHECK(cut.vectors == (40 - cut.head) / 4);
  CHECK(cut.apart == 4);
  // Where most are aligned, whichever comes first; where as many are elsewhere, no element is left.
  Cut const most = Cutter(4).meet(b + 2).meet(a + 1).meet(b + 1).where_most().meet(b + 2).cut(40);
  CHECK(most.head % 4 == 3);
  CHECK(most.vectors == (40 - most.head) / 4);
  CHECK(most.apart == 1);
  CHECK(Cutter(4).meet(a + 1).meet(b).where_most().meet(a + 1).meet(b).cut(40).apart == 1);
  // Nothing is an array of its own, and there may be more than there are bits.
  float* const none = nullptr;
  CHECK(Cutter(4).meet(a).meet(none).meet(b + 1).cut(40).apart == 4);
  Cutter many(4);
  for (int i = 0; i < 40; ++i) many.meet(i < 39 ? a : a + 1);
  CHECK(many.cut(40).apart != 0);
}

TEST_CASE("elements that are not aligned are accessed one by one") {
  alignas(16) float from[8] = {0.f, 1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f};
  alignas(16) float to[8] = {};
  auto const vector = zero::device::load<4>(from, 1, false);
  zero::device::store<4>(to, 3, false, vector);
  for (int i = 0; i < 8; ++i) CHECK(to[i] == (i < 3 || i > 6 ? 0.f : from[i - 2]));
  zero::device::store<4>(to, 4, true, zero::device::load<4>(from, 0, true));
  for (int i = 0; i < 4; ++i) CHECK(to[4 + i] == from[i]);
}

TEST_CASE("a null array does not count, and less than a vector is no vector") {
  alignas(128) float a[64] = {};
  CHECK(Cutter(4).meet(a).meet(static_cast<float*>(nullptr)).cut(8) ==
        Cut{.head = 0, .vectors = 2, .apart = 0});
  CHECK(Cutter(4).meet(a + 1).cut(3).vectors == 0);
  CHECK(Cutter(4).meet(a + 1).cut(3).head == 0);
  CHECK(Cutter(4).meet(a).cut(3).vectors == 0);
  CHECK(Cutter(4).meet(a).cut(0).vectors == 0);
}

TEST_CASE("vectors are loaded and stored whole") {
  alignas(16) std::int32_t from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  alignas(16) std::int32_t to[8] = {};
  zero::device::store<4>(to, 4, zero::device::load<4>(from, 4));
  CHECK(to[3] == 0);
  CHECK(to[4] == 5);
  CHECK(to[7] == 8);
}

}  // namespace
}  // namespace vector_test
