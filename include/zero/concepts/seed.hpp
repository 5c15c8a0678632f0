/// @file
/// The seed slot: which random bits a run has, where something is rounded stochastically.
#pragma once

#include "zero/base/config.hpp"

#include <cstdint>

namespace zero::inline ZERO_NAMESPACE {

/// Chooses the random bits of a run: of two runs that differ in nothing else, one rounds otherwise
/// than the other. Any number is as good as another, 0 among them, and all ranks give the same.
///
/// An element's bits are a function of the seed, of its tensor's name and updates, and of its place
/// in the tensor: the same under every stage, for every number of ranks and size of buckets, and
/// after a resume, which goes on with the seed of the checkpoint. Where nothing is rounded
/// stochastically, the seed changes nothing.
struct Seed {
  std::uint64_t value = 0;  ///< all 64 bits count
  friend constexpr bool operator==(Seed const&, Seed const&) = default;
};

}  // namespace zero::inline ZERO_NAMESPACE
