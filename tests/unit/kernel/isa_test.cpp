#include <zero/kernel/isa.hpp>

#include <doctest/doctest.h>

#include <initializer_list>

namespace isa = zero::kernel::isa;
using zero::kernel::native;

TEST_CASE("the number of lanes and the instruction sets do not overlap") {
  for (zero::kernel::Isa bit : {isa::sse2, isa::avx, isa::fma, isa::f16c}) {
    CHECK((bit & isa::lanes_mask) == 0);
    CHECK((bit & (bit - 1)) == 0);
  }
  CHECK(isa::plain != isa::generic);
  CHECK((isa::plain & isa::lanes_mask) == (isa::generic & isa::lanes_mask));
}

TEST_CASE("this unit has the instruction sets its flags name") {
  static_assert((native & isa::lanes_mask) == ((native & isa::avx) != 0 ? 8 : 4));
#if defined(__SSE2__)
  CHECK((native & isa::sse2) != 0);
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  CHECK((native & isa::fma) != 0);
#else
  CHECK((native & isa::fma) == 0);
#endif
}
