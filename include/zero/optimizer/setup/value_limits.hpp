/// @file
/// Values that types here cannot hold: which of those that a trainer gives would become infinite.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/kernel/host_conversion.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/optimizer/callables.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/optimizer/setup/same_values.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Why a finite value is refused.
/// @param limit  the type in which it would be infinite
/// @param state  of the tensor, whose value it is; empty: its own
[[nodiscard]] ZERO_COLD inline Message overflow_text(std::string_view tensor,
                                                     std::uint64_t element,
                                                     double value,
                                                     DType limit,
                                                     std::string_view state = {}) {
  std::string_view const way =
      "; with overflow = saturate (a policy, and an option of loads and exports) it becomes ";
  Message const what{"element ", element, " of ", state, state.empty() ? "" : " of "};
  Message const why{"tensor '", tensor, "' is ", value, ", which would become infinite in "};
  return {what, why, name(limit), way, value < 0 ? -largest(limit) : largest(limit)};
}

/// What is wrong with a code that does not exist: -128, or 1 to 3 of squares.
[[nodiscard]] ZERO_COLD inline Message bad_code_text(std::string_view tensor,
                                                     std::uint64_t element,
                                                     std::string_view state) {
  Message const of{"a code for element ", element, " of '", state, "' of tensor '", tensor};
  return {of, "' that stands for no number"};
}

/// Looks for values that are finite, and would be infinite as parameters or masters. Notes the
/// first that is refused, for `require_fit`. Local.
/// @param type  of the values
/// @param run   has them where masters are, in memory of the host; they change if they saturate
ZERO_APART ZERO_COLD void fit(Parts& parts, Overflow overflow, DType type, OwnedRun const& run);

/// Looks for codes that stand for no number, likewise.
/// @param run  has them and their scales as they are saved, in memory of the host
ZERO_APART ZERO_COLD void find_bad_codes(Parts& parts, OwnedRun const& run);

/// Has a rank refused a value since values began to be replaced?
/// @par Collective  yes; blocks
/// @par Cost        an all-reduce of 8 bytes; allocates nothing
/// @throws Error (invalid_argument), on every rank, naming the first such element in the order of
///   tensors
ZERO_APART ZERO_COLD void require_fit(Parts& parts);

#if ZERO_BODIES

ZERO_BODY void fit(Parts& parts, Overflow overflow, DType type, OwnedRun const& run) {
  auto const t = static_cast<std::size_t>(run.tensor - parts.described.data());
  StorageTypes const& types = parts.types[parts.kind_of(t)];
  for (DType const limit : {types.parameter, types.master()}) {
    bool const rounded = types.masters != nullptr && limit == types.parameter;
    float const least = rounded ? types.masters->least_infinite : 0.f;
    std::size_t const i =
        kernel::first_overflow(limit, type, run.master, run.count, overflow, least);
    auto const place = static_cast<std::int64_t>(hash_place(t, run.first + i));
    if (i == run.count || place >= parts.now.refused[0]) continue;
    double value = 0.;
    std::byte const* const at = static_cast<std::byte*>(run.master) + i * size_of(type);
    kernel::convert_on_host(DType::f64, &value, type, at, 1);
    parts.now.refused = {place, std::bit_cast<std::int64_t>(value), std::int64_t(limit)};
  }
}

ZERO_BODY void find_bad_codes(Parts& parts, OwnedRun const& run) {
  auto const t = static_cast<std::size_t>(run.tensor - parts.described.data());
  StorageTypes const& types = parts.types[run.kind];
  for (std::size_t k = 1; k < types.arrays.size(); ++k) {
    CodeForm const* const form = types.arrays[k].codes;
    if (form == nullptr) continue;
    void const* const scales = run.states[types.scales_of(k) - 1];
    std::size_t const i = form->first_bad(run.states[k - 1], scales, run.count);
    auto const place = static_cast<std::int64_t>(hash_place(t, run.first + i));
    if (i == run.count || place >= parts.now.refused[0]) continue;
    parts.now.refused = {place, static_cast<std::int64_t>(k), bad_code};
  }
}

ZERO_BODY void require_fit(Parts& parts) {
  std::int64_t found = parts.now.refused == none_refused ? 0 : 1;
  control_words(parts).sum({&found, 1});
  if (found == 0) return;
  auto const all = RankWords(parts.comm(), parts.arena).gather(parts.now.refused);
  auto const* first = all.data();
  for (std::size_t i = 0; i < all.size(); i += parts.now.refused.size()) {
    if (all[i] < *first) first = &all[i];
  }
  auto const place = static_cast<std::uint64_t>(first[0]);
  std::string_view const tensor = parts.described[static_cast<std::size_t>(place >> 40)].name;
  std::uint64_t const element = place % hash_place(1, 0);
  auto const why = [&]() -> Message {
    if (first[2] != bad_code) {
      double const value = std::bit_cast<double>(first[1]);
      return overflow_text(tensor, element, value, static_cast<DType>(first[2]));
    }
    auto const k = static_cast<std::size_t>(first[1]);
    return {"fill_held() left ", bad_code_text(tensor, element, parts.types[0].arrays[k].name)};
  };
  fail(ErrorKind::invalid_argument, why(), parts.groups.here("check of values"));
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
