#include "builds.hpp"

namespace bench {
Build const tuned_build{update<float>, update<zero::bf16>, update<zero::fp16>};
}  // namespace bench
