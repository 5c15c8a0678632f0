// The one C++20 file of the programs in C: which optimizers there are to choose from.
#include <zero/c/define.hpp>

ZERO_C_DEFINE(zero::stage::Replicated,
              zero::stage::Pos,
              zero::stage::PosG,
              zero::stage::PosGP,
              zero::Fp32,
              zero::Mixed<zero::bf16>,
              zero::AdamW,
              zero::Owned<>,
              zero::Borrowed<>)
