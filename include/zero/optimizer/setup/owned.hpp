/// @file
/// What a rank owns, shown to its trainer or filled in by it, run by run.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/value_limits.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Calls `visit` for master weights and states of all that this rank updates: where they lie if the
/// host can reach them there and they lie there as they are, else chunk by chunk. Local.
/// @param fills  whether it may write them; then what it wrote has to fit into the parameters, as
///   `fit` says
/// @param saved  whether arrays are shown as they are saved, scales behind all; else as values
ZERO_APART void visit_owned(Parts& parts, bool fills, OwnedVisitor visit, bool saved = false);

/// Calls `visit` for the same arrays, one after the other, as they are saved. Local.
/// @param fills  as above; codes that it wrote have to be such that stand for numbers, too
ZERO_APART void visit_held(Parts& parts, bool fills, HeldVisitor visit);

#if ZERO_BODIES

/// Writes values that were shown. Of codes only groups in which one has changed: what was rounded
/// stochastically may be other codes if it is rounded to nearest.
ZERO_APART ZERO_COLD void write_shown(AnySpace const& space,
                                      HeldValues const& to,
                                      std::size_t count,
                                      std::byte const* values) {
  if (to.codes == nullptr) return write_values(space, to, count, values);
  std::array<std::byte, coded_group * sizeof(float)> before{};
  for (std::size_t i = 0; i < count; i += coded_group) {
    auto const size = (std::min)(static_cast<std::size_t>(coded_group), count - i);
    std::byte const* const now = values + i * sizeof(float);
    read_values(space, to.from(i), size, before.data());
    if (std::memcmp(before.data(), now, size * sizeof(float)) == 0) continue;
    write_values(space, to.from(i), size, now);
  }
}

ZERO_BODY void visit_owned(Parts& parts, bool fills, OwnedVisitor visit, bool saved) {
  constexpr std::uint64_t chunk = std::uint64_t{1} << 18;
  AnySpace const& space = parts.space();
  parts.now.refused = none_refused;
  parts.held.trained(Extent::updated, [&](HeldPiece const& piece) {
    Slice const& slice = parts.slices[piece.tensor()];
    // The masters, and the states behind them; values have no scales.
    std::size_t const shown =
        saved ? piece.types().arrays.size() : 1 + parts.rules.calls().states.size();
    std::vector<HeldValues> arrays;
    bool direct = space.host_accessible();
    for (std::size_t k = 0; k < shown; ++k) {
      arrays.push_back(saved ? piece.saved(k) : piece.values(k));
      direct = direct && arrays.back().plain();
    }
    std::vector<void*> memory(arrays.size());
    std::vector<std::vector<std::byte>> copies(direct ? 0 : arrays.size());
    for (std::uint64_t done = 0; done < piece.count();) {
      std::uint64_t const count =
          copies.empty() ? piece.count() : (std::min)(chunk, piece.count() - done);
      auto const size = static_cast<std::size_t>(count);
      for (std::size_t a = 0; a < arrays.size(); ++a) {
        HeldValues const here = arrays[a].from(done);
        memory[a] = here.array.first;
        if (copies.empty()) continue;
        copies[a].resize(here.plain() ? here.array.bytes(size) : size * size_of(here.array.dtype));
        memory[a] = copies[a].data();
        read_values(space, here, size, copies[a].data());
      }
      OwnedRun const run{.tensor = &parts.described[slice.described],
                         .first = static_cast<std::size_t>(slice.first + piece.first() + done),
                         .count = static_cast<std::size_t>(count),
                         .master = memory.front(),
                         .states = std::span(memory).subspan(1),
                         .kind = piece.kind()};
      visit(run);
      if (fills) fit(parts, parts.overflow, arrays.front().array.dtype, run);
      for (std::size_t a = 0; fills && a < copies.size(); ++a) {
        write_shown(space, arrays[a].from(done), size, copies[a].data());
      }
      done += count;
    }
  });
}

ZERO_BODY void visit_held(Parts& parts, bool fills, HeldVisitor visit) {
  auto const show = [&](OwnedRun const& run) {
    Tensor const& tensor = *run.tensor;
    std::uint64_t const slice = element_count(tensor) / (tensor.stacked ? tensor.shape[0] : 1);
    std::size_t k = 0;
    for (ArrayForm const& form : parts.types[run.kind].arrays) {
      bool const coded = form.coding >= Coding::root;
      HeldArray array{.name = form.name,
                      .dtype = coded ? DType::u8 : form.dtype,
                      .coding = coded ? form.coding : Coding::values};
      // Each slice begins with an entry of its own.
      std::uint64_t const before = run.first / slice * entries_of(array.coding, slice);
      std::uint64_t const within = entries_of(array.coding, run.first % slice);
      array.first = static_cast<std::size_t>(before + within);
      std::uint64_t const bytes = entries_of(array.coding, run.count) * size_of(array.dtype);
      void* const memory = k == 0 ? run.master : run.states[k - 1];
      visit(tensor, array, {static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes)});
      ++k;
    }
    if (fills) find_bad_codes(parts, run);
  };
  visit_owned(parts, fills, OwnedVisitor(show), true);
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
