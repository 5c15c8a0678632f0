/// @file
/// Which group's full gradients lie in which slot of the gradient pool.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Slots of equal size are taken by the groups under way. Groups of tied tensors, to which units
/// add at different times, have places of their own.
class GradientSlots {
 public:
  ZERO_APART ZERO_COLD GradientSlots(Partition const& partition, StorageElements const& elements);

  /// Does the group have memory right now, or need none?
  ZERO_APART [[nodiscard]] bool placed(std::size_t g) const noexcept;
  /// Gives the group a slot; false if all are taken.
  ZERO_APART [[nodiscard]] bool place(std::size_t g) noexcept;
  ZERO_APART void release(std::size_t g) noexcept;
  /// Elements before those of a placed group: in the pool or, of tied tensors, in their own memory.
  ZERO_APART [[nodiscard]] std::uint64_t offset(std::size_t g) const noexcept;

 private:
  static constexpr int no_slot = -1;

  Partition const* partition_;
  std::uint64_t slot_elements_;
  std::vector<std::uint8_t> taken_;
  std::vector<int> slot_of_;
  std::vector<std::uint64_t> tied_offset_;
};

#if ZERO_BODIES

ZERO_BODY GradientSlots::GradientSlots(Partition const& partition, StorageElements const& elements)
    : partition_(&partition),
      slot_elements_(elements.gradient_slot),
      taken_(static_cast<std::size_t>(elements.gradient_slots), 0),
      slot_of_(partition.groups().size(), no_slot) {
  std::uint64_t offset = 0;
  for (Group const& group : partition.groups()) {
    tied_offset_.push_back(offset);
    if (group.tied) offset += group.padded;
  }
}

ZERO_BODY bool GradientSlots::placed(std::size_t g) const noexcept {
  Group const& group = partition_->groups()[g];
  return group.tied || group.padded == 0 || slot_of_[g] != no_slot;
}

ZERO_BODY bool GradientSlots::place(std::size_t g) noexcept {
  for (std::size_t s = 0; s < taken_.size(); ++s) {
    if (taken_[s]) continue;
    taken_[s] = 1;
    slot_of_[g] = static_cast<int>(s);
    return true;
  }
  return false;
}

ZERO_BODY void GradientSlots::release(std::size_t g) noexcept {
  if (slot_of_[g] == no_slot) return;
  taken_[static_cast<std::size_t>(slot_of_[g])] = 0;
  slot_of_[g] = no_slot;
}

ZERO_BODY std::uint64_t GradientSlots::offset(std::size_t g) const noexcept {
  if (partition_->groups()[g].tied) return tied_offset_[g];
  return static_cast<std::uint64_t>(slot_of_[g]) * slot_elements_;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
