/// @file
/// Ranks that start from the same values, or hear of which tensor they do not.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/base/unanimity.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/rank_words.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A hash for each described tensor; zero of those that are not meant.
using TensorHashes = std::vector<std::uint64_t>;

/// Where an element of tensor t counts in a hash of many tensors.
[[nodiscard]] constexpr std::uint64_t hash_place(std::size_t t, std::uint64_t element) noexcept {
  return (static_cast<std::uint64_t>(t) << 40) + element;
}

/// The first tensor of opaque bytes; there is one.
[[nodiscard]] ZERO_COLD inline std::string const& first_opaque(Parts const& parts) {
  std::size_t t = 0;
  while (!parts.has(Content::bytes, t)) ++t;
  return parts.tensors[t].name;
}

/// @param unset  the sum over ranks: 1 of each whose numbers have no values, and 2^32 of each whose
///   opaque bytes have none
/// @throws Error always, on every rank
[[noreturn]] ZERO_COLD inline void refuse_unset(Parts const& parts, std::int64_t unset, int ranks) {
  std::int64_t const bytes = unset >> 32;
  std::int64_t const numbers = unset - (bytes << 32);
  bool const opaque = numbers == 0;
  fail(ErrorKind::invalid_argument,
       {opaque ? "tensor '" : "parameters have",
        opaque ? std::string_view(first_opaque(parts)) : "",
        opaque ? "' has" : "",
        " no values on ",
        opaque ? bytes : numbers,
        " of ",
        ranks,
        ranks == 1 ? " rank" : " ranks",
        ": before the first step call ",
        opaque ? "load_bytes(values) or broadcast_bytes(values)"
               : "load_parameters(values), broadcast_parameters(values) or fill_owned(fill), which "
                 "leaves out frozen tensors",
        "; or adopt_parameters(), to start from what lies there",
        opaque ? "" : ", zeros where nothing was written"});
}

/// Sums of at most `StepControl::word_count` words, in the control's, which nobody reads between
/// two exchanges: nothing is allocated.
[[nodiscard]] inline RankWords control_words(Parts& parts) noexcept {
  return {parts.comm(), parts.arena, parts.control->words};
}

/// Does each rank have what the rank before it would have put there?
/// @param own   of what this rank has
/// @param next  of what the next rank should have
/// @par Collective  yes; blocks
/// @par Cost        one all-reduce of 16 bytes
ZERO_APART [[nodiscard]] ZERO_COLD bool same_around(RankWords const& ranks,
                                                    std::uint64_t own,
                                                    std::uint64_t next);

/// Says what `same_around` found.
/// @par Collective  yes; blocks
/// @par Cost        a gather of 16 bytes per tensor
/// @param of    which ranks these are
/// @param held  do all ranks hold all of what differs? Then the element is found
/// @throws Error (communication), on every rank, naming the first tensor that differs, and where
ZERO_APART [[noreturn]] ZERO_COLD void refuse_values(Ranks& ranks,
                                                     Parts& parts,
                                                     TensorHashes const& own,
                                                     TensorHashes const& next,
                                                     std::string_view of = {},
                                                     bool held = false);

/// Compares what every rank holds all of, hashed in the space.
/// @par Collective  yes; blocks
/// @par Cost        one pass over it, and an all-reduce of 72 bytes; allocates nothing unless ranks
///   differ
/// @throws Error (communication) as `refuse_values`; (invalid_argument) as `refuse_unset`
ZERO_APART ZERO_COLD void compare_held(Parts& parts);

/// Compares what ranks of a model axis have alike: parameters and masters of tensors that are not
/// partitioned over it, as far as this rank updates them, and frozen ones, as far as it holds them.
/// @par Collective  yes, over the model axis; blocks
/// @par Cost        one pass over it, and a copy of a word for each tensor
/// @throws Error (communication), on every rank of the axis, as `refuse_values`
ZERO_APART ZERO_COLD void compare_replicated(Parts& parts);

/// Finds parameters that are not their masters, rounded: somebody wrote into them, and the next
/// update would undo it.
/// @par Collective  yes, over all ranks; blocks
/// @par Cost        one pass over what this rank updates, and an all-reduce of 8 bytes; nothing
///   where there are no masters
/// @throws Error (invalid_argument), on every rank, naming the first element, and ranks
ZERO_APART ZERO_COLD void compare_masters(Parts& parts);

#if ZERO_BODIES

ZERO_BODY bool same_around(RankWords const& ranks, std::uint64_t own, std::uint64_t next) {
  auto const digest = [](std::uint64_t value, int rank) {
    Hash hash;
    hash.add(static_cast<std::uint64_t>(rank));
    hash.add(value);
    return hash.value();
  };
  // Added up around the ring, what is the same cancels out. In halves, which do not overflow.
  int const rank = ranks.rank();
  std::uint64_t const rest = digest(own, rank) - digest(next, (rank + 1) % ranks.size());
  std::array<std::int64_t, 2> words{static_cast<std::int64_t>(rest & 0xffffffffu),
                                    static_cast<std::int64_t>(rest >> 32)};
  ranks.sum(words);
  return static_cast<std::uint64_t>(words[0]) + (static_cast<std::uint64_t>(words[1]) << 32) == 0;
}

