#include "zero/device/vector.hpp"

#include "support/test.hpp"
#include "zero/base/float16.hpp"

namespace vector_test {
namespace {

using zero::device::Cut;
using zero::device::Cutter;

TEST_CASE("arrays that are equally far from a vector are cut there") {
  alignas(64) float a[64] = {};
  alignas(64) zero::bf16 b[64] = {};
  Cut const whole = Cutter(4).meet(a).meet(b).cut(64);
  CHECK(whole.head == 0);
  CHECK(whole.vectors == 16);
  Cut const shifted = Cutter(4).meet(a + 1).meet(b + 1).cut(20);
  CHECK(shifted.head == 3);
  CHECK(shifted.vectors == 4);
  CHECK(Cutter(4).meet(a + 1).meet(b + 5).cut(20).vectors == 4);
}

TEST_CASE("arrays that are never aligned together are not cut") {
  alignas(64) float a[64] = {};
  alignas(64) zero::bf16 b[64] = {};
  Cut const cut = Cutter(4).meet(a).meet(b + 1).cut(40);
  CHECK(cut.head == 0);
  CHECK(cut.vectors == 0);
}

TEST_CASE("a null array does not count, and less than a vector is no vector") {
  alignas(64) float a[64] = {};
  CHECK(Cutter(4).meet(a).meet(static_cast<float*>(nullptr)).cut(8).vectors == 2);
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
