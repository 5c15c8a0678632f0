#include "../run_gpu.hpp"
#include "run_rank.hpp"

#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gpt {

StageResult run_over_nccl(Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show) {
  check_device(options);
  int devices = 0;
  zero::device::check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (devices < options.ranks) {
    // Ranks that have one would wait for the others.
    throw std::runtime_error("--nccl needs a GPU for each of " + std::to_string(options.ranks) +
                             " ranks, and there are " + std::to_string(devices));
  }
  auto const id = NcclWorld::unique_id();
  StageResult result;
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        StageResult own = run_nccl_rank(id, rank, rank, options, text, stop_requested, show);
        if (rank == 0) result = std::move(own);
      } catch (...) {
        std::lock_guard const lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
  return result;
}

}  // namespace gpt
