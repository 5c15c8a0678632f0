/// @file
/// Defines zero/c.h. To be included in one C++20 file of a program, which says once what the
/// trainer chooses from:
///
///     ZERO_C_DEFINE(zero::stage::Pos, zero::stage::PosG, zero::Fp32, zero::AdamW, zero::Owned<>)
///
/// Policies in any order, several for each slot; a slot without any takes its default. Every
/// combination that makes sense is instantiated, and takes as long to compile as an optimizer does.
/// Processes and checkpoints are defined by zero/c/mpi.hpp and zero/c/checkpoint.hpp, in that file.
#pragma once

#include "zero/c/definition.hpp"
#include "zero/c/functions.hpp"

#include <vector>

/// Defines zero/c.h with these policies: once in a program.
#define ZERO_C_DEFINE(...)                                  \
  std::vector<zero::c::OptimizerEntry> zero::c::entries() { \
    return zero::c::Definition<__VA_ARGS__>::entries();     \
  }
