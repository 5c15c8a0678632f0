/// @file
/// What each communicator supports: the rows of the README's table.
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
  std::string_view named;             ///< by the errors of peers where a rank fails
  std::string_view memory;            ///< what `allocator()` gives
  std::string_view tested;
  Abilities abilities;
};

inline constexpr Row self{.name = "Self",
                          .ranks = "one",
                          .sums = "none needed",
                          .overlap = "nothing travels",
                          .named = "",
                          .memory = "",
                          .tested = "everywhere",
                          .abilities = {.host_memory = true, .split = true}};

inline constexpr Row in_process{
    .name = "InProcess",
    .ranks = "threads",
    .sums = "ordered",
    .overlap = "none: `wait` does the work",
    .named = "the rank, and its words",
    .memory = "",
    .tested = "everywhere",
    .abilities = {.host_memory = true, .split = true, .deadline = true, .failures = true}};

inline constexpr Row mpi{.name = "Mpi",
                         .ranks = "processes",
                         .sums = "ordered",
                         .overlap = "in `progress`, or in a thread",
                         .named = "the rank, and its words",
                         .memory = "the node's shared window",
                         .tested =
                             "Open MPI 4.1, MPICH 4.0; 1 to 16 processes on one machine; "
                             "Open MPI also over network namespaces",
                         .abilities = {.host_memory = true,
                                       .split = true,
                                       .progress = true,
                                       .deadline = true,
                                       .failures = true,
                                       .allocator = true}};

inline constexpr Row in_process_cuda{
    .name = "InProcessCuda",
    .ranks = "threads, on one or several GPUs",
    .sums = "ordered",
    .overlap = "on a stream of its own",
    .deadline = "of threads, not of the GPU",
    .named = "the rank, and its words",
    .memory = "",
    .tested = "on an H100, and on an emulated device",
    .abilities = {.split = true, .deadline = true, .failures = true}};

inline constexpr Row nccl{
    .name = "Nccl<Reduction>",
    .ranks = "one per GPU",
    .sums = "ordered or NCCL's",
    .overlap = "on streams of its own",
    .named = "the operation, and the rank that noticed",
    .memory = "registered buffers, symmetric windows",
    .tested = "on emulated devices, its faults over a fake NCCL, and on one H100",
    .abilities = {.split = true, .deadline = true, .failures = true, .allocator = true}};

inline constexpr Row all[] = {self, in_process, mpi, in_process_cuda, nccl};

}  // namespace backends
