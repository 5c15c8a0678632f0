#pragma once

#include <zero/comm/mpi.hpp>

/// The sum of what all ranks of one node give.
double sum_of(zero::Mpi<>& comm, double mine);
