// expect: zero: this space cannot measure tensors
// Norms that are measured nowhere would be zeros, and every trust ratio 1.
#include <zero/zero.hpp>

struct NoMeasuring {
  static constexpr std::string_view name = "no measuring";
  static constexpr bool host_accessible = true;
  void zero(void*, std::size_t) const noexcept {}
  void copy(void*, void const*, std::size_t) const noexcept {}
  void upload(void*, void const*, std::size_t) const noexcept {}
  void download(void*, void const*, std::size_t) const noexcept {}
  template <class To, class From>
  void convert(To*, From const*, std::size_t) const noexcept {}
  template <class Sum, class From>
  void add(Sum*, From const*, std::size_t) const noexcept {}
  template <class T>
  void add_squares(zero::ExactSum*, T const*, std::size_t) const noexcept {}
  template <class T>
  void add_hash(std::uint64_t*, T const*, std::size_t, std::uint64_t) const noexcept {}
  template <class P, class M>
  void find_unrounded(
      std::uint64_t*, P const*, M const*, std::size_t, std::uint64_t) const noexcept {}
  template <class F>
  void call(F const&) const noexcept {}
  template <class Rule, class Scalars, class Arrays>
  void update(Rule const&, zero::StepTerms const*, Scalars const*, Arrays const&) const noexcept {}
};
struct Comm : zero::Self {
  using Space = NoMeasuring;
};

int main() {
  Comm comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {}, zero::Lamb{}};
#else
  zero::ShardedOptimizer optimizer{comm, {}, zero::AdamW{}};
#endif
}
