#include "run.hpp"

#include <stdexcept>

namespace gpt {

StageResult run(Options const& options,
                Text const& text,
                std::atomic<bool> const& stop_requested,
                ShowProgress const& show) {
  if (options.precision == "fp32") {
    return run_precision<zero::Fp32>(options, text, stop_requested, show);
  }
  if (options.precision == "bf16") {
    return run_precision<zero::Mixed<zero::bf16>>(options, text, stop_requested, show);
  }
  if (options.precision == "fp16") {
    return run_precision<zero::Mixed<zero::fp16>>(options, text, stop_requested, show);
  }
  throw std::invalid_argument("unknown precision '" + options.precision + "'");
}

}  // namespace gpt
