/// @file
/// All ranks are asked whether they will store and gather the same.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/held/arena.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What ranks have to agree on before anything is allocated.
struct ActivationTerms {
  static constexpr std::array<std::string_view, 5> names{
      "checkpoints", "descriptions of checkpoints", "placement", "micro-batches", "prefetch depth"};
  std::array<std::int64_t, names.size()> values{};
};

/// A number that descriptions share only by chance: FNV-1a over all members.
[[nodiscard]] inline std::int64_t hash_of(std::vector<ActivationCheckpoint> const& checkpoints) {
  std::uint64_t hash = 14695981039346656037u;
  auto const add = [&hash](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (value >> (8 * byte) & 0xff)) * 1099511628211u;
    }
  };
  for (ActivationCheckpoint const& checkpoint : checkpoints) {
    add(checkpoint.name.size());
    for (char const letter : checkpoint.name) add(static_cast<unsigned char>(letter));
    add(static_cast<std::uint64_t>(checkpoint.layer));
    add(checkpoint.elements);
    add(static_cast<std::uint64_t>(checkpoint.dtype));
  }
  return static_cast<std::int64_t>(hash);
}

/// Compares with all ranks. Collective; blocks, also on a space that queues its work.
/// @throws Error (communication) on every rank, naming what two of them differ in
template <Communicator C>
ZERO_COLD void require_same_terms(C& comm, Arena& arena, ActivationTerms const& mine) {
  constexpr std::size_t count = ActivationTerms::names.size();
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::vector<ActivationTerms> all(ranks);
  Arena::Scratch const memory(arena, sizeof(ActivationTerms) * (ranks + 1));
  auto* const own = static_cast<ActivationTerms*>(memory.data());
  arena.space().upload(own, &mine, sizeof(mine));
  run(comm,
      {.op = Op::all_gather,
       .dtype = DType::i64,
       .accumulate = DType::i64,
       .count = count,
       .send = own,
       .recv = own + 1});
  arena.space().download(all.data(), own + 1, sizeof(ActivationTerms) * ranks);
  confirm(comm);
  for (std::size_t term = 0; term < count; ++term) {
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (all[rank].values[term] == all[0].values[term]) continue;
      fail(ErrorKind::communication,
           {"ranks differ in the ",
            ActivationTerms::names[term],
            " of their activations: ",
            all[0].values[term],
            " on rank 0, ",
            all[rank].values[term],
            " on rank ",
            rank},
           {.rank = comm.rank(), .group = std::string(group_name(comm))});
    }
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
