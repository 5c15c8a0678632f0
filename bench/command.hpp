/// @file
/// The options of our programs of collectives, beside those of Google Benchmark.
#pragma once

#include "zero/bench/cases.hpp"

#include <optional>

namespace bench {

/// What a command line says.
struct Command {
  zero::bench::CollectiveCases cases{};  ///< what is to be measured
  bool ordinary = false;                 ///< memory as any, instead of the communicator's
  bool native = false;                   ///< NCCL adds, and not the library
  bool windows = false;                  ///< memory is registered as NCCL's symmetric windows
  std::optional<int> status{};  ///< the program ends with it: help was asked for, or refused
};

/// Reads and removes our options; Google Benchmark's stay. What is wrong is said in one line.
/// @param argc  of main; what is left
/// @param argv  of main; what is left
/// @param rank  of a job, whose ranks are given: it has --ordinary instead of --ranks, and rank 0
///              alone prints; -1 if ranks are to be launched
/// @param nccl  the ranks are NCCL's: there are --native and --windows
[[nodiscard]] Command read_command(int& argc, char** argv, int rank = -1, bool nccl = false);

}  // namespace bench
