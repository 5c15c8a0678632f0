/// @file
/// How the parameters that a trainer reads follow an update: one concept, three models.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/stations/gather.hpp"
#include "zero/optimizer/stations/publish.hpp"

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Brings full parameters to whoever reads them.
///
/// `before_read` makes a unit's parameters whole and current, and blocks for them; `after_read`
/// says that its reader is gone. `after_update` follows the update of each bucket, in ascending
/// order. `settle` waits for whatever was started ahead of its use, and forgets what parameters
/// that are about to change would make stale. `tensor` is where a trainable tensor of a unit lies
/// meanwhile. All but `after_read` and `tensor` are collective where they communicate.
template <class R>
concept Refresh = requires(R& refresh, int unit, BucketSpan const& bucket, std::size_t tensor) {
  { refresh.before_read(unit) } -> std::same_as<void>;
  { refresh.after_read(unit) } -> std::same_as<void>;
  requires noexcept(refresh.after_read(unit));
  { refresh.after_update(bucket) } -> std::same_as<void>;
  { refresh.settle() } -> std::same_as<void>;
  { refresh.tensor(unit, tensor) } -> std::same_as<typename R::Parameter*>;
};

/// Every rank has updated all parameters.
template <class Slots>
class NoRefresh {
 public:
  using Parameter = typename Slots::Parameter;

  template <class ArenaT>
  NoRefresh(typename Slots::Communicator& /*comm*/,
            Partition const& /*partition*/,
            ParameterStore<Slots> const& parameters,
            Staging<Slots> const& /*staging*/,
            StorageElements const& /*elements*/,
            Prefetch const& /*prefetch*/,
            ArenaT& /*arena*/)
      : parameters_(&parameters) {}

  void before_read(int /*unit*/) const noexcept {}
  void after_read(int /*unit*/) const noexcept {}
  void after_update(BucketSpan const& /*bucket*/) const noexcept {}
  void settle() const noexcept {}
  [[nodiscard]] Parameter* tensor(int /*unit*/, std::size_t t) const {
    return parameters_->tensor(t);
  }

 private:
  ParameterStore<Slots> const* parameters_;
};

template <class Slots>
using RefreshOf =
    std::conditional_t<Slots::form.refresh == StorageForm::Refresh::gather,
                       GatherPool<Slots>,
                       std::conditional_t<Slots::form.refresh == StorageForm::Refresh::publish,
                                          Publish<Slots>,
                                          NoRefresh<Slots>>>;

}  // namespace zero::inline ZERO_NAMESPACE::detail
