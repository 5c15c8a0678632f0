#include "run_gpu.hpp"
#include "run_rank.hpp"
#include "stream.hpp"
#include "watched.hpp"
#include "world.hpp"
#include "zero/comm/run_ranks.hpp"

#include <utility>
#include <vector>

namespace gpt {

StageResult run_on_gpu(Options const& options,
                       Text const& text,
                       std::atomic<bool> const& stop_requested,
                       ShowProgress const& show) {
  check_device(options);
  std::vector<Stream> streams;
  std::vector<zero::space::Cuda> spaces;
  for (int rank = 0; rank < options.ranks; ++rank) {
    spaces.push_back(streams.emplace_back(0).space());
  }
  WatchedDevice device(spaces.front());
  StageResult result;
  zero::run_ranks(zero::InProcessCuda::group(spaces), [&](GpuThreads& world) {
    GpuMemory const memory{RankMemory(options.budget, zero::device::MallocAllocator(0))};
    StageResult own = run_rank(world, memory, options, text, stop_requested, device.watching(show));
    if (world.rank() == 0) result = std::move(own);
  });
  return device.result(std::move(result));
}

}  // namespace gpt
