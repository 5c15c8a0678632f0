// expect: (use of deleted function|call to deleted)
// Nobody could call what is gone.
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, zero::Borrowed<>> optimizer{comm, {}};
  auto told = [](int) noexcept {};
#ifndef ZERO_CONTROL
  optimizer.on_gradients_free([](int) noexcept {});
#else
  optimizer.on_gradients_free(told);
#endif
  static_cast<void>(told);
}
