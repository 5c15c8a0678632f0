/// @file
/// Training in virtual time: the library's own schedule on a cluster that is only described.
#pragma once

#include "zero/simulate/simulated_communicator.hpp"
#include "zero/simulate/simulated_space.hpp"
#include "zero/simulate/timeline.hpp"
