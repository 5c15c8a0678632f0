#include "backends.hpp"
#include "cuda/fake_runtime.hpp"
#include "zero/comm/device_threads/device_group.hpp"

static_assert(
    backends::in_process_cuda.abilities ==
    backends::observed<zero::DeviceGroup<fake::Api>, zero::DeviceGroup<fake::Api>::Options>());
