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

/// Consecutive values of an array; where they are codes, these begin with a group. Nobody else
/// puts values together, or takes them apart.
struct HeldValues {
  Array array{};
  std::byte* parameters = nullptr;      ///< of remainders: what they belong to
  MasterForm const* masters = nullptr;  ///< of remainders: how both are put together
  CodeForm const* codes = nullptr;      ///< of codes: what they stand for
  std::byte* scales = nullptr;          ///< of codes: of their groups

  /// Do they lie in memory as they are?
  [[nodiscard]] bool plain() const noexcept { return masters == nullptr && codes == nullptr; }
  /// Those from an element on.
  [[nodiscard]] HeldValues from(std::uint64_t element) const noexcept {
    HeldValues result = *this;
    result.array = array.from(element);
    if (masters != nullptr) result.parameters += element * size_of(DType::bf16);
    if (codes != nullptr) result.scales += element / coded_group;
    return result;
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

/// Calls `work(here, done, held, also)` for a few of `count` values at a time, with memory of the
/// host for what is held of them, and for the parameters or scales that belong to it.
template <class Work>
ZERO_COLD void for_parts(AnySpace const& space,
                         HeldValues const& all,
                         std::size_t count,
                         Work const& work) {
  HostChunk held(space.host_accessible());
  HostChunk also(space.host_accessible());
  for (std::size_t done = 0; done < count;) {
    // Whole groups, or as many as there is room for in the wider part.
    bool const coded = all.codes != nullptr;
    std::size_t const widest = coded ? 1 : size_of(DType::bf16);
    std::size_t const size = held.first(count - done, widest).size() / widest;
    work(all.from(done),
         done * size_of(DType::f32),
         held.first(size, all.array.width()),
         coded ? also.first(entries_of(Coding::root_scales, size), 1) : also.first(size, widest));
    done += size;
  }
}

ZERO_BODY void read_values(AnySpace const& space,
                           HeldValues const& from,
                           std::size_t count,
                           std::byte* out) {
  if (from.plain()) return space.download(out, from.array.first, from.array.bytes(count));
  for_parts(space, from, count, [&](auto const& here, std::size_t at, auto held, auto also) {
    bool const coded = here.codes != nullptr;
    space.download(held.data(), here.array.first, held.size());
    space.download(also.data(), coded ? here.scales : here.parameters, also.size());
    std::size_t const size = held.size() / here.array.width();
    if (coded) return here.codes->decode(out + at, held.data(), also.data(), size);
    here.masters->join(out + at, also.data(), held.data(), size);
  });
}

ZERO_BODY void write_values(AnySpace const& space,
                            HeldValues const& to,
                            std::size_t count,
                            std::byte const* in) {
  if (to.plain()) return space.upload(to.array.first, in, to.array.bytes(count));
  for_parts(space, to, count, [&](auto const& here, std::size_t at, auto held, auto also) {
    bool const coded = here.codes != nullptr;
    std::size_t const size = held.size() / here.array.width();
    if (coded) {
      here.codes->encode(held.data(), also.data(), in + at, size);
    } else {
      here.masters->split(also.data(), held.data(), in + at, size);
    }
    space.upload(coded ? here.scales : here.parameters, also.data(), also.size());
    space.upload(here.array.first, held.data(), held.size());
  });
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
