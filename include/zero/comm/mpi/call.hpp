/// @file
/// What a rank tells its peers of a collective that it has started.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Collectives a rank may have under way; `start` blocks when there would be more.
inline constexpr std::size_t ring_slots = 64;

/// Send buffers up to this size are copied into the control block, which peers read at once.
inline constexpr std::size_t inline_bytes = 2048;

/// What all ranks have to call alike. Calls are compared, and added up, as bytes.
struct Call {
  std::uint64_t count = 0;
  std::int32_t root = 0;
  std::int32_t bucket = 0;
  Op op{};
  DType dtype{};
  DType accumulate{};
  std::uint8_t unused[5] = {};

  [[nodiscard]] bool operator==(Call const& other) const noexcept {
    return std::memcmp(this, &other, sizeof other) == 0;
  }
  [[nodiscard]] Collective collective() const noexcept {
    return {.op = op,
            .dtype = dtype,
            .accumulate = accumulate,
            .count = static_cast<std::size_t>(count),
            .root = root,
            .bucket = bucket};
  }
};
static_assert(std::has_unique_object_representations_v<Call>);

[[nodiscard]] inline Call call_of(Collective const& op) noexcept {
  return {op.count, op.root, op.bucket, op.op, op.dtype, op.accumulate};
}

/// Travels in front of the first chunk that one rank sends another for a collective. The field is
/// longer than what is in it, so that the data behind it is aligned.
struct alignas(head_bytes) Head {
  std::uint64_t number = 0;  ///< of the collective in its group
  std::uint64_t before = 0;  ///< sum of all calls of the group before it
  Call call{};
};
static_assert(sizeof(Head) == head_bytes);

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
