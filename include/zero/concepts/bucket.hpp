/// @file
/// The bucket slot: how many bytes travel together.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"

#include <cstddef>

namespace zero::inline ZERO_NAMESPACE {

/// The size of a bucket in bytes of the wire's dtype: a performance knob that never changes a
/// result. Its bytes do not depend on the model; every bucket but a unit's last is full. Small
/// neighbouring units share one: where parameters are gathered, where that costs nothing. Where
/// memory is lent it is at most a 32nd of the model, and large tensors have buckets of their own.
/// Under `ByTensor` these are bytes of the first precision, and buckets of the others have as many
/// elements.
struct Bucket {
  /// Rounded down to a multiple of 512 elements on every rank, but never below 512.
  std::size_t bytes = 25 * MiB;
  friend constexpr bool operator==(Bucket const&, Bucket const&) = default;
};

}  // namespace zero::inline ZERO_NAMESPACE
