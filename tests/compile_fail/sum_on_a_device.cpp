// expect: zero: sum[(][)] is for values in memory of the host
#include <zero/zero.hpp>

struct Device : zero::space::Host {
  static constexpr bool host_accessible = false;
};
struct Comm : zero::Self {
#ifndef ZERO_CONTROL
  using Space = Device;
#endif
};

int main() {
  Comm comm;
  return zero::sum(comm, 1.5) > 0. ? 0 : 1;
}
