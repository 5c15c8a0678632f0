/// @file
/// What each communicator supports: the rows of the table in examples/policies.md.
///
/// What a type can say is in `Abilities`, and each row is compared with its type wherever that type
/// compiles; over a fake of the runtime where the real one needs a GPU. Words are what no type
/// says.
#pragma once

#include "zero/concepts/communicator.hpp"

#include <string_view>

namespace backends {

/// What the type of a communicator says about it.
struct Abilities {
  bool host_memory = false;  ///< buffers are ordinary memory
  bool split = false;        ///< sub-groups
  bool progress = false;     ///< transfers advance in calls of `progress`, too
  bool deadline = false;     ///< every wait has one
  bool failures = false;     ///< a rank can say that it cannot go on
  bool allocator = false;    ///< memory of its own kind for the optimizer

  friend constexpr bool operator==(Abilities const&, Abilities const&) = default;
};

/// @tparam Options  what its group is constructed with
template <zero::Communicator C, class Options>
[[nodiscard]] consteval Abilities observed() {
  return {.host_memory = C::Space::host_accessible,
          .split = zero::SplittableCommunicator<C>,
          .progress = zero::ProgressingCommunicator<C>,
          .deadline = requires(Options options){options.deadline_s;
}
, .failures = requires(C & comm) { comm.report_failure("why"); }
, .allocator = requires(C const& comm) { comm.allocator(); }
};
}

struct Row {
  std::string_view name;
  std::string_view ranks;
  std::string_view sums;
  std::string_view overlap;
  std::string_view deadline = "yes";  ///< where there is one
  std::string_view named;             ///< by the errors of the other ranks when a rank fails
  std::string_view memory;            ///< what `allocator()` gives
  std::string_view tested;
  Abilities abilities;
};

inline constexpr Row self{.name = "Self",
                          .ranks = "a single thread or process",
                          .sums = "-",
                          .overlap = "-",
                          .named = "",
                          .memory = "",
                          .tested = "on every tested system",
                          .abilities = {.host_memory = true, .split = true}};

inline constexpr Row in_process{
    .name = "InProcess",
    .ranks = "threads",
    .sums = "in rank order",
    .overlap = "no: `wait` does the work",
    .named = "which rank failed, and its message",
    .memory = "",
    .tested = "on every tested system",
    .abilities = {.host_memory = true, .split = true, .deadline = true, .failures = true}};

inline constexpr Row mpi{.name = "Mpi",
                         .ranks = "processes",
                         .sums = "in rank order",
                         .overlap = "while `progress()` is called, or on a thread of its own",
                         .named = "which rank failed, and its message",
                         .memory = "memory that the ranks of a node share",
                         .tested =
                             "with 1 to 16 processes on one machine, under Open MPI 4.1 and MPICH "
                             "4.0; under Open MPI also between network namespaces",
                         .abilities = {.host_memory = true,
                                       .split = true,
                                       .progress = true,
                                       .deadline = true,
                                       .failures = true,
                                       .allocator = true}};

inline constexpr Row in_process_cuda{
    .name = "InProcessCuda",
    .ranks = "threads with one or several GPUs",
    .sums = "in rank order",
    .overlap = "on its own stream",
    .deadline = "for threads, but not for the GPU",
    .named = "which rank failed, and its message",
    .memory = "",
    .tested = "on one H100, and on an emulated device",
    .abilities = {.split = true, .deadline = true, .failures = true}};

inline constexpr Row nccl{
    .name = "Nccl<Reduction>",
    .ranks = "threads or processes, one for each GPU",
    .sums = "in rank order, or in NCCL's order",
    .overlap = "on its own streams",
    .named = "which operation failed, and which rank noticed",
    .memory = "registered buffers and symmetric windows",
    .tested = "on one H100, and on emulated devices; failures with a fake NCCL",
    .abilities = {.split = true, .deadline = true, .failures = true, .allocator = true}};

inline constexpr Row all[] = {self, in_process, mpi, in_process_cuda, nccl};

}  // namespace backends
