/// @file
/// Activation checkpoints, partitioned over the ranks of a model-parallel group.
#pragma once

#include "zero/activations/activation_choice.hpp"
#include "zero/activations/activation_layout.hpp"
#include "zero/activations/activation_ledger.hpp"
#include "zero/activations/activation_plan.hpp"
#include "zero/activations/activation_pool.hpp"
#include "zero/activations/activation_store.hpp"
#include "zero/activations/activation_terms.hpp"
#include "zero/activations/fetched_layer.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/activation_placement.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/concepts/transfer.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/make_tables.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// Which tensor of a layer: `store(layer, x, {.micro_batch = 3})`.
struct ActivationKey {
  std::size_t checkpoint = 0;  ///< among the layer's, in the order of their description
  int micro_batch = 0;         ///< as the trainer numbers it, from 0
};

/// Keeps what layers need to be recomputed, between forward and backward pass. The placement says
/// where; it changes memory and traffic, never a bit of what comes back.
///
/// Tensors that all ranks of a model-parallel group hold alike, as the inputs of blocks under
/// tensor parallelism, are kept once by the group instead of once by each rank. Policies are given
/// in any order:
///
/// | slot          | default                                                                  |
/// |---------------|--------------------------------------------------------------------------|
/// | communicator  | none: required; the model-parallel group, as from `split`                |
/// | placement     | `activation::Pa`                                                         |
/// | transfer      | none: required for `activation::PaCpu`; of the communicator's space      |
/// | micro-batches | `MicroBatches{1}`                                                        |
/// | prefetch      | `Prefetch{1}`: layers gathered ahead of the one in use                   |
/// | memory        | `Owned<>`                                                                |
///
/// A micro-batch stores its layers in ascending order and fetches them in descending order; several
/// may be interleaved, as pipelines do. What comes out of order is an error that names the layer,
/// and changes nothing. On a space that queues its work every call enqueues and returns.
/// @par Collective  construction, `fetch` and `discard`: all ranks of the group, in the same order
/// @par Cost        memory as `plan()` says, held from construction on; no allocation afterwards
/// @par Source      ZeRO, arXiv 1910.02054, §6.1 (Pa, Pa+cpu) and §8 (traffic)
template <class... Policies>
class Activations {
  using Choice = detail::ActivationChoice<Policies...>;

 public:
  /// How ranks move data.
  using Communicator = detail::Selected<detail::FitsCommunicator, void, Policies...>;
  using Placement = typename Choice::Placement;  ///< where checkpoints are kept
  using Space = typename Communicator::Space;    ///< where tensors and gathered checkpoints lie
  using Fetched = FetchedLayer;                  ///< a layer's checkpoints, in use

  /// What a rank will hold and move, before anything is allocated.
  /// @param group_size   ranks of the model-parallel group
  /// @param checkpoints  what will be stored for one micro-batch
  /// @param values       micro-batches, prefetch, ... as for the constructor
  /// @throws Error (invalid_argument) as the constructor does
  template <class... Values>
  [[nodiscard]] static ActivationPlan plan(int group_size,
                                           std::vector<ActivationCheckpoint> const& checkpoints,
                                           Values const&... values) {
    return plan_of(detail::ActivationLayout(checkpoints, group_size, form(group_size)),
                   group_size,
                   Choice::template pick<MicroBatches>(values...).in_flight,
                   Choice::template pick<Prefetch>(values...).depth);
  }

