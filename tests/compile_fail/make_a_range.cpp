// expect: Range::Range\(.*is private|private.*Range
#include <zero/layout/partition.hpp>

#include <cstdint>

[[maybe_unused]] static zero::Range share(zero::BucketSpan const& bucket, int rank) {
#ifdef ZERO_CONTROL
  return bucket.share(rank);
#else
  return zero::Range(static_cast<std::uint64_t>(rank) * bucket.shard(), bucket.shard());
#endif
}
