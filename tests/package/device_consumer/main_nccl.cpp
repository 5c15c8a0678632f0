#include <zero/comm/nccl.hpp>
#include <zero/zero.hpp>

#include <cstdio>

/// Reports of a group that NCCL adds in; compiled, and never called without GPUs.
void show(zero::Nccl<zero::nccl::Native> const& comm) {
  std::printf("rank %d of %d\n", comm.rank(), comm.size());
}

int main() {
  int version = 0;
  if (!zero::nccl::Library::version(&version).ok()) return 1;
  std::printf("zero %d.%d.%d\n", zero::version.major, zero::version.minor, zero::version.patch);
  return version >= zero::nccl::Library::header_version ? 0 : 1;
}
