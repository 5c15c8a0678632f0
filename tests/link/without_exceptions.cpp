// Compiled with -fno-exceptions -fno-rtti: the library trains, numbers that cannot be used are a
// value, and an error reaches the program's own handler instead of a catch block.
#include "facts.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#error "this program must be compiled without exceptions and without RTTI"
#endif

void zero::on_error(zero::Error const& error) noexcept {
  bool const expected =
      std::strcmp(error.what(), "zero: invalid argument: tensor 0 has no name") == 0;
  std::fprintf(stderr, "%s\n", error.what());
  std::_Exit(expected ? 0 : 1);
}

namespace {

/// Does the first of two steps fail on every rank, because of one rank's gradient, and not the
/// second?
bool survives_numbers() {
  bool survived[2] = {};
  zero::run_ranks(2, [&](zero::InProcess& inner) {
    zero::Traced comm{inner};
    zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {100}}}};
    optimizer.adopt_parameters();
    auto gradients = optimizer.gradients(0);
    gradients[0][99] = inner.rank() == 1 ? std::numeric_limits<float>::infinity() : 1.f;
    optimizer.reduce(std::move(gradients));
    auto const failed = optimizer.try_step();
    optimizer.reduce(optimizer.gradients(0));
    auto const second = optimizer.try_step();
    survived[inner.rank()] = !failed && failed.error()->kind() == zero::ErrorKind::data && second &&
                             second.report().step == 1 &&
                             comm.calls().back().state == zero::CallState::finished;
  });
  return survived[0] && survived[1];
}

}  // namespace

int main() {
  Facts const mine = facts();
  if (!(mine.norm > 0.) || mine.result == 0) return 2;
  if (!survives_numbers()) return 4;
  static_cast<void>(zero::Placement({zero::Tensor{}}));
  return 3;
}
