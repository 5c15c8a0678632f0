/// @file
/// LibTorch: a module's parameters described, lent and updated. Needs the target `zero::libtorch`.
#pragma once

#include "zero/adapt/libtorch/describe.hpp"
#include "zero/adapt/libtorch/optimizer.hpp"
