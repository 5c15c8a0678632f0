/// @file
/// What a rank owns, shown to its trainer or filled in by it, run by run.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/parts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Calls `visit` for master weights and states of all that this rank updates: where they lie if the
/// host can reach them there, else chunk by chunk. Local.
ZERO_APART void visit_owned(Parts const& parts, OwnedVisitor visit);

/// Has all of it filled in; parameters follow on every rank. Collective.
ZERO_APART void fill_owned(Parts& parts, OwnedVisitor fill);

/// Parameters follow their master weights, bucket by bucket, on every rank. Collective.
/// @param before  called with each piece that this rank updates, before its parameters follow;
///   where it returns false, they do not
template <class Before>
void follow_masters(Parts& parts, Before const& before);

#if ZERO_BODIES

/// @param fills  whether what is visited may be written
ZERO_APART void visit_run(Parts const& parts,
                          BucketSpan const& bucket,
                          Segment const& piece,
                          bool fills,
                          OwnedVisitor visit);
ZERO_BODY void visit_run(Parts const& parts,
                         BucketSpan const& bucket,
                         Segment const& piece,
                         bool fills,
                         OwnedVisitor visit) {
  constexpr std::uint64_t chunk = std::uint64_t{1} << 18;
  Slice const& slice = parts.slices[piece.tensor];
  AnySpace const& space = parts.space();
  // The masters, and the states behind them.
  std::vector<Array> arrays{parts.states.master(bucket, piece, parts.parameters)};
  for (std::size_t k = 1; k < parts.states.arrays(); ++k) {
    arrays.push_back(parts.states.state(bucket, piece, k));
  }
  std::vector<void*> memory(arrays.size());
  std::vector<std::vector<std::byte>> copies(space.host_accessible() ? 0 : arrays.size());
  for (std::uint64_t done = 0; done < piece.count;) {
    std::uint64_t const count =
        copies.empty() ? piece.count : (std::min)(chunk, piece.count - done);
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      memory[a] = arrays[a].at(done);
      if (copies.empty()) continue;
      copies[a].resize(arrays[a].bytes(count));
      memory[a] = copies[a].data();
      space.download(memory[a], arrays[a].at(done), copies[a].size());
    }
    visit({.tensor = &parts.described[slice.described],
           .first = static_cast<std::size_t>(slice.first + piece.in_tensor.offset() + done),
           .count = static_cast<std::size_t>(count),
           .master = memory.front(),
           .states = std::span(memory).subspan(1)});
    for (std::size_t a = 0; fills && a < copies.size(); ++a) {
      space.upload(arrays[a].at(done), memory[a], copies[a].size());
    }
    done += count;
  }
}

ZERO_BODY void visit_owned(Parts const& parts, OwnedVisitor visit) {
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts.partition.for_each_segment(parts.states.updated(bucket), [&](Segment const& piece) {
      visit_run(parts, bucket, piece, false, visit);
    });
  });
}

template <class Before>
void follow_masters(Parts& parts, Before const& before) {
  bool const has_master = parts.kernels.types().has_master();
  parts.refresh.settle();
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts.partition.for_each_segment(parts.states.updated(bucket), [&](Segment const& piece) {
      if (!before(bucket, piece) || !has_master) return;
      parts.kernels.parameter_from_master(
          parts.parameters.segment(bucket, piece),
          parts.states.master(bucket, piece, parts.parameters).first,
          static_cast<std::size_t>(piece.count));
    });
    parts.refresh.after_update(bucket);
  });
  parts.refresh.settle();
}

ZERO_BODY void fill_owned(Parts& parts, OwnedVisitor fill) {
  follow_masters(parts, [&](BucketSpan const& bucket, Segment const& piece) {
    visit_run(parts, bucket, piece, true, fill);
    return true;
  });
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
