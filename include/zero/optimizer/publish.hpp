/// @file
/// From updated shares to full parameters on every rank, bucket by bucket.
#pragma once

#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/parameter_store.hpp"
#include "zero/optimizer/staging.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline v0_1::detail {

/// Refreshes replicated parameters after an update.
///
/// Buckets that lie in one run of memory are gathered in place and may still be under way when a
/// step returns; scattered ones go through staging, one at a time.
template <class Slots>
class Publish {
 public:
  using Communicator = typename Slots::Communicator;
  using Space = typename Slots::Space;
  using Parameter = typename Slots::Parameter;

  Publish(Communicator& comm,
          Partition const& partition,
          ParameterStore<Slots> const& parameters,
          Staging<Slots> staging,
          Space space)
      : comm_(&comm),
        partition_(&partition),
        parameters_(&parameters),
        staging_(std::move(staging)),
        space_(std::move(space)),
        tickets_(partition.buckets().size()) {}

  /// Starts the refresh of the next bucket, in ascending order.
  void start(std::size_t b) {
    BucketSpan const& bucket = partition_->buckets()[b];
    Parameter* const whole = parameters_->whole_bucket(b);
    if constexpr (Slots::borrowed) {
      if (whole == nullptr) {
        publish_scattered(b, bucket);
        return;
      }
    }
    tickets_[b] = comm_->start(all_gather(b, bucket, whole));
    started_ = b + 1;
  }

  /// Waits until every bucket before `end` is refreshed. Blocks.
  void wait(std::size_t end) {
    for (; finished_ < started_ && finished_ < end; ++finished_) {
      comm_->wait(tickets_[finished_]);
      tickets_[finished_] = {};
    }
    if (finished_ == started_) finished_ = started_ = 0;
  }
  void wait() { wait(tickets_.size()); }

 private:
  [[nodiscard]] Collective all_gather(std::size_t b,
                                      BucketSpan const& bucket,
                                      Parameter* whole) const {
    return {.op = Op::all_gather,
            .dtype = dtype_of<Parameter>,
            .accumulate = dtype_of<Parameter>,
            .count = static_cast<std::size_t>(bucket.shard),
            .send = whole + static_cast<std::uint64_t>(comm_->rank()) * bucket.shard,
            .recv = whole,
            .bucket = static_cast<int>(b)};
  }

  void publish_scattered(std::size_t b, BucketSpan const& bucket) {
    wait();
    auto const rank = static_cast<std::uint64_t>(comm_->rank());
    Parameter* const packed = staging_.template buffer<Parameter>();
    Parameter* const own = packed + rank * bucket.shard;
    partition_->for_each_segment(bucket.begin + rank * bucket.shard,
                                 partition_->owned_count(bucket, comm_->rank()),
                                 [&](Segment const& piece) {
                                   space_.copy(
                                       own + piece.range_offset,
                                       parameters_->segment(bucket, piece),
                                       static_cast<std::size_t>(piece.count) * sizeof(Parameter));
                                 });
    run(*comm_, all_gather(b, bucket, packed));
    staging_.unpack(bucket, packed, parameters_->lent());
  }

  Communicator* comm_;
  Partition const* partition_;
  ParameterStore<Slots> const* parameters_;
  Staging<Slots> staging_;
  [[no_unique_address]] Space space_;
  std::vector<typename Communicator::Ticket> tickets_;
  std::size_t started_ = 0;
  std::size_t finished_ = 0;
};

}  // namespace zero::inline v0_1::detail
