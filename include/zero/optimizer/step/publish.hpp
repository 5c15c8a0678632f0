/// @file
/// From updated shares to full parameters on every rank, bucket by bucket.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/arrays.hpp"
#include "zero/optimizer/held/staging.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"

#include <algorithm>
#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Refreshes replicated parameters after an update.
///
/// Buckets that lie in one run of memory are gathered in place and may still be under way when a
/// step returns; scattered ones go through staging, one at a time.
class Publish {
 public:
  ZERO_APART Publish(Ranks& ranks,
                     Partition const& partition,
                     ParameterStore const& parameters,
                     Staging const& staging)
      : ranks_(&ranks),
        partition_(&partition),
        parameters_(&parameters),
        staging_(&staging),
        tickets_(ranks.tickets(partition.bucket_count())) {}

  ZERO_APART void before_read(int unit);
  ZERO_APART void after_update(BucketSpan const& bucket);
  ZERO_APART void settle() { wait(partition_->bucket_count()); }

 private:
  /// Waits until every bucket before `end` is refreshed. Blocks.
  ZERO_APART void wait(std::size_t end);
  [[nodiscard]] Collective all_gather(BucketSpan const& bucket, Array whole) const {
    return {.op = Op::all_gather,
            .dtype = whole.dtype,
            .accumulate = whole.dtype,
            .count = bucket.shard(),
            .send = whole.at(bucket.part(ranks_->rank())),
            .recv = whole.first,
            .bucket = static_cast<int>(bucket.index())};
  }
  ZERO_APART void publish_scattered(BucketSpan const& bucket);

  Ranks* ranks_;
  Partition const* partition_;
  ParameterStore const* parameters_;
  Staging const* staging_;
  Tickets tickets_;  ///< one for each bucket
  std::size_t started_ = 0;
  std::size_t finished_ = 0;
};

#if ZERO_BODIES

ZERO_BODY void Publish::before_read(int unit) {
  std::size_t end = 0;
  for (std::size_t const g : partition_->groups_of(unit)) {
    BucketGroup const& group = partition_->groups()[g];
    end = (std::max)(end, group.first_bucket + group.bucket_count);
  }
  wait(end);
}

ZERO_BODY void Publish::after_update(BucketSpan const& bucket) {
  Array const whole = parameters_->whole(bucket);
  if (whole.first == nullptr) return publish_scattered(bucket);
  tickets_.start(bucket.index(), all_gather(bucket, whole));
  started_ = bucket.index() + 1;
}

ZERO_BODY void Publish::wait(std::size_t end) {
  for (; finished_ < started_ && finished_ < end; ++finished_) {
    tickets_.wait(finished_);
    tickets_.drop(finished_);
  }
  if (finished_ == started_) finished_ = started_ = 0;
}

ZERO_BODY void Publish::publish_scattered(BucketSpan const& bucket) {
  settle();
  Array const packed = staging_->buffer(parameters_->dtype());
  Array const own = packed.from(bucket.part(ranks_->rank()));
  staging_->collect(bucket.share(ranks_->rank()), parameters_->lent(), own);
  ranks_->run(all_gather(bucket, packed));
  staging_->unpack(bucket.whole(), packed, parameters_->lent());
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