/// The first element in which ranks' parameters differ, of a tensor that all hold all of; as many
/// as it has if there is none.
/// @par Collective  yes; blocks
/// @par Cost        two passes over the tensor, and an all-reduce for each bit of its size
ZERO_APART [[nodiscard]] ZERO_COLD std::uint64_t first_apart(Parts& parts, std::size_t t);
ZERO_BODY std::uint64_t first_apart(Parts& parts, std::size_t t) {
  AnySpace const& space = parts.space();
  auto* const word = reinterpret_cast<std::uint64_t*>(parts.control->words);
  auto const same = [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t hash = 0;
    space.zero(word, sizeof(hash));
    parts.kernels.add_hash(
        word, parts.parameters.tensor(t).from(begin), static_cast<std::size_t>(end - begin), begin);
    space.download(&hash, word, sizeof(hash));
    return control_words(parts).unanimous(hash);
  };
  std::uint64_t begin = 0;
  std::uint64_t end = parts.partition.place(t).count;
  if (same(begin, end)) return end;
  while (end - begin > 1) {
    std::uint64_t const middle = begin + (end - begin) / 2;
    (same(begin, middle) ? begin : end) = middle;
  }
  return begin;
}

ZERO_BODY void refuse_values(Ranks& ranks,
                             Parts& parts,
                             TensorHashes const& own,
                             TensorHashes const& next,
                             std::string_view of,
                             bool held) {
  auto const size = static_cast<std::size_t>(ranks.size());
  std::vector<std::int64_t> mine;
  for (std::uint64_t const hash : own) mine.push_back(static_cast<std::int64_t>(hash));
  for (std::uint64_t const hash : next) mine.push_back(static_cast<std::int64_t>(hash));
  auto const all = RankWords(ranks, parts.arena).gather(mine);
  std::string pairs;
  std::string tensor;
  bool opaque = false;
  std::size_t first = parts.tensors.size();
  for (std::size_t t = 0; t < own.size() && pairs.empty(); ++t) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      std::size_t const after = (rank + 1) % size;
      if (all[rank * mine.size() + own.size() + t] == all[after * mine.size() + t]) continue;
      pairs += Message({pairs.empty() ? " " : ", ", rank, " and ", after}).text();
      if (tensor.empty()) {
        tensor = Message({" of tensor '", parts.tensors[t].name, "'"}).text();
        opaque = parts.has(Content::bytes, t);
      }
      if (held) first = t;
      // Around a ring of two they are the same two again.
      if (size == 2) break;
    }
  }
  if (first < parts.tensors.size()) {
    std::uint64_t const element = first_apart(parts, first);
    if (element < parts.partition.place(first).count) {
      tensor += Message({", first in element ", element}).text();
    }
  }
  // A broadcast is over the data axis.
  std::string_view const way = !of.empty() ? ""
                               : opaque ? "; broadcast_bytes(values) gives all of them those of one"
                               : parts.form.parameters == StorageForm::Parameters::share
                                   ? "; broadcast_parameters(values) gives all of them those of one"
                                   : "; broadcast_parameters() gives all of them those of one";
  fail(ErrorKind::communication,
       {"ranks", pairs, of, " start from different values", tensor, way},
       {.rank = ranks.rank(),
        .operation = "check of parameters",
        .group = std::string(ranks.name())});
}

/// Adds the hashes of a piece's parameters and, where they have any, masters.
/// @param word  where they belong, in the space
ZERO_APART ZERO_COLD void hash_parameters(Parts& parts,
                                          HeldPiece const& piece,
                                          std::uint64_t* word) {
  parts.kernels.add_hash(
      word, piece.parameter(), piece.count(), hash_place(piece.tensor(), piece.first()));
}
ZERO_APART ZERO_COLD void hash_masters(Parts& parts, HeldPiece const& piece, std::uint64_t* word) {
  if (!piece.types().has_master()) return;
  parts.kernels.add_hash(word,
                         piece.master(),
                         piece.count(),
                         (std::uint64_t{1} << 63) + hash_place(piece.tensor(), piece.first()));
}

/// Adds the hashes of what every rank holds all of: parameters, frozen ones too, and masters.
/// @param words  where they belong, in the space: to one word, or to `each` tensor's
ZERO_APART ZERO_COLD void hash_held(Parts& parts, std::uint64_t* words, bool each) {
  bool masters = false;
  auto const add = [&](HeldPiece const& piece) {
    std::uint64_t* const word = words + (each ? piece.tensor() : 0);
    if (masters) return hash_masters(parts, piece, word);
    if (!parts.parameters.shares(piece.kind())) hash_parameters(parts, piece, word);
  };
  parts.held.trained(Extent::read, add);
  parts.held.frozen(Extent::read, add);
  masters = true;
  if (!parts.states.shares()) parts.held.trained(Extent::updated, add);
}

