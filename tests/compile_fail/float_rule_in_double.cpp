// expect: zero: this precision computes in double and this rule in float
// A rule of scalars in float would lose the digits that double precision is for.
#include <zero/zero.hpp>

struct InFloat {
  static constexpr std::string_view name = "in float";
  static constexpr std::array<zero::StateArray, 0> states{};
  float lr = 1.f;
  zero::StepScalars scalars(long, float lr_now, float, float) const noexcept {
    return {.learning_rate = lr_now};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V*) const noexcept {
    p = p - s.learning_rate * g;
  }
  friend bool operator==(InFloat const&, InFloat const&) = default;
};

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {}, zero::Fp64{}, InFloat{}};
#else
  zero::ShardedOptimizer optimizer{comm, {}, zero::Fp32{}, InFloat{}};
#endif
}
