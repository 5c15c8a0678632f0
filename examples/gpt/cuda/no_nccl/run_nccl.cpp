#include "../run_gpu.hpp"

#include <stdexcept>

namespace gpt {

StageResult run_over_nccl(Options const& /*options*/,
                          Text const& /*text*/,
                          std::atomic<bool> const& /*stop_requested*/,
                          ShowProgress const& /*show*/) {
  throw std::runtime_error("built without NCCL: --nccl needs libnccl-dev");
}

}  // namespace gpt
