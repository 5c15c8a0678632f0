/// The one C++20 file of processes.c.
#include "zero/c/define.hpp"
#include "zero/c/mpi.hpp"

ZERO_C_DEFINE(zero::stage::Pos, zero::stage::PosGP, zero::Owned<>, zero::Borrowed<>)
