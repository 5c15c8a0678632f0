// expect: zero: a rule with measure[(][)] needs adjust[(][)] too, and both must be noexcept
#include <zero/zero.hpp>

struct Half : zero::PlainSgd {
  template <class V>
  void measure(zero::ScalarsOf<V> const&, V const& p, V const& g, V const*, V (&numbers)[2]) const
#ifdef ZERO_CONTROL
      noexcept
#endif
  {
    numbers[0] = p;
    numbers[1] = g;
  }
  template <class Real>
  void adjust(zero::BasicStepScalars<Real>&, double const (&)[2]) const noexcept {}
  friend bool operator==(Half const&, Half const&) = default;
};

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {}, Half{}};
}
