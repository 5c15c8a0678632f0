// expect: zero: barrier[(][)] is for ranks that meet on the host
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
  zero::barrier(comm);
}
