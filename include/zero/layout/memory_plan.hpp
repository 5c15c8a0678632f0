/// @file
/// Every byte a rank will hold, by role, as arithmetic over a partition.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/sharding.hpp"
#include "zero/layout/storage_types.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// What a piece of memory is for.
enum class Role : std::uint8_t {
  parameters,       ///< what forward and backward read: all of it, or this rank's share
  gradients,        ///< full gradients, or the reduced share
  master,           ///< the wider parameters the update works on
  state,            ///< optimizer states, all arrays
  gradient_pool,    ///< full gradients of the units under way, where a rank keeps only its share
  gather_pool,      ///< gathered parameters of the units in use
  staging,          ///< buckets on their way to or from lent or widened memory
  control,          ///< norm, loss scale and step count, where updates read them
  communicator,     ///< staging and windows that the communicator holds, for all optimizers over it
  activations,      ///< activation checkpoints: whole, or this rank's share of them
  activation_pool,  ///< gathered activation checkpoints of the layers in use
  activation_staging,  ///< shares of them on their way to and from the slower memory
};

/// Number of roles: the values of Role are [0, role_count).
inline constexpr int role_count = 12;
/// Those of an optimizer come first: [0, optimizer_role_count). Its plan says 0 for all others.
inline constexpr int optimizer_role_count = 9;

/// What plans and JSON call the role.
[[nodiscard]] constexpr std::string_view name(Role role) noexcept {
  switch (role) {
    case Role::parameters: return "parameters";
    case Role::gradients: return "gradients";
    case Role::master: return "master";
    case Role::state: return "state";
    case Role::gradient_pool: return "gradient_pool";
    case Role::gather_pool: return "gather_pool";
    case Role::staging: return "staging";
    case Role::control: return "control";
    case Role::communicator: return "communicator";
    case Role::activations: return "activations";
    case Role::activation_pool: return "activation_pool";
    case Role::activation_staging: return "activation_staging";
  }
  return "unknown";
}

/// The choices that decide memory, reduced from policy types to values.
struct StorageChoice {
  Sharding sharding{};              ///< which model states are partitioned
  bool full_gradients = false;      ///< micro-batches add up in full gradients (AccumulateFull)
  bool reduced_shard = false;       ///< micro-batches add up in the reduced share (AccumulateShard)
  bool borrowed = false;            ///< the trainer lends parameters and gradients
  int prefetch = 1;                 ///< units gathered ahead
  std::uint64_t control_bytes = 0;  ///< of what a rank's steps keep beside arrays
  std::uint64_t control_bytes_each = 0;  ///< likewise for each tensor
  std::uint64_t communicator_bytes = 0;  ///< that the communicator holds on a rank
  bool in_place = false;                 ///< reduced gradients lie in lent ones
  std::uint64_t norm_words = 0;  ///< of each trained tensor, beside those, that ranks add up
};

/// How a rank holds each model state. Derived once from the choices, and read by plan, engine and
/// text alike: what is planned is what is held by construction.
struct StorageForm {
  /// Full gradients, as the trainer adds to them.
  enum class Gradients : std::uint8_t {
    lent,   ///< in the trainer's memory
    whole,  ///< of the whole model, in the library's
    pooled  ///< of the units under way, in the library's
  };
  /// This rank's share of the reduced gradients.
  enum class Reduced : std::uint8_t {
    in_place,  ///< within the full ones
    lent,      ///< within the trainer's, each element where its gradient was
    own,       ///< an array of its own, in the wire's dtype
    sums       ///< an array of its own, in which micro-steps add up in the accumulate dtype
  };
  /// What forward and backward read.
  enum class Parameters : std::uint8_t {
    lent,   ///< the trainer's memory
    whole,  ///< all of them, in the library's
    share   ///< this rank's share
  };
  /// What a rank updates: masters and optimizer states are held for as much.
  enum class Update : std::uint8_t {
    whole,  ///< everything, as every rank does
    share   ///< what it owns
  };
  /// How the full parameters follow an update.
  enum class Refresh : std::uint8_t {
    none,     ///< every rank has updated all of them
    publish,  ///< owners send their share after the update
    gather    ///< units are gathered before they are read
  };

  Gradients gradients{};    ///< full gradients
  Reduced reduced{};        ///< the share of the reduced ones
  Parameters parameters{};  ///< what the model reads
  Update update{};          ///< what this rank updates
  Refresh refresh{};        ///< how parameters follow
};

