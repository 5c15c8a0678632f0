/// @file
/// What a rank is whose memory is a GPU's, and what such ranks cannot do.
#pragma once

#include "limits.hpp"
#include "options.hpp"
#include "rank_memory.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/device/allocators.hpp"
#include "zero/zero.hpp"

#include <stdexcept>
#include <string>

namespace gpt {

/// Ranks are threads on one GPU.
using GpuThreads = zero::InProcessCuda;
using GpuMemory = zero::Owned<RankMemory<zero::device::MallocAllocator>>;

/// @throws std::runtime_error  something else is asked for than a device can do
inline void check_device(Options const& options) {
  auto const refuse = [](std::string const& why) { throw std::runtime_error(why); };
  if (options.model_parallel > 1) {
    refuse(
        "--model-parallel is of train_gpt, whose ranks add a layer's parts in the host's memory");
  }
  if (options.activations != "keep") {
    refuse("--activations is of train_gpt; on a device all activations are kept");
  }
  if (options.precision == "fp16") {
    refuse("--precision fp16 is of train_gpt; on a device products are of fp32 or bf16");
  }
  if (options.lora > 0) {
    refuse("--lora is of train_gpt, which adds adapters to a base in the host's memory");
  }
  if (char const* const why = device_refusal(options.model)) refuse(why);
}

}  // namespace gpt
