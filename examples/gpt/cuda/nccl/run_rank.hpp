/// @file
/// A rank of a group over NCCL, whoever started it.
#pragma once

#include "../../run_rank.hpp"
#include "../stream.hpp"
#include "../watched.hpp"
#include "world.hpp"

#include <utility>

namespace gpt {

/// Trains as one rank, on a GPU that no other rank has.
/// @param id      of the group, from NcclWorld::unique_id() on one rank
/// @param device  ordinal of the GPU
/// @throws zero::Error  on every rank that learns of it, if one of them fails
inline StageResult run_nccl_rank(NcclWorld::UniqueId const& id,
                                 int rank,
                                 int device,
                                 Options const& options,
                                 Text const& text,
                                 std::atomic<bool> const& stop_requested,
                                 ShowProgress const& show) {
  check_device(options);
  zero::device::check(cudaSetDevice(device), "cudaSetDevice");
  Stream const stream(device);
  zero::nccl::Options group;
  group.deadline_s = 600;
  NcclWorld world{
      zero::nccl::NewGroup<zero::nccl::Library>{id, rank, options.ranks, stream.space().stream()},
      group};
  WatchedDevice watched(stream.space());
  NcclMemory const memory{RankMemory(options.budget, world.allocator())};
  StageResult result =
      run_rank(world, memory, options, text, stop_requested, watched.watching(show));
  world.close();
  return watched.result(std::move(result));
}

}  // namespace gpt