/// The form that the choices make.
[[nodiscard]] constexpr StorageForm storage_form(StorageChoice const& choice) noexcept {
  using Form = StorageForm;
  Sharding const sharding = choice.sharding;
  bool const whole = !sharding.gradients || choice.full_gradients;
  StorageForm form;
  form.gradients = choice.borrowed ? Form::Gradients::lent
                   : whole         ? Form::Gradients::whole
                                   : Form::Gradients::pooled;
  form.reduced = choice.reduced_shard                       ? Form::Reduced::sums
                 : form.gradients == Form::Gradients::whole ? Form::Reduced::in_place
                 : choice.borrowed && choice.in_place       ? Form::Reduced::lent
                                                            : Form::Reduced::own;
  form.parameters = choice.borrowed       ? Form::Parameters::lent
                    : sharding.parameters ? Form::Parameters::share
                                          : Form::Parameters::whole;
  form.update = sharding.optimizer ? Form::Update::share : Form::Update::whole;
  form.refresh = sharding.parameters  ? Form::Refresh::gather
                 : sharding.optimizer ? Form::Refresh::publish
                                      : Form::Refresh::none;
  return form;
}

/// Elements of one storage kind that each store has on a rank.
struct KindElements {
  std::uint64_t parameters = 0;       ///< all of them, or the rank's share
  std::uint64_t full_gradients = 0;   ///< wire dtype
  std::uint64_t shard_gradients = 0;  ///< wire dtype
  std::uint64_t shard_sums = 0;       ///< accumulate dtype
  std::uint64_t updated = 0;          ///< of each array that a rule works on
  std::uint64_t gradient_slot = 0;    ///< of one slot of the gradient pool
  std::uint64_t gradient_slots = 0;   ///< slots of the gradient pool
  std::uint64_t tied_gradients = 0;   ///< full gradients of tied tensors, beside the slots
};

/// What each store has on a rank; the allocation and the plan read the same numbers.
struct StorageElements {
  std::vector<KindElements> kinds{};     ///< by their numbers
  std::uint64_t gather_slot_bytes = 0;   ///< of one slot of the gather pool
  std::uint64_t gather_slots = 0;        ///< slots of the gather pool
  std::uint64_t staging_bytes = 0;       ///< of the largest use
  std::uint64_t control_bytes = 0;       ///< of a step's decisions
  std::uint64_t communicator_bytes = 0;  ///< whatever the model
};

namespace detail {

/// Reductions that may be under way at once: one fills while one travels.
inline constexpr std::uint64_t reductions_in_flight = 2;

ZERO_APART ZERO_COLD void size_gradient_pool(Partition const& partition,
                                             std::size_t kind,
                                             KindElements& elements);

ZERO_APART ZERO_COLD void size_gather_pool(Partition const& partition,
                                           int prefetch,
                                           KindTypes const& types,
                                           StorageElements& elements);

}  // namespace detail

/// The types of a partition's kinds; `types` are those by the numbers that `Placement` was given
/// for tensors.
ZERO_APART [[nodiscard]] ZERO_COLD KindTypes kind_types(Placement const& placement,
                                                        KindTypes const& types);

/// How many elements each store needs on every rank; `types` are those of the partition's kinds.
ZERO_APART [[nodiscard]] ZERO_COLD StorageElements storage_elements(Partition const& partition,
                                                                    StorageChoice const& choice,
                                                                    KindTypes const& types);

/// Bytes by role.
class MemoryBytes {
 public:
  /// Bytes of one role.
  [[nodiscard]] constexpr std::uint64_t& operator[](Role role) noexcept {
    return bytes_[static_cast<std::size_t>(role)];
  }
  /// @overload
  [[nodiscard]] constexpr std::uint64_t operator[](Role role) const noexcept {
    return bytes_[static_cast<std::size_t>(role)];
  }
  /// @throws Error (invalid_argument) if the sum does not fit in 64 bits
  [[nodiscard]] constexpr std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (std::uint64_t const value : bytes_) sum = checked_add(sum, value);
    return sum;
  }
  friend constexpr bool operator==(MemoryBytes const&, MemoryBytes const&) = default;

 private:
  std::array<std::uint64_t, role_count> bytes_{};
};

/// Bytes a rank will hold. Tables that describe the model (names, buckets) are not tensor memory
/// and are not counted; they are a few hundred bytes per tensor and per bucket.
/// @throws Error (invalid_argument) if a size does not fit in 64 bits
ZERO_APART [[nodiscard]] MemoryBytes memory_bytes(StorageElements const& elements,
                                                  KindTypes const& types);

#if ZERO_BODIES

ZERO_BODY KindTypes kind_types(Placement const& placement, KindTypes const& types) {
  KindTypes result;
  for (StorageKind const& kind : placement.kinds()) {
    result.push_back(types[kind.types]);
    if (kind.frozen) result.back().arrays = {};
  }
  return result;
}

