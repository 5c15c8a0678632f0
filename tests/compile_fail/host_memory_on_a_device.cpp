// expect: zero: name an allocator of device memory: Owned[{]...[}], or Borrowed[{]...[}]
#include <zero/zero.hpp>

struct Device : zero::space::Host {
  static constexpr bool host_accessible = false;
};
struct Comm : zero::Self {
  using Space = Device;
};

int main() {
  Comm comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {}};
#else
  zero::ShardedOptimizer optimizer{comm, {}, zero::Owned{zero::HostAllocator{}}};
#endif
}
