// What libzero_c contains: every policy that the library ships.
#if defined(ZERO_C_LIBRARY_MPI)
#include <zero/c/mpi.hpp>
#endif
#if defined(ZERO_C_LIBRARY_CHECKPOINT)
#include <zero/c/checkpoint.hpp>
#endif
#include <zero/c/define.hpp>

ZERO_C_DEFINE(zero::stage::Replicated,
              zero::stage::Pos,
              zero::stage::PosG,
              zero::stage::PosGP,
              zero::Fp32,
              zero::Mixed<zero::bf16>,
              zero::Mixed<zero::fp16>,
              zero::AdamW,
              zero::Adam,
              zero::Sgd,
              zero::PlainSgd,
              zero::AmsGrad,
              zero::NAdam,
              zero::Adagrad,
              zero::RmsProp<>,
              zero::Lion,
              zero::AccumulateNone,
              zero::AccumulateFull,
              zero::AccumulateShard,
              zero::Owned<>,
              zero::Borrowed<>)
