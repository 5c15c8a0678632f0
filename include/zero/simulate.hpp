/// @file
/// Says where the simulated communicator went; gone in 0.4.
#pragma once

#include "zero/base/config.hpp"

#error "zero: the simulated communicator moved to examples/plan/simulate, a folder to copy"
#include ZERO_STOP
