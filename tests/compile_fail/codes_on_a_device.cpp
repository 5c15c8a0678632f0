// expect: zero: a rule whose states are of 8 bits runs in host memory
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
  zero::ShardedOptimizer optimizer{comm, {}, zero::Owned{zero::HostAllocator{}}, zero::AdamW8bit{}};
#else
  zero::ShardedOptimizer optimizer{comm, {}, zero::Owned{zero::HostAllocator{}}, zero::AdamW{}};
#endif
}
