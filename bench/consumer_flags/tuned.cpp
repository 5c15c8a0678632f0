#include "builds.hpp"

namespace bench {
Build const tuned_build = build<zero::kernel::native>;
}  // namespace bench
