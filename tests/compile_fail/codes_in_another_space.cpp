// expect: zero: this space has no update for states of 8 bits
#include <zero/zero.hpp>

struct Space : zero::space::Host {
  template <class R, class M, class P, class G, std::size_t K>
  static void update(R const& rule,
                     zero::StepTerms const* terms,
                     zero::StepScalars const* scalars,
                     zero::UpdateArrays<M, P, G, float, K> const& arrays) {
    Host::update(rule, terms, scalars, arrays);
  }
#ifdef ZERO_CONTROL
  template <class R, class M, class P, class G, class S, std::size_t K>
  static void update(R const& rule,
                     zero::StepTerms const* terms,
                     zero::StepScalars const* scalars,
                     zero::CodedUpdateArrays<M, P, G, S, K> const& arrays) {
    Host::update(rule, terms, scalars, arrays);
  }
#endif
};
struct Comm : zero::Self {
  using Space = ::Space;
  Space space() const { return {}; }
};

int main() {
  Comm comm;
  zero::ShardedOptimizer optimizer{comm, {}, zero::AdamW8bit{}};
}
