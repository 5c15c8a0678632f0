/// @file
/// The overflow slot: what becomes of values that a type cannot hold.
#pragma once

#include "zero/base/config.hpp"

#include <cstdint>

namespace zero::inline ZERO_NAMESPACE {

/// What becomes of a finite value that would become infinite in the type of an array, such as 1e5
/// in fp16, where values are given, loaded or exported. One that rounds to the largest finite
/// number fits, and infinities and NaNs pass as they are.
///
/// As a policy it is for `load_parameters`, `broadcast_parameters(values)` and `fill_owned`; loads
/// and exports of files have it among their options.
enum class Overflow : std::uint8_t {
  refuse,   ///< an error on every rank, which names the first such element and its value
  saturate  ///< takes the largest finite number of that sign, for the master weight as well
};

}  // namespace zero::inline ZERO_NAMESPACE
