#include "run_stage.hpp"

template gpt::StageResult gpt::run_precision<zero::Mixed<zero::bf16>>(gpt::GpuThreads&,
                                                                      gpt::GpuMemory const&,
                                                                      gpt::Options const&,
                                                                      gpt::Text const&,
                                                                      std::atomic<bool> const&,
                                                                      gpt::ShowProgress const&);
