// expect: zero: scalars and update of a rule must be noexcept
#include <zero/zero.hpp>

struct Sloppy : zero::PlainSgd {
#ifndef ZERO_CONTROL
  zero::StepScalars scalars(long, float lr_now, float, float) const {
    return {.learning_rate = lr_now};
  }
#endif
  friend bool operator==(Sloppy const&, Sloppy const&) = default;
};

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {}, Sloppy{}};
}
