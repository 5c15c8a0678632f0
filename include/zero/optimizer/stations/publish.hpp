/// @file
/// From updated shares to full parameters on every rank, bucket by bucket.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stores/parameter_store.hpp"
#include "zero/optimizer/stores/staging.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

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

  template <class ArenaT>
  ZERO_COLD Publish(Communicator& comm,
                    Partition const& partition,
                    ParameterStore<Slots> const& parameters,
                    Staging<Slots> const& staging,
                    StorageElements const& /*elements*/,
                    Prefetch const& /*prefetch*/,
                    ArenaT& arena)
      : comm_(&comm),
        partition_(&partition),
        parameters_(&parameters),
        staging_(staging),
        space_(arena.space()),
        tickets_(partition.bucket_count()) {}

  void before_read(int unit) {
    std::size_t end = 0;
    for (std::size_t const g : partition_->groups_of(unit)) {
      Group const& group = partition_->groups()[g];
      end = (std::max)(end, group.first_bucket + group.bucket_count);
    }
    wait(end);
  }
  void after_read(int /*unit*/) const noexcept {}

  void after_update(BucketSpan const& bucket) {
    Parameter* const whole = parameters_->whole(bucket);
    if constexpr (Slots::form.parameters == StorageForm::Parameters::lent) {
      if (whole == nullptr) {
        publish_scattered(bucket);
        return;
      }
    }
    tickets_[bucket.index()] = comm_->start(all_gather(bucket, whole));
    started_ = bucket.index() + 1;
  }

  void settle() { wait(tickets_.size()); }

  [[nodiscard]] Parameter* tensor(int /*unit*/, std::size_t t) const {
    return parameters_->tensor(t);
  }

 private:
  /// Waits until every bucket before `end` is refreshed. Blocks.
  void wait(std::size_t end) {
    for (; finished_ < started_ && finished_ < end; ++finished_) {
      comm_->wait(tickets_[finished_]);
      tickets_[finished_] = {};
    }
    if (finished_ == started_) finished_ = started_ = 0;
  }

  [[nodiscard]] Collective all_gather(BucketSpan const& bucket, Parameter* whole) const {
    return {.op = Op::all_gather,
            .dtype = dtype_of<Parameter>,
            .accumulate = dtype_of<Parameter>,
            .count = bucket.shard(),
            .send = bucket.part(comm_->rank()).in(whole),
            .recv = whole,
            .bucket = static_cast<int>(bucket.index())};
  }

  void publish_scattered(BucketSpan const& bucket) {
    settle();
    Parameter* const packed = staging_.template buffer<Parameter>();
    Parameter* const own = bucket.part(comm_->rank()).in(packed);
    partition_->for_each_segment(bucket.share(comm_->rank()), [&](Segment const& piece) {
      space_.copy(piece.in_range.in(own),
                  parameters_->segment(bucket, piece),
                  static_cast<std::size_t>(piece.count) * sizeof(Parameter));
    });
    run(*comm_, all_gather(bucket, packed));
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

}  // namespace zero::inline ZERO_NAMESPACE::detail
