#include "../run_stage.hpp"
#include "world.hpp"

template gpt::StageResult gpt::run_precision<zero::Mixed<zero::bf16>>(gpt::NcclWorld&,
                                                                      gpt::NcclMemory const&,
                                                                      gpt::Options const&,
                                                                      gpt::Text const&,
                                                                      std::atomic<bool> const&,
                                                                      gpt::ShowProgress const&);
