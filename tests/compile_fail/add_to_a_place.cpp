// expect: no match for 'operator\+'|invalid operands
#include <zero/layout/partition.hpp>

[[maybe_unused]] static float* own(zero::BucketSpan const& bucket, int rank, float* memory) {
#ifdef ZERO_CONTROL
  return bucket.part(rank).in(bucket.in_full().in(memory));
#else
  return (bucket.in_full() + bucket.part(rank)).in(memory);
#endif
}
