/// @file
/// LibTorch: a module's parameters described, lent, partitioned and updated. Needs the target
/// `zero::libtorch`. With it come the policies, and the communicators that need no other library.
#pragma once

#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/adapt/libtorch/module_optimizer.hpp"
#include "zero/adapt/libtorch/module_units.hpp"
#include "zero/adapt/libtorch/sharded_module.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/precision/fp64.hpp"
#include "zero/precision/mixed.hpp"
#include "zero/rule/adagrad.hpp"
#include "zero/rule/amsgrad.hpp"
#include "zero/rule/lion.hpp"
#include "zero/rule/nadam.hpp"
#include "zero/rule/rmsprop.hpp"
#include "zero/rule/sgd.hpp"