  /// Agrees with all ranks on what will be stored, then allocates what `plan()` says.
  ///
  /// @param comm         the group; must outlive the activations, like a transfer
  /// @param checkpoints  what will be stored for one micro-batch, in the order of layers; copied
  /// @param values       placement, transfer, micro-batches, prefetch, memory, in any order
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument) for descriptions that make no sense; (communication),
  ///   on every rank, if the ranks differ in them; (resource) if memory is refused
  template <class... Values>
  explicit Activations(Communicator& comm,
                       std::vector<ActivationCheckpoint> checkpoints,
                       Values&&... values)
      : Activations(comm,
                    std::move(checkpoints),
                    Choice::template pick<MicroBatches>(std::as_const(values)...).in_flight,
                    Choice::template pick<Prefetch>(std::as_const(values)...).depth,
                    Choice::template pick<typename Choice::Memory>(std::as_const(values)...),
                    Choice::transfer(values...),
                    Constructing{}) {
    static_assert(((std::is_lvalue_reference_v<Values> ||
                    !detail::FitsTransfer<std::remove_cvref_t<Values>>::value) &&
                   ...),
                  "zero: a transfer must outlive the activations: give it a name");
  }
  Activations(Activations const&) = delete;
  Activations& operator=(Activations const&) = delete;

  /// What this rank holds and moves.
  [[nodiscard]] ActivationPlan const& plan() const noexcept { return plan_; }
  /// Bytes held in the communicator's space, by role.
  [[nodiscard]] MemoryBytes const& held() const noexcept { return arena_.held(); }
  /// Bytes held in the slower memory, by role.
  [[nodiscard]] MemoryBytes held_slower() const noexcept {
    MemoryBytes held;
    held[Role::activations] = store_.slower_held();
    return held;
  }

  /// Keeps what is this rank's of a tensor, which may be overwritten afterwards (by work that is
  /// queued afterwards). Local. Blocks where the transfer is slower than the trainer and the host
  /// does its work.
  ///
  /// @param layer   as described
  /// @param tensor  the whole tensor, the same on all ranks: [elements, as described]
  /// @param key     which of the layer's, and of which micro-batch
  /// @throws Error (invalid_argument), naming the layer, if the tensor is not as described, is
  ///   stored already, or is stored out of order; (resource) if the transfer fails
  template <Element T>
  void store(int layer, std::span<T const> tensor, ActivationKey key = {}) {
    std::size_t const index = layout_.layer_index(layer);
    std::size_t const c =
        ledger_.described(index, key.checkpoint, key.micro_batch, tensor.size(), dtype_of<T>);
    detail::LayerKey const at = ledger_.to_store(c, key.micro_batch);
    store_.put(at, c, tensor.data());
    ledger_.store(at, c, key.micro_batch);
  }
  /// @overload
  template <Element T>
  void store(int layer, std::span<T> tensor, ActivationKey key = {}) {
    store(layer, std::span<T const>(tensor), key);
  }

  /// Brings a layer's checkpoints together, and starts doing so for the ones that are next in a
  /// backward pass.
  /// @par Collective  yes, unless placed whole; blocks, unless the space queues its work
  /// @throws Error (invalid_argument), naming the layer, if it is not stored whole, is fetched
  ///   already or out of order; (communication) as the communicator; (resource) if the transfer
  ///   fails
  [[nodiscard]] Fetched fetch(int layer, int micro_batch = 0) {
    detail::LayerKey const key = ledger_.to_fetch(layout_.layer_index(layer), micro_batch);
    return Fetched(pool_, layout_, key, pool_.acquire(key), micro_batch);
  }

  /// Says that a step is over. Local; never blocks.
  /// @throws Error (invalid_argument), naming the layer, if something is stored or in use;
  ///   (communication) if the group has ended while work was queued: what was fetched may be wrong
  void end_step() {
    ledger_.require_empty();
    ranks_.confirm();
  }

  /// Forgets all that is stored, for a step that is not finished.
  /// @par Collective  yes; blocks for what is under way
  /// @throws Error (invalid_argument), naming the layer, if one is in use; (resource) if the
  ///   transfer has failed
  void discard() {
    ledger_.clear();
    pool_.forget();
  }

 private:
  struct Constructing {};

  Activations(Communicator& comm,
              std::vector<ActivationCheckpoint> checkpoints,
              int micro_batches,
              int prefetch,
              typename Choice::Memory memory,
              typename Choice::Transfer* transfer,
              Constructing /*disambiguates*/)
      : ranks_(detail::ref(comm)),
        space_(detail::space_of(comm)),
        allocator_(std::move(memory.allocator)),
        arena_(detail::ref(allocator_), detail::AnySpace(detail::space_calls<Space>, &space_)),
        layout_(std::move(checkpoints), comm.size(), form(comm.size())),
        plan_(agreed_plan(micro_batches, prefetch)),
        sizes_(detail::activation_sizes(layout_, micro_batches, prefetch)),
        ledger_(layout_, micro_batches),
        store_(ranks_, layout_, sizes_, Choice::slower(transfer, sizes_), arena_),
        pool_(ranks_, layout_, ledger_, sizes_, prefetch, store_, arena_) {}

  /// Alone, a rank's share is the whole: nothing has to be gathered, unless from elsewhere.
  [[nodiscard]] static constexpr detail::ActivationForm form(int group_size) noexcept {
    return {.gathered = Placement::offloaded || (Placement::partitioned && group_size > 1),
            .offloaded = Placement::offloaded};
  }

  [[nodiscard]] static ActivationPlan plan_of(detail::ActivationLayout const& layout,
                                              int group_size,
                                              int micro_batches,
                                              int prefetch) {
    return detail::make_activation_plan(
        layout, Placement::name, Choice::slower_memory(), group_size, micro_batches, prefetch);
  }

  [[nodiscard]] ActivationPlan agreed_plan(int micro_batches, int prefetch) {
    detail::require_same_terms(ranks_,
                               arena_,
                               {{static_cast<std::int64_t>(layout_.checkpoints().size()),
                                 detail::hash_of(layout_.checkpoints()),
                                 int{Placement::partitioned} + 2 * int{Placement::offloaded},
                                 micro_batches,
                                 prefetch}});
    return plan_of(layout_, ranks_.size(), micro_batches, prefetch);
  }

  detail::Ranks ranks_;
  [[no_unique_address]] Space space_;
  [[no_unique_address]] decltype(Choice::Memory::allocator) allocator_;
  detail::Arena arena_;
  detail::ActivationLayout layout_;
  ActivationPlan plan_;
  detail::ActivationSizes sizes_;
  detail::ActivationLedger ledger_;
  detail::ActivationStore store_;
  detail::ActivationPool pool_;
};

/// Deduces the policies from the arguments of a constructor.
template <Communicator C, class... Values>
Activations(C&, std::vector<ActivationCheckpoint>, Values&&...)
    -> Activations<C, std::remove_cvref_t<Values>...>;

}  // namespace zero::inline ZERO_NAMESPACE
