/// The one C++20 file of checkpoints.c and models.c.
#include "zero/c/checkpoint.hpp"
#include "zero/c/define.hpp"

ZERO_C_DEFINE(zero::stage::Pos,
              zero::stage::PosGP,
              zero::Fp32,
              zero::Mixed<zero::bf16>,
              zero::AdamW,
              zero::Sgd,
              zero::c::Pairs<zero::c::Types<zero::Fp32>, zero::c::Types<zero::AdamW8bit>>,
              zero::c::Checkpoints)
