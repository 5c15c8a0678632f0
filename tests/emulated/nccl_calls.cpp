// What ranks of the emulated NCCL send each other. A collective is done when the streams of all
// ranks have come to it, and not before.
#include "emulated/clique.hpp"
#include "support/standard.hpp"

#include <nccl.h>

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
  comm->accepting = !comm->blocks;
  auto const accepted = comm->blocks ? ncclSuccess : ncclInProgress;
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
    return accepted;
  }
  auto const slot = slot_of(clique->slots[comm->collectives++]);
  part.position = state().machine.enqueue_attempt(
      stream->queue, [clique, slot] { return clique->attempt(*slot); });
  slot->parts[place] = std::move(part);
  ++slot->posted;
  if (state().random) state().machine.progress(*state().random);
  return accepted;
}

ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, fake::Collective const& call) {
  return managed(comm, [&] {
    if (group_depth != 0) give_up("a collective in a group of messages");
    if (call.count == 0) give_up("a collective of nothing");
    bool const legal = fake::places_are_legal(call, comm->rank, comm->clique->size);
    if (!legal) give_up("buffers overlap");
    return post(comm, stream, {.call = call});
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

using emulated::collective;
using emulated::dtype_of;
using emulated::managed;
using emulated::message;
using fake::Kind;

ncclResult_t ncclGroupStart() {
  ++emulated::group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--emulated::group_depth != 0) emulated::give_up("groups in groups");
  auto group = std::exchange(emulated::grouped, {});
  if (group.comm == nullptr) return ncclSuccess;
  return managed(group.comm, [&] {
    return emulated::post(group.comm, group.stream, {.messages = std::move(group.messages)});
  });
}

using Type = ncclDataType_t;
using Comm = ncclComm_t;
using Stream = cudaStream_t;

ncclResult_t ncclReduceScatter(
    void const* from, void* to, std::size_t n, Type type, ncclRedOp_t, Comm comm, Stream stream) {
  return collective(comm, stream, {Kind::reduce_scatter, from, to, n, dtype_of(type)});
}

ncclResult_t ncclAllGather(
    void const* from, void* to, std::size_t n, Type type, Comm comm, Stream stream) {
  return collective(comm, stream, {Kind::all_gather, from, to, n, dtype_of(type)});
}

ncclResult_t ncclAllReduce(
    void const* from, void* to, std::size_t n, Type type, ncclRedOp_t, Comm comm, Stream stream) {
  return collective(comm, stream, {Kind::all_reduce, from, to, n, dtype_of(type)});
}

ncclResult_t ncclBroadcast(
    void const* from, void* to, std::size_t n, Type type, int root, Comm comm, Stream stream) {
  return collective(comm, stream, {Kind::broadcast, from, to, n, dtype_of(type), root});
}

ncclResult_t ncclSend(
    void const* data, std::size_t n, Type type, int peer, Comm comm, Stream stream) {
  return message(comm, stream, {true, const_cast<void*>(data), n * size_of(dtype_of(type)), peer});
}

ncclResult_t ncclRecv(void* data, std::size_t n, Type type, int peer, Comm comm, Stream stream) {
  return message(comm, stream, {false, data, n * size_of(dtype_of(type)), peer});
}
