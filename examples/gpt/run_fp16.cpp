#include "run_stage.hpp"

template gpt::StageResult gpt::run_precision<zero::Mixed<zero::fp16>>(zero::InProcess&,
                                                                      gpt::ThreadMemory const&,
                                                                      gpt::Options const&,
                                                                      gpt::Text const&,
                                                                      std::atomic<bool> const&,
                                                                      gpt::ShowProgress const&);
