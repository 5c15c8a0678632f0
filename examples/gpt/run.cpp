#include "run_rank.hpp"

#include <utility>

namespace gpt {

StageResult run(Options const& options,
                Text const& text,
                std::atomic<bool> const& stop_requested,
                ShowProgress const& show) {
  StageResult result;
  zero::run_ranks(options.ranks, [&](zero::InProcess& world) {
    ThreadMemory const memory{RankMemory<>(options.budget)};
    StageResult own = run_rank(world, memory, options, text, stop_requested, show);
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

}  // namespace gpt
