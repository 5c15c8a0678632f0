// expect: zero: AccumulateShard keeps sums beside the lent gradients: use Borrowed<>, not
// BorrowedInPlace<> It would save nothing.
#include <zero/zero.hpp>

#ifndef ZERO_CONTROL
using Accumulation = zero::AccumulateShard;
#else
using Accumulation = zero::AccumulateFull;
#endif

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {}, Accumulation{}, zero::BorrowedInPlace<>{}};
}
