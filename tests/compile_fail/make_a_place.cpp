// expect: Place::Place\(.*is private|private.*Place
#include <zero/layout/partition.hpp>

#include <cstdint>

[[maybe_unused]] static zero::Place place(zero::BucketSpan const& bucket, int rank) {
#ifdef ZERO_CONTROL
  return bucket.part(rank);
#else
  return zero::Place{static_cast<std::uint64_t>(rank) * bucket.shard()};
#endif
}
