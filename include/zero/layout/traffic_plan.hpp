/// @file
/// Every element a rank will send in a step, as arithmetic over a partition.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE {

/// Elements one rank sends in one step, padding included.
///
/// With Ψ padded elements and N ranks: `reduce` is Ψ(N-1)/N; `publish` the same where parameters or
/// gradients are refreshed after the update (all stages but Pos+g+p); `gather` is twice that in
/// Pos+g+p, plus what tied tensors cost when another unit uses them again; and `frozen` likewise
/// for the padded elements of frozen tensors, each micro-step. `norms` are integers, and 0 unless
/// the rule measures whole tensors.
/// @par Source  ZeRO §7; 2Ψ(N-1)/N for replicated, Pos and Pos+g, 3Ψ(N-1)/N for Pos+g+p
struct TrafficElements {
  std::uint64_t reduce = 0;   ///< gradients, to the ranks that own them
  std::uint64_t publish = 0;  ///< updated parameters (or, replicated, reduced gradients)
  std::uint64_t gather = 0;   ///< trained parameters, for forward and backward
  std::uint64_t frozen = 0;   ///< frozen ones, likewise
  std::uint64_t norms = 0;    ///< words of what a rule measures of trained tensors
  /// @throws Error (invalid_argument) if the sum does not fit in 64 bits
  [[nodiscard]] constexpr std::uint64_t total() const {
    return checked_add(checked_add(checked_add(reduce, publish), checked_add(gather, frozen)),
                       norms);
  }
  friend constexpr bool operator==(TrafficElements const&, TrafficElements const&) = default;
};

/// The tensors whose norms are exchanged at once.
/// @param words  of each tensor
[[nodiscard]] constexpr std::uint64_t norms_at_once(std::uint64_t words) noexcept {
  return MiB / sizeof(std::int64_t) / words;
}

/// Words that a rank sends of so many tensors' norms, of `words` each, which all ranks add up.
[[nodiscard]] constexpr std::uint64_t norms_sent(std::uint64_t tensors,
                                                 std::uint64_t words,
                                                 int world_size) {
  if (words == 0) return 0;
  auto const ranks = static_cast<std::uint64_t>(world_size);
  auto const sent = [&](std::uint64_t count) {
    return 2 * ((count * words + ranks - 1) / ranks) * (ranks - 1);
  };
  std::uint64_t const most = norms_at_once(words);
  return checked_add(checked_mul(tensors / most, sent(most)), sent(tensors % most));
}

/// Elements of one storage kind per rank and step, for one forward and backward pass per
/// micro-step.
ZERO_APART [[nodiscard]] TrafficElements traffic_elements(Partition const& partition,
                                                          StorageChoice const& choice,
                                                          std::uint64_t micro_steps = 1,
                                                          std::size_t kind = 0);

#if ZERO_BODIES

ZERO_BODY TrafficElements traffic_elements(Partition const& partition,
                                           StorageChoice const& choice,
                                           std::uint64_t micro_steps,
                                           std::size_t kind) {
  auto const peers = static_cast<std::uint64_t>(partition.world_size()) - 1;
  bool const frozen = partition.placement().kinds()[kind].frozen;
  std::uint64_t const once = frozen ? 0 : checked_mul(partition.shard_elements(kind), peers);
  TrafficElements traffic;
  StorageForm const form = storage_form(choice);
  traffic.reduce = checked_mul(once, form.reduced == StorageForm::Reduced::sums ? micro_steps : 1);
  if (form.refresh != StorageForm::Refresh::gather) {
    traffic.publish = once;
    return traffic;
  }
  std::uint64_t& gathers = frozen ? traffic.frozen : traffic.gather;
  std::uint64_t const passes = checked_mul(2, micro_steps);
  for (GatherGroup const& gathered : partition.gather_groups()) {
    for (std::size_t const g : gathered.groups) {
      BucketGroup const& group = partition.groups()[g];
      if (group.kind != kind) continue;
      std::uint64_t const share = group.padded / (peers + 1);
      gathers = checked_add(gathers, checked_mul(passes, share * peers));
    }
  }
  return traffic;
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
