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
  int const rank = ranks_->rank();
  Array whole = parameters_->whole(bucket);
  bool const scattered = whole.first == nullptr;
  if (scattered) {
    settle();
    whole = staging_->buffer(parameters_->dtype(bucket.kind()));
    staging_->collect(bucket.share(rank), parameters_->lent(), whole.from(bucket.part(rank)));
  }
  Collective const gather{.op = Op::all_gather,
                          .dtype = whole.dtype,
                          .accumulate = whole.dtype,
                          .count = bucket.shard(),
                          .send = whole.at(bucket.part(rank)),
                          .recv = whole.first,
                          .bucket = static_cast<int>(bucket.index())};
  if (scattered) {
    ranks_->run(gather);
    staging_->unpack(bucket.whole(), whole, parameters_->lent());
  } else {
    tickets_.start(bucket.index(), gather);
    started_ = bucket.index() + 1;
  }
}

ZERO_BODY void Publish::wait(std::size_t end) {
  for (; finished_ < started_ && finished_ < end; ++finished_) {
    tickets_.wait(finished_);
    tickets_.drop(finished_);
  }
  if (finished_ == started_) finished_ = started_ = 0;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
