/// The one C++20 file of checkpoints.c.
#include "zero/c/checkpoint.hpp"
#include "zero/c/define.hpp"

ZERO_C_DEFINE(zero::stage::Pos, zero::stage::PosGP, zero::c::Checkpoints)
