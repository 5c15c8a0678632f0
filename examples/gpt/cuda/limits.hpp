/// @file
/// Which models a device computes.
#pragma once

#include "tensors.hpp"

namespace gpt {

/// Why a device cannot compute such a model; null if it can.
[[nodiscard]] inline char const* device_refusal(Config const& config) noexcept {
  bool const whole = config.context % 8 == 0 && config.channels / config.heads % 8 == 0;
  return whole ? nullptr
               : "on a device --context and the channels of a head are multiples of 8, because "
                 "rows are read 16 bytes at a time";
}

}  // namespace gpt
