/// @file
/// Training in virtual time: the library's own schedule on a cluster that is only described.
#pragma once

#include "zero/simulate/collectives.hpp"
#include "zero/simulate/communicator.hpp"
#include "zero/simulate/named.hpp"
#include "zero/simulate/over_mpi.hpp"
#include "zero/simulate/space.hpp"
#include "zero/simulate/timeline.hpp"
#include "zero/simulate/trace.hpp"
#include "zero/simulate/transformer.hpp"
