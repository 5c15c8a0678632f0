#include "backends.hpp"
#include "nccl/fake_nccl.hpp"
#include "zero/comm/nccl/communicator.hpp"

// The fake's memory is the host's, by which it differs from NCCL's.
consteval backends::Abilities on_a_gpu(backends::Abilities found) {
  found.host_memory = false;
  return found;
}
static_assert(backends::nccl.abilities ==
              on_a_gpu(backends::observed<zero::BasicNccl<fake::Library, zero::nccl::Ordered>,
                                          zero::nccl::Options>()));
static_assert(backends::nccl.abilities ==
              on_a_gpu(backends::observed<zero::BasicNccl<fake::Library, zero::nccl::Native>,
                                          zero::nccl::Options>()));
