/// @file
/// The values of an array, as they are shown and saved, whatever holds them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/held/host_chunk.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Consecutive values of an array. Nobody else puts values together, or takes them apart.
struct HeldValues {
  Array array{};
  std::byte* parameters = nullptr;      ///< of remainders: what they belong to
  MasterForm const* masters = nullptr;  ///< of remainders: how both are put together

  /// Do they lie in memory as they are?
  [[nodiscard]] bool plain() const noexcept { return masters == nullptr; }
  /// Those from an element on.
  [[nodiscard]] HeldValues from(std::uint64_t element) const noexcept {
    std::uint64_t const before = plain() ? 0 : element * size_of(DType::bf16);
    return {array.from(element), parameters + before, masters};
  }
  /// Do others follow `count` of these in memory?
  [[nodiscard]] bool go_on(std::uint64_t count, HeldValues const& others) const noexcept {
    HeldValues const next = from(count);
    return next.array.first == others.array.first && next.parameters == others.parameters;
  }
};

/// Brings values to memory of the host, which need not be aligned. Local; waits.
ZERO_APART void read_values(AnySpace const& space,
                            HeldValues const& from,
                            std::size_t count,
                            std::byte* out);

/// Takes values from memory of the host, which need not be aligned. Local; waits.
ZERO_APART void write_values(AnySpace const& space,
                             HeldValues const& to,
                             std::size_t count,
                             std::byte const* in);

#if ZERO_BODIES

/// Calls `work(here, done, parameters, rests)` for a few of `count` masters at a time, with memory
/// of the host for both parts.
template <class Work>
ZERO_COLD void for_parts(AnySpace const& space,
                         HeldValues const& all,
                         std::size_t count,
                         Work const& work) {
  HostChunk parameters(space.host_accessible());
  HostChunk rests(space.host_accessible());
  for (std::size_t done = 0; done < count;) {
    auto const first = parameters.first(count - done, size_of(DType::bf16));
    std::size_t const size = first.size() / size_of(DType::bf16);
    work(all.from(done), done * size_of(DType::f32), first, rests.first(size, all.array.width()));
    done += size;
  }
}

ZERO_BODY void read_values(AnySpace const& space,
                           HeldValues const& from,
                           std::size_t count,
                           std::byte* out) {
  if (from.plain()) return space.download(out, from.array.first, from.array.bytes(count));
  for_parts(space, from, count, [&](auto const& here, std::size_t at, auto parameters, auto rests) {
    space.download(parameters.data(), here.parameters, parameters.size());
    space.download(rests.data(), here.array.first, rests.size());
    std::size_t const size = rests.size() / here.array.width();
    here.masters->join(out + at, parameters.data(), rests.data(), size);
  });
}

ZERO_BODY void write_values(AnySpace const& space,
                            HeldValues const& to,
                            std::size_t count,
                            std::byte const* in) {
  if (to.plain()) return space.upload(to.array.first, in, to.array.bytes(count));
  for_parts(space, to, count, [&](auto const& here, std::size_t at, auto parameters, auto rests) {
    std::size_t const size = rests.size() / here.array.width();
    here.masters->split(parameters.data(), rests.data(), in + at, size);
    space.upload(here.parameters, parameters.data(), parameters.size());
    space.upload(here.array.first, rests.data(), rests.size());
  });
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
