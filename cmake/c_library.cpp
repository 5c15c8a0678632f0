// What libzero_c contains: all stages, accumulations and memories that the library ships, and rules
// with the precisions that people train with. Each pair takes half a second to compile.
#if defined(ZERO_C_LIBRARY_MPI)
#include <zero/c/mpi.hpp>
#endif
#if defined(ZERO_C_LIBRARY_CHECKPOINT)
#include <zero/c/checkpoint.hpp>
#endif
#include <zero/c/define.hpp>

ZERO_C_DEFINE(
    zero::stage::Replicated,
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
    zero::c::Pairs<
        zero::c::Types<zero::Fp32,
                       zero::Mixed<zero::bf16>,
                       zero::Mixed<zero::bf16, zero::Rest16>,
                       zero::Mixed<zero::bf16, zero::Rest8>>,
        zero::c::Types<zero::AdamW8bit, zero::Adam8bit, zero::Lion8bit, zero::Lamb, zero::Lars>>,
    zero::c::Pairs<
        zero::c::Types<zero::Mixed<zero::bf16, zero::Rest16>, zero::Mixed<zero::bf16, zero::Rest8>>,
        zero::c::Types<zero::AdamW>>,
    zero::AccumulateNone,
    zero::AccumulateFull,
    zero::AccumulateShard,
    zero::Owned<>,
    zero::Borrowed<>)
