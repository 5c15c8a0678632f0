// expect: zero: a rule has a coding for each of its state arrays, or for none
#include <zero/zero.hpp>

struct Halfway {
  static constexpr std::string_view name = "halfway";
#ifndef ZERO_CONTROL
  static constexpr std::array states{
      zero::StateArray{.name = "one", .coding = zero::StateCoding::root},
      zero::StateArray{.name = "other"}};
#else
  static constexpr std::array states{
      zero::StateArray{.name = "one", .coding = zero::StateCoding::root},
      zero::StateArray{.name = "other", .coding = zero::StateCoding::root}};
#endif
  double lr = 1.;
  zero::StepScalars scalars(long, float lr_now, float, float) const noexcept {
    return {.learning_rate = lr_now};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    state[0] = g;
    p = p - s.learning_rate * g;
  }
  friend bool operator==(Halfway const&, Halfway const&) = default;
};

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, Halfway{}};
}
