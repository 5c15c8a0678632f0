/// @file
/// From options to a run on GPUs.
#pragma once

#include "options.hpp"
#include "result.hpp"
#include "text.hpp"

#include <atomic>

namespace gpt {

/// Trains on `options.ranks` threads that share the first GPU.
/// @throws std::runtime_error  something else is asked for than a device can do
StageResult run_on_gpu(Options const& options,
                       Text const& text,
                       std::atomic<bool> const& stop_requested,
                       ShowProgress const& show);

/// Trains on `options.ranks` threads, each with the GPU of its number, over NCCL.
/// @throws std::runtime_error  also if this was built without NCCL
StageResult run_over_nccl(Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show);

}  // namespace gpt
