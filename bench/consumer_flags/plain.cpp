#include "builds.hpp"

namespace bench {
Build const plain_build = build<zero::kernel::native>;
}  // namespace bench
