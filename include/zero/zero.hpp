/// @file
/// Everything that needs only the standard library.
#pragma once

// Errors point into these, and GCC prints how each was included: directly.
// clang-format off
#include "zero/optimizer/api/guards.hpp"
#include "zero/optimizer/api/full_parameters.hpp"
#include "zero/sharded_optimizer.hpp"
// clang-format on

#include "zero/base/bytes.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/version.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/decorators/traced.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/compiled.hpp"
#include "zero/concepts/accumulation.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/model_states.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/concepts/stage.hpp"
#include "zero/layout/plan.hpp"
#include "zero/optimizer/step_together.hpp"
#include "zero/precision/by_tensor.hpp"
#include "zero/precision/fp32.hpp"
#include "zero/precision/fp64.hpp"
#include "zero/precision/mixed.hpp"
#include "zero/rule/adagrad.hpp"
#include "zero/rule/adam.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/amsgrad.hpp"
#include "zero/rule/lion.hpp"
#include "zero/rule/nadam.hpp"
#include "zero/rule/rmsprop.hpp"
#include "zero/rule/sgd.hpp"
