/// @file
/// How the parameters that a trainer reads follow an update.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/step/gather.hpp"
#include "zero/optimizer/step/publish.hpp"

#include <cstddef>
#include <optional>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Brings full parameters to whoever reads them: publishes them, gathers them, or has nothing to do
/// where every rank has updated all of them. All but `after_read` and `tensor` are collective where
/// they communicate.
class ParameterRefresh {
 public:
  ZERO_APART ParameterRefresh(StorageForm::Refresh form,
                              Ranks& ranks,
                              Partition const& partition,
                              ParameterStore const& parameters,
                              Staging const& staging,
                              StorageElements const& elements,
                              int prefetch,
                              Arena& arena) {
    if (form == StorageForm::Refresh::publish) {
      publish_.emplace(ranks, partition, parameters, staging);
    } else if (form == StorageForm::Refresh::gather) {
      gather_.emplace(ranks, partition, parameters, elements, prefetch, arena);
    }
  }
  ParameterRefresh(ParameterRefresh const&) = delete;
  ParameterRefresh& operator=(ParameterRefresh const&) = delete;

  /// Makes a unit's parameters whole and current, and blocks for them.
  ZERO_APART void before_read(int unit) {
    if (gather_) gather_->before_read(unit);
    if (publish_) publish_->before_read(unit);
  }
  /// The reader of a unit is gone.
  ZERO_APART void after_read(int unit) noexcept {
    if (gather_) gather_->after_read(unit);
  }
  /// Follows the update of each bucket, in ascending order. Where units are gathered, the next
  /// gathers read the shares themselves.
  ZERO_APART void after_update(BucketSpan const& bucket) {
    if (publish_) publish_->after_update(bucket);
  }
  /// Waits for whatever was started ahead of its use, and forgets what parameters that are about to
  /// change would make stale.
  ZERO_APART void settle() {
    if (gather_) gather_->settle();
    if (publish_) publish_->settle();
  }
  /// Where a tensor of a unit that is gathered lies between `before_read` and `after_read`.
  ZERO_APART [[nodiscard]] std::byte* tensor(int unit, std::size_t t) {
    return gather_->tensor(unit, t);
  }

 private:
  std::optional<GatherPool> gather_;
  std::optional<Publish> publish_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
