/// @file
/// LibTorch: a module's parameters described, lent, partitioned and updated. Needs the target
/// `zero::libtorch`.
#pragma once

#include "zero/adapt/libtorch/describe.hpp"
#include "zero/adapt/libtorch/optimizer.hpp"
#include "zero/adapt/libtorch/sharded.hpp"
#include "zero/adapt/libtorch/units.hpp"