ZERO_BODY void compare_held(Parts& parts) {
  bool const set = parts.now.of(Content::numbers).set || parts.policies.borrowed;
  std::int64_t unset = set ? 0 : 1;
  if (!parts.now.of(Content::bytes).set) unset += std::int64_t{1} << 32;
  if (parts.comm().size() == 1) {
    if (unset != 0) refuse_unset(parts, unset, 1);
    return;
  }
  AnySpace const& space = parts.space();
  auto* const word = reinterpret_cast<std::uint64_t*>(parts.control->words);
  std::uint64_t all = 0;
  space.zero(word, sizeof(all));
  hash_held(parts, word, false);
  space.download(&all, word, sizeof(all));
  std::array<std::int64_t, 1 + Unanimity::word_count> words{unset};
  Unanimity::write(all, words.data() + 1);
  control_words(parts).sum(words);
  if (words[0] != 0) refuse_unset(parts, words[0], parts.comm().size());
  if (Unanimity::holds(words.data() + 1, parts.comm().size())) return;
  TensorHashes own(parts.tensors.size());
  std::size_t const size = own.size() * sizeof(own[0]);
  Arena::Scratch const scratch(parts.arena, size);
  auto* const hashes = static_cast<std::uint64_t*>(scratch.data());
  space.zero(hashes, size);
  hash_held(parts, hashes, true);
  space.download(own.data(), hashes, size);
  refuse_values(parts.comm(), parts, own, own, {}, true);
}

ZERO_BODY void compare_replicated(Parts& parts) {
  Ranks& model = *parts.groups.model();
  AnySpace const& space = parts.space();
  TensorHashes hashes(parts.tensors.size());
  std::size_t const bytes = hashes.size() * sizeof(hashes[0]);
  if (bytes == 0) return;
  Arena::Scratch const scratch(parts.arena, bytes);
  auto* const words = static_cast<std::uint64_t*>(scratch.data());
  space.zero(words, bytes);
  auto const add = [&](HeldPiece const& piece) {
    if (parts.tensors[piece.tensor()].partitioned) return;
    hash_parameters(parts, piece, words + piece.tensor());
    hash_masters(parts, piece, words + piece.tensor());
  };
  parts.held.trained(Extent::updated, add);
  parts.held.frozen(Extent::read, add);
  space.download(hashes.data(), words, bytes);
  Hash all;
  for (std::uint64_t const hash : hashes) all.add(hash);
  if (RankWords(model, parts.arena).unanimous(all.value())) return;
  refuse_values(model, parts, hashes, hashes, " of a model axis");
}

ZERO_BODY void compare_masters(Parts& parts) {
  auto const follows = [](StorageTypes const& types) { return types.has_whole_master(); };
  if (std::none_of(parts.types.begin(), parts.types.end(), follows)) return;
  constexpr std::uint64_t none = ~std::uint64_t{0};
  std::uint64_t first = none;
  auto* const word = reinterpret_cast<std::uint64_t*>(parts.control->words);
  parts.space().upload(word, &first, sizeof(first));
  parts.held.trained(Extent::updated, [&](HeldPiece const& piece) {
    // Lent parameters that nobody has adopted yet have no masters.
    if (!parts.now.of(Content::numbers).set || !follows(piece.types())) return;
    parts.kernels.of(piece.kind())
        .find_unrounded(word,
                        piece.parameter().first,
                        piece.master().first,
                        piece.count(),
                        hash_place(piece.tensor(), piece.first()));
  });
  parts.space().download(&first, word, sizeof(first));
  RankWords const ranks(parts.groups.world(), parts.arena, parts.control->words);
  std::int64_t found = first != none ? 1 : 0;
  ranks.sum({&found, 1});
  if (found == 0) return;
  auto const own = static_cast<std::int64_t>(first);
  auto const all = ranks.gather({&own, 1});
  for (std::int64_t const each : all) first = (std::min)(first, static_cast<std::uint64_t>(each));
  std::string where;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (static_cast<std::uint64_t>(all[rank]) == first) where += Message({" ", rank}).text();
  }
  fail(ErrorKind::invalid_argument,
       {"element ",
        first & (hash_place(1, 0) - 1),
        " of tensor '",
        parts.tensors[static_cast<std::size_t>(first / hash_place(1, 0))].name,
        "' is not its master weight, rounded, on rank",
        where,
        ": somebody wrote into the parameters, and the next update would undo that. Change master "
        "weights with fill_owned(), and parameters follow; or have them start from what was "
        "written, with adopt_parameters()"},
       parts.groups.here("check of parameters"));
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
