/// @file
/// All ranks are asked whether they will store and gather the same.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/base/compare_fields.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What ranks have to agree on before anything is allocated.
inline constexpr std::array<std::string_view, 5> activation_terms{"number of checkpoints",
                                                                  "descriptions of checkpoints",
                                                                  "placement",
                                                                  "micro-batches",
                                                                  "prefetch depth"};
using ActivationTerms = std::array<std::int64_t, activation_terms.size()>;

/// A number that descriptions share only by chance.
[[nodiscard]] inline std::int64_t hash_of(std::vector<ActivationCheckpoint> const& checkpoints) {
  Hash hash;
  for (ActivationCheckpoint const& checkpoint : checkpoints) {
    hash.add(checkpoint.name);
    hash.add(static_cast<std::uint64_t>(checkpoint.layer));
    hash.add(checkpoint.elements);
    hash.add(static_cast<std::uint64_t>(checkpoint.dtype));
  }
  return static_cast<std::int64_t>(hash.value());
}

/// Compares with all ranks. Collective; blocks, also on a space that queues its work.
/// @throws Error (communication) on every rank, naming the first term in which they differ
ZERO_OPTIONAL_APART void require_same_terms(Ranks& ranks,
                                            Arena& arena,
                                            ActivationTerms const& mine);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY void require_same_terms(Ranks& ranks,
                                           Arena& arena,
                                           ActivationTerms const& mine) {
  std::string const difference =
      compare_fields(activation_terms, RankWords(ranks, arena).gather(mine));
  if (difference.empty()) return;
  fail(ErrorKind::communication,
       {"ranks disagree on the activations' ", difference},
       {.rank = ranks.rank(), .group = std::string(ranks.name())});
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
