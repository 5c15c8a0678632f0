/// @file
/// One rank's stores and stations, put together.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/optimizer/setup/agreement.hpp"
#include "zero/optimizer/stations/control.hpp"
#include "zero/optimizer/stations/norm.hpp"
#include "zero/optimizer/stations/reduction.hpp"
#include "zero/optimizer/stations/refresh.hpp"
#include "zero/optimizer/stations/update.hpp"
#include "zero/optimizer/stores/arena.hpp"
#include "zero/optimizer/stores/gradient_store.hpp"
#include "zero/optimizer/stores/parameter_store.hpp"
#include "zero/optimizer/stores/staging.hpp"
#include "zero/optimizer/stores/state_store.hpp"
#include "zero/precision/loss_scale.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The parts of one rank's optimizer: stores first, then stations in the order in which data passes
/// through them.
///
/// All array memory is the space's, and is reached through the space only.
template <class Slots>
struct Assembly {
  using Communicator = typename Slots::Communicator;
  using Space = typename Slots::Space;

  /// Allocates what the plan says. Local: whoever assembles has agreed with all ranks before.
  ZERO_COLD Assembly(Agreed<Slots> agreed)
      : comm(agreed.comm),
        tensors(std::move(agreed.tensors)),
        rule(agreed.values.rule),
        prefetch(agreed.values.prefetch),
        partition(std::move(agreed.partition)),
        arena(agreed.values.memory.allocator, space_of(*comm)),
        elements(storage_elements(partition, Slots::storage_choice(prefetch.depth, 0))),
        parameters(tensors, partition, elements, arena),
        gradients(tensors, partition, comm->rank(), elements, arena),
        control(arena.template take<StepControl>(Role::control, 1).data()),
        states(comm->rank(), elements, arena),
        staging(partition, elements, arena),
        norm(comm->rank(), gradients, &control->squares, space()),
        reduction(*comm, partition, gradients, norm, staging, space()),
        update(tensors, partition, parameters, states, &control->outcome.terms, space()),
        refresh(*comm, partition, parameters, staging, elements, prefetch, arena) {
    auto const count = static_cast<std::size_t>(partition.placement().unit_count());
    unit_tensors.resize(count);
    for (std::size_t unit = 0; unit < count; ++unit) {
      units.push_back(static_cast<int>(unit));
      units_backward.push_back(static_cast<int>(count - 1 - unit));
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      unit_tensors[static_cast<std::size_t>(tensors[t].unit)].push_back(t);
    }
    StepControl initial;
    if constexpr (Slots::Precision::loss_scaled) {
      initial.loss_scale = LossScale(agreed.values.precision.loss_scale);
    } else {
      initial.loss_scale = LossScale({.initial = 1.f});
    }
    initial.outcome.terms.loss_scale = initial.loss_scale.value();
    initial.outcome.terms.next_loss_scale = initial.loss_scale.value();
    space().upload(control, &initial, sizeof(initial));
  }
  Assembly(Assembly const&) = delete;
  Assembly& operator=(Assembly const&) = delete;

  [[nodiscard]] Space const& space() const noexcept { return arena.space(); }

  void require_unit(int unit) const {
    if (unit >= 0 && static_cast<std::size_t>(unit) < units.size()) return;
    fail(ErrorKind::invalid_argument,
         {"there is no unit ", unit, "; units are [0, ", units.size(), ")"});
  }
  void require_tensor(std::size_t tensor) const {
    if (tensor < tensors.size()) return;
    fail(ErrorKind::invalid_argument,
         {"there is no tensor ", tensor, "; ", tensors.size(), " are described"});
  }
  void require_bound() const {
    if constexpr (Slots::Memory::borrowed) {
      if (parameters.lent().bound() && gradients.lent().bound()) return;
      fail(ErrorKind::invalid_argument, "Borrowed<> memory is used before bind()");
    }
  }

  Communicator* comm;
  std::vector<Tensor> tensors;
  typename Slots::Rule rule;
  Prefetch prefetch;
  Partition partition;
  Arena<decltype(Slots::Memory::allocator), Space> arena;
  StorageElements elements;
  ParameterStore<Slots> parameters;
  GradientStore<Slots> gradients;
  StepControl* control;
  StateStore<Slots> states;
  Staging<Slots> staging;
  GradientNorm<Slots> norm;
  Reduction<Slots> reduction;
  Update<Slots> update;
  RefreshOf<Slots> refresh;
  static_assert(Refresh<RefreshOf<Slots>>);
  std::vector<int> units;
  std::vector<int> units_backward;
  std::vector<std::vector<std::size_t>> unit_tensors;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