ZERO_BODY StorageElements storage_elements(Partition const& partition,
                                           StorageChoice const& choice,
                                           KindTypes const& types) {
  if (choice.prefetch < 0) {
    fail(ErrorKind::invalid_argument, "the prefetch depth must be at least 0");
  }
  using Form = StorageForm;
  StorageForm const form = storage_form(choice);
  bool const sums = form.reduced == Form::Reduced::sums;
  bool const shown = form.update == Form::Update::whole && form.reduced != Form::Reduced::in_place;
  bool const published =
      form.parameters == Form::Parameters::lent && form.refresh == Form::Refresh::publish;
  StorageElements elements;
  for (std::size_t k = 0; k < types.size(); ++k) {
    std::uint64_t const full = partition.padded_elements(k);
    std::uint64_t const shard = partition.shard_elements(k);
    KindElements& kind = elements.kinds.emplace_back();
    if (form.parameters != Form::Parameters::lent) {
      bool const whole = partition.placement().kinds()[k].whole;
      kind.parameters = form.parameters == Form::Parameters::share && !whole ? shard : full;
    }
    if (types[k].frozen()) continue;
    kind.updated = form.update == Form::Update::share ? shard : full;
    if (form.gradients == Form::Gradients::whole) kind.full_gradients = full;
    if (form.gradients == Form::Gradients::pooled) detail::size_gradient_pool(partition, k, kind);
    if (form.reduced == Form::Reduced::own) kind.shard_gradients = shard;
    if (sums) kind.shard_sums = shard;

    // The uses of staging never overlap in time: reductions are finished before a step begins.
    auto const stage_bytes = [&](bool used, std::uint64_t buckets, DType dtype) {
      if (!used) return;
      std::uint64_t const staged = checked_mul(partition.largest_bucket(k), buckets);
      elements.staging_bytes =
          (std::max)(elements.staging_bytes, checked_mul(staged, size_of(dtype)));
    };
    stage_bytes(
        form.gradients == Form::Gradients::lent, detail::reductions_in_flight, types[k].wire);
    stage_bytes(published, 1, types[k].parameter);
    stage_bytes(shown, 1, sums ? types[k].accumulate : types[k].wire);
  }
  if (form.refresh == Form::Refresh::gather) {
    detail::size_gather_pool(partition, choice.prefetch, types, elements);
  }
  Placement const& placement = partition.placement();
  elements.control_bytes =
      checked_add(choice.control_bytes,
                  placement.places().size() * choice.control_bytes_each +
                      placement.trained_tensors() * choice.norm_words * sizeof(std::int64_t));
  elements.communicator_bytes = choice.communicator_bytes;
  return elements;
}

ZERO_BODY MemoryBytes memory_bytes(StorageElements const& elements, KindTypes const& types) {
  MemoryBytes bytes;
  auto const add = [&](Role role, std::uint64_t count, std::uint64_t element) {
    bytes[role] = checked_add(bytes[role], checked_mul(count, element));
  };
  for (std::size_t k = 0; k < types.size(); ++k) {
    KindElements const& kind = elements.kinds[k];
    std::uint64_t const wire = size_of(types[k].wire);
    add(Role::parameters, kind.parameters, size_of(types[k].parameter));
    add(Role::gradients, checked_add(kind.full_gradients, kind.shard_gradients), wire);
    add(Role::gradients, kind.shard_sums, size_of(types[k].accumulate));
    add(Role::master, kind.updated, types[k].master_bytes());
    add(Role::state, kind.updated, types[k].state_bytes());
    add(Role::state, entries_of(Coding::root_scales, kind.updated), types[k].scale_bytes());
    add(Role::gradient_pool,
        checked_add(checked_mul(kind.gradient_slot, kind.gradient_slots), kind.tied_gradients),
        wire);
  }
  add(Role::gather_pool, elements.gather_slots, elements.gather_slot_bytes);
  bytes[Role::staging] = elements.staging_bytes;
  bytes[Role::control] = elements.control_bytes;
  bytes[Role::communicator] = elements.communicator_bytes;
  return bytes;
}

ZERO_BODY void detail::size_gradient_pool(Partition const& partition,
                                          std::size_t kind,
                                          KindElements& elements) {
  std::uint64_t untied = 0;
  for (BucketGroup const& group : partition.groups()) {
    if (group.kind != kind) continue;
    if (group.tied) {
      elements.tied_gradients += group.padded;
    } else if (group.padded > 0) {
      ++untied;
      elements.gradient_slot = (std::max)(elements.gradient_slot, group.padded);
    }
  }
  elements.gradient_slots = (std::min)(reductions_in_flight, untied);
}

ZERO_BODY void detail::size_gather_pool(Partition const& partition,
                                        int prefetch,
                                        KindTypes const& types,
                                        StorageElements& elements) {
  std::uint64_t used = 0;
  for (GatherGroup const& gathered : partition.gather_groups()) {
    if (gathered.padded > 0) ++used;
    std::uint64_t bytes = 0;
    for (std::size_t const g : gathered.groups) {
      BucketGroup const& group = partition.groups()[g];
      bytes = checked_add(bytes, checked_mul(group.padded, size_of(types[group.kind].parameter)));
    }
    elements.gather_slot_bytes = (std::max)(elements.gather_slot_bytes, bytes);
  }
  elements.gather_slots = (std::min)(static_cast<std::uint64_t>(prefetch) + 1, used);
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
