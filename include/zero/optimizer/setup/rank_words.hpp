/// @file
/// A few words of each rank, which ranks compare or add up beside their data.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/unanimity.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Exchanges words of the host over one group, wherever the group's buffers have to lie. What it is
/// made of outlives it.
class RankWords {
 public:
  /// @param arena   has memory for the words, until they are back, where the host cannot reach the
  ///   space
  /// @param memory  of the space, for sums, instead of the arena's; as many words as are summed
  RankWords(Ranks& ranks, Arena& arena, std::int64_t* memory = nullptr) noexcept
      : ranks_(&ranks), arena_(&arena), memory_(memory) {}

  [[nodiscard]] int rank() const noexcept { return ranks_->rank(); }
  [[nodiscard]] int size() const noexcept { return ranks_->size(); }

  /// Each word is the sum over all ranks then.
  /// @par Collective  yes; blocks
  ZERO_APART ZERO_COLD void sum(std::span<std::int64_t> words) const;
  /// All ranks' words, in the order of ranks.
  /// @par Collective  yes; blocks
  ZERO_APART [[nodiscard]] ZERO_COLD std::vector<std::int64_t> gather(
      std::span<std::int64_t const> words) const;
  /// Do all ranks bring the same 64 bits?
  /// @par Collective  yes; blocks
  /// @par Cost        one all-reduce of 64 bytes
  ZERO_APART [[nodiscard]] ZERO_COLD bool unanimous(std::uint64_t value) const;

 private:
  ZERO_APART void exchange(Op op,
                           std::span<std::int64_t const> own,
                           std::span<std::int64_t> all,
                           std::int64_t* memory) const;

  Ranks* ranks_;
  Arena* arena_;
  std::int64_t* memory_;
};

#if ZERO_BODIES

ZERO_BODY void RankWords::sum(std::span<std::int64_t> words) const {
  exchange(Op::all_reduce, words, words, memory_);
}

ZERO_BODY std::vector<std::int64_t> RankWords::gather(std::span<std::int64_t const> words) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(size()) * words.size());
  exchange(Op::all_gather, words, all, nullptr);
  return all;
}

ZERO_BODY bool RankWords::unanimous(std::uint64_t value) const {
  std::array<std::int64_t, Unanimity::word_count> words{};
  Unanimity::write(value, words.data());
  sum(words);
  return Unanimity::holds(words.data(), size());
}

ZERO_BODY void RankWords::exchange(Op op,
                                   std::span<std::int64_t const> own,
                                   std::span<std::int64_t> all,
                                   std::int64_t* memory) const {
  if (own.empty()) return;
  Collective collective{.op = op,
                        .dtype = DType::i64,
                        .accumulate = DType::i64,
                        .count = own.size(),
                        .send = own.data(),
                        .recv = all.data()};
  AnySpace const& space = arena_->space();
  if (space.host_accessible()) return ranks_->run(collective);
  if (memory == nullptr) {
    Arena::Scratch const scratch(*arena_, all.size_bytes());
    return exchange(op, own, all, static_cast<std::int64_t*>(scratch.data()));
  }
  std::size_t const block = op == Op::all_gather ? static_cast<std::size_t>(rank()) : 0;
  std::int64_t* const sent = memory + block * own.size();
  space.upload(sent, own.data(), own.size_bytes());
  collective.send = sent;
  collective.recv = memory;
  ranks_->run(collective);
  space.download(all.data(), memory, all.size_bytes());
  ranks_->confirm();
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
