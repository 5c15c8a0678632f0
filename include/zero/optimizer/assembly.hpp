/// @file
/// One rank's stores and stations, put together.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/setup/agreement.hpp"
#include "zero/optimizer/stations/control.hpp"
#include "zero/optimizer/stations/norm.hpp"
#include "zero/optimizer/stations/presence.hpp"
#include "zero/optimizer/stations/reduction.hpp"
#include "zero/optimizer/stations/refresh.hpp"
#include "zero/optimizer/stations/rules.hpp"
#include "zero/optimizer/stations/update.hpp"
#include "zero/optimizer/stores/arena.hpp"
#include "zero/optimizer/stores/gradient_store.hpp"
#include "zero/optimizer/stores/parameter_store.hpp"
#include "zero/optimizer/stores/staging.hpp"
#include "zero/optimizer/stores/state_store.hpp"
#include "zero/precision/loss_scale.hpp"

#include <cstddef>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The parts of one rank's optimizer: stores first, then stations in the order in which data passes
/// through them. Its base is what no policy changes.
///
/// All array memory is the space's, and is reached through the space only.
template <class Slots>
struct Assembly : Model {
  using Communicator = typename Slots::Communicator;
  using Space = typename Slots::Space;

  /// Allocates what the plan says. Local: whoever assembles has agreed with all ranks before.
  ZERO_COLD Assembly(Agreed<Slots> agreed)
      : Model(std::move(agreed.described), std::move(agreed.slices), std::move(agreed.partition)),
        comm(agreed.groups.comm),
        groups(agreed.groups),
        rules(*this, agreed.values.rule),
        prefetch(agreed.values.prefetch),
        arena(agreed.values.memory.allocator, space_of(*comm)),
        elements(storage_elements(partition, Slots::storage_choice(prefetch.depth, 0))),
        parameters(tensors, partition, elements, arena),
        gradients(tensors, partition, comm->rank(), elements, arena),
        control(reinterpret_cast<StepControl*>(
            arena.template take<std::byte>(Role::control, elements.control_bytes).data())),
        tensor_counts(control, tensors.size()),
        states(comm->rank(), elements, arena),
        staging(partition, elements, arena),
        norm(comm->rank(),
             partition,
             gradients,
             &control->squares,
             space(),
             counts() ? nullptr : &tensors),
        presence(*this),
        reduction(*comm, partition, gradients, norm, staging, presence, space()),
        update(*this, parameters, states, rules, presence, control, tensor_counts, space()),
        refresh(*comm, partition, parameters, staging, elements, prefetch, arena) {
    StepControl initial;
    if constexpr (Slots::Precision::loss_scaled) {
      initial.loss_scale = LossScale(agreed.values.precision.loss_scale);
    } else {
      initial.loss_scale = LossScale({.initial = 1.f});
    }
    initial.outcome.terms.loss_scale = initial.loss_scale.value();
    initial.outcome.terms.next_loss_scale = initial.loss_scale.value();
    space().upload(control, &initial, sizeof(initial));
    // The first step may be captured.
    if constexpr (LoadingSpace<Space>) load(space().loading());
  }
  Assembly(Assembly const&) = delete;
  Assembly& operator=(Assembly const&) = delete;

  [[nodiscard]] Space const& space() const noexcept { return arena.space(); }
  /// Does this rank count what all ranks of its model axis have alike?
  [[nodiscard]] bool counts() const noexcept {
    return groups.model == nullptr || groups.model->rank() == 0;
  }
  /// Do other ranks of the grid have other parts of the model?
  [[nodiscard]] bool divided() const noexcept {
    return groups.model != nullptr && groups.model->size() > 1;
  }
  /// Does it answer for what it holds of a tensor? For what a model axis has alike the first does.
  [[nodiscard]] bool counts(std::size_t tensor) const noexcept {
    return counts() || tensors[tensor].partitioned;
  }

  void require_bound() const {
    if constexpr (Slots::Memory::borrowed) {
      if (parameters.lent().bound() && gradients.lent().bound()) return;
      fail(ErrorKind::invalid_argument, "Borrowed<> memory is used before bind()");
    }
  }

  /// Has all loaded that a step enqueues, but for the communicator's.
  ZERO_COLD void load(Space const& loading) const {
    loading.call(BringTensors{});
    loading.call(Seal{});
    loading.call(Conclude{});
    loading.call(SealOptions{});
    loading.call(ConcludeOptions{});
    loading.call(CountMissed{});
    norm.load(loading);
    reduction.load(loading);
    update.load(loading);
  }

  Communicator* comm;
  Groups<Communicator> groups;
  Rules<typename Slots::Rule> rules;
  Prefetch prefetch;
  Arena<decltype(Slots::Memory::allocator), Space> arena;
  StorageElements elements;
  ParameterStore<Slots> parameters;
  GradientStore<Slots> gradients;
  StepControl* control;
  TensorCounts tensor_counts;
  StateStore<Slots> states;
  Staging<Slots> staging;
  GradientNorm<Slots> norm;
  Presence presence;
  Reduction<Slots> reduction;
  Update<Slots> update;
  RefreshOf<Slots> refresh;
  static_assert(Refresh<RefreshOf<Slots>>);
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
