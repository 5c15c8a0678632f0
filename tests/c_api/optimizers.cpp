/// The one C++20 file behind the tests' trainers.
#include "zero/c/define.hpp"

ZERO_C_DEFINE(zero::stage::Replicated,
              zero::stage::Pos,
              zero::stage::PosG,
              zero::stage::PosGP,
              zero::Fp32,
              zero::Mixed<zero::bf16>,
              zero::AdamW,
              zero::AccumulateNone,
              zero::AccumulateShard,
              zero::Owned<>,
              zero::Borrowed<>)
