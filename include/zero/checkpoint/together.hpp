/// @file
/// Ranks that do something each for itself, and all succeed or all fail.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/optimizer/setup/rank_agreement.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#if !defined(__cpp_exceptions)
#error "zero/checkpoint.hpp needs exceptions: one rank's failure becomes an error on all of them"
#endif

namespace zero::inline ZERO_NAMESPACE::detail {

/// Control words of one communicator, whatever its type. The communicator must outlive it.
struct ControlWords {
  int rank = 0;
  int size = 1;
  std::function<void(Op, std::int64_t const*, std::int64_t*, std::size_t)> exchange{};

  /// Each word is the sum over all ranks then. Collective; blocks.
  void sum(std::span<std::int64_t> words) const {
    exchange(Op::all_reduce, words.data(), words.data(), words.size());
  }
  /// All ranks' words, in the order of ranks. Collective; blocks.
  [[nodiscard]] std::vector<std::int64_t> gather(std::span<std::int64_t const> words) const {
    std::vector<std::int64_t> all(words.size() * static_cast<std::size_t>(size));
    exchange(Op::all_gather, words.data(), all.data(), words.size());
    return all;
  }
};

/// @param arena  of the optimizer whose memory words pass through, where the host cannot reach
///   the space; outlives what is returned
ZERO_OPTIONAL_APART [[nodiscard]] ControlWords control_words(CommunicatorRef comm, Arena& arena);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY ControlWords control_words(CommunicatorRef comm, Arena& arena) {
  auto const ranks = std::make_shared<Ranks>(comm);
  return {comm.rank,
          comm.size,
          [ranks, &arena](Op op, std::int64_t const* send, std::int64_t* recv, std::size_t count) {
            exchange_words(*ranks, arena, op, send, recv, count);
          }};
}

#endif

/// Do all ranks bring the same 64 bits?
/// @par Collective  yes; blocks
/// @par Cost        one all-reduce of 64 bytes
[[nodiscard]] inline bool unanimous(ControlWords const& control, std::uint64_t value) {
  std::array<std::int64_t, Unanimity::word_count> words{};
  Unanimity::write(value, words.data());
  control.sum(words);
  return Unanimity::holds(words.data(), control.size);
}

/// One rank's text.
/// @param rank  whose; the same on all ranks
/// @par Collective  yes; blocks
/// @par Cost        an all-reduce of 8 bytes, and one of the text
[[nodiscard]] inline std::string told_by(int rank, ControlWords const& control, std::string text) {
  if (control.rank != rank) text.clear();
  auto size = static_cast<std::int64_t>(text.size());
  control.sum({&size, 1});
  text.resize(static_cast<std::size_t>(size));
  std::vector<std::int64_t> letters((text.size() + sizeof(size) - 1) / sizeof(size));
  if (letters.empty()) return text;
  if (control.rank == rank) std::memcpy(letters.data(), text.data(), text.size());
  control.sum(letters);
  std::memcpy(text.data(), letters.data(), text.size());
  return text;
}

/// Why a rank failed, or that it did not.
struct RankFailure {
  bool failed = false;
  ErrorKind kind = ErrorKind::resource;
  std::string text{};
};

/// What became of work that a rank does alone: `work()` must not communicate.
template <class Work>
[[nodiscard]] RankFailure attempt_alone(Work&& work) {
  try {
    work();
    return {};
  } catch (Error const& error) {
    return {true, error.kind(), error.message()};
  } catch (std::exception const& error) {
    return {true, ErrorKind::resource, error.what()};
  }
}

/// One error on all ranks if one failed: that of the first, by rank.
/// @par Collective  yes; blocks
/// @par Cost        an all-reduce of 8 bytes; where a rank failed a gather of as many, and its text
/// @throws Error of that rank's kind, with its number and text
inline void agree(ControlWords const& control, RankFailure const& own, std::string_view operation) {
  std::int64_t failed = own.failed ? 1 : 0;
  control.sum({&failed, 1});
  if (failed == 0) return;
  std::int64_t const kind = own.failed ? 1 + static_cast<std::int64_t>(own.kind) : 0;
  std::vector<std::int64_t> const kinds = control.gather({&kind, 1});
  int rank = 0;
  while (kinds[static_cast<std::size_t>(rank)] == 0) ++rank;
  std::string const text = told_by(rank, control, own.text);
  fail(static_cast<ErrorKind>(kinds[static_cast<std::size_t>(rank)] - 1),
       {"on rank ", rank, ": ", text},
       {.rank = control.rank, .operation = std::string(operation)});
}

/// Work that each rank does alone, after which all go on or none does. Collective; blocks.
template <class Work>
void together(ControlWords const& control, std::string_view operation, Work&& work) {
  agree(control, attempt_alone(work), operation);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
