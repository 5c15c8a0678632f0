#include "run_stage.hpp"

template gpt::StageResult gpt::run_precision<zero::Mixed<zero::bf16, zero::Rest16>,
                                             zero::AdamW8bit>(zero::InProcess&,
                                                              gpt::ThreadMemory const&,
                                                              gpt::Options const&,
                                                              gpt::Text const&,
                                                              std::atomic<bool> const&,
                                                              gpt::ShowProgress const&);
template gpt::StageResult gpt::run_precision<zero::Mixed<zero::bf16, zero::Rest8>, zero::AdamW8bit>(
    zero::InProcess&,
    gpt::ThreadMemory const&,
    gpt::Options const&,
    gpt::Text const&,
    std::atomic<bool> const&,
    gpt::ShowProgress const&);
