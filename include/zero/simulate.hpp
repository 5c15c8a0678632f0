/// @file
/// Training in virtual time: the library's own schedule on a cluster that is only described.
#pragma once

#include "zero/simulate/communicator.hpp"
#include "zero/simulate/space.hpp"
#include "zero/simulate/timeline.hpp"
