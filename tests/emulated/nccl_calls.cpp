// What ranks of the emulated NCCL send each other. A collective is done when the streams of all
// ranks have come to it, and not before.
#include "emulated/clique.hpp"

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace emulated {

namespace {

thread_local int group_depth = 0;
struct Grouped {
  ncclComm* comm = nullptr;
  CUstream_st* stream = nullptr;
  std::vector<Message> messages;
};
thread_local Grouped grouped;

/// Puts this rank's part of a collective into its stream. The caller has the turn.
ncclResult_t post(ncclComm_t comm, cudaStream_t stream, Part part) {
  if (!known(stream) || stream->device != comm->device) return ncclInvalidArgument;
  auto const clique = comm->clique;
  comm->accepting = true;
  part.queue = stream->queue;
  auto const place = static_cast<std::size_t>(comm->rank);
  auto const slot_of = [&]<class Slot>(std::shared_ptr<Slot>& slot) {
    if (slot == nullptr) slot = std::make_shared<Slot>();
    slot->parts.resize(static_cast<std::size_t>(clique->size));
    return slot;
  };
  if (stream->capture != nullptr) {
    auto const slot = slot_of(clique->captured[comm->captured++]);
    slot->parts[place] = std::move(part);
    comm->captures.push_back(stream->capture);
    stream->capture->add([clique, slot, rank = comm->rank](
                             std::size_t launch) { return clique->attempt(*slot, rank, launch); },
                         stream->frontier);
    return ncclInProgress;
  }
  auto const slot = slot_of(clique->slots[comm->collectives++]);
  part.position = state().machine.enqueue_attempt(
      stream->queue, [clique, slot] { return clique->attempt(*slot); });
  slot->parts[place] = std::move(part);
  ++slot->posted;
  if (state().random) state().machine.progress(*state().random);
  return ncclInProgress;
}

ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, Part part) {
  return managed(comm, [&] {
    if (group_depth != 0) give_up("a collective in a group of messages");
    if (part.count == 0) give_up("a collective of nothing");
    return post(comm, stream, std::move(part));
  });
}

ncclResult_t message(ncclComm_t comm, cudaStream_t stream, Message const& part) {
  return managed(comm, [&] {
    if (group_depth == 0) give_up("a message outside of a group");
    if (grouped.comm != nullptr && (grouped.comm != comm || grouped.stream != stream)) {
      give_up("a group over several communicators or streams");
    }
    grouped.comm = comm;
    grouped.stream = stream;
    grouped.messages.push_back(part);
    return ncclSuccess;
  });
}

}  // namespace

}  // namespace emulated

using emulated::Kind;
using emulated::managed;

ncclResult_t ncclGroupStart() {
  ++emulated::group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--emulated::group_depth != 0) emulated::give_up("groups in groups");
  auto group = std::exchange(emulated::grouped, {});
  if (group.comm == nullptr) return ncclSuccess;
  return managed(group.comm, [&] {
    emulated::Part part;
    part.messages = std::move(group.messages);
    return emulated::post(group.comm, group.stream, std::move(part));
  });
}

namespace {

emulated::Part part_of(
    Kind kind, void const* send, void* recv, std::size_t count, ncclDataType_t type, int root = 0) {
  emulated::Part part;
  part.kind = kind;
  part.send = send;
  part.recv = recv;
  part.count = count;
  part.type = type;
  part.root = root;
  return part;
}

}  // namespace

ncclResult_t ncclReduceScatter(void const* send,
                               void* recv,
                               std::size_t count,
                               ncclDataType_t type,
                               ncclRedOp_t,
                               ncclComm_t comm,
                               cudaStream_t stream) {
  return emulated::collective(comm, stream, part_of(Kind::reduce_scatter, send, recv, count, type));
}

ncclResult_t ncclAllGather(void const* send,
                           void* recv,
                           std::size_t count,
                           ncclDataType_t type,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return emulated::collective(comm, stream, part_of(Kind::all_gather, send, recv, count, type));
}

ncclResult_t ncclAllReduce(void const* send,
                           void* recv,
                           std::size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return emulated::collective(comm, stream, part_of(Kind::all_reduce, send, recv, count, type));
}

ncclResult_t ncclBroadcast(void const* send,
                           void* recv,
                           std::size_t count,
                           ncclDataType_t type,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t stream) {
  return emulated::collective(
      comm, stream, part_of(Kind::broadcast, send, recv, count, type, root));
}

ncclResult_t ncclSend(void const* data,
                      std::size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  std::size_t const bytes = count * emulated::size_of(type);
  return emulated::message(comm, stream, {true, const_cast<void*>(data), bytes, peer});
}

ncclResult_t ncclRecv(void* data,
                      std::size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
  std::size_t const bytes = count * emulated::size_of(type);
  return emulated::message(comm, stream, {false, data, bytes, peer});
}
