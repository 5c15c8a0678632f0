// An emulated NCCL between emulated devices: non-blocking communicators only, one rank on a device.
// A collective is done when the streams of all ranks have come to it, and not before.
#include "emulated/collective.hpp"
#include "emulated/state.hpp"

#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace emulated {

namespace {

/// A collective, as far as it has been called.
struct Slot {
  std::vector<Part> parts;
  int posted = 0;
  bool busy = false;
  bool done = false;
};

/// A split under way: who has asked for what.
struct Split {
  std::vector<std::tuple<int, int, int, ncclComm*>> asked;  ///< color, key, parent's rank, child
  bool over = false;
};

/// The ranks of a communicator.
struct Clique {
  explicit Clique(int ranks) : size(ranks), devices(static_cast<std::size_t>(ranks), -1) {}

  int size;
  std::vector<int> devices;
  int seats = 0;
  bool aborted = false;
  std::map<std::size_t, std::shared_ptr<Slot>> slots;
  std::map<std::size_t, int> meetings;
  std::map<std::size_t, std::shared_ptr<Split>> splits;

  /// Tries to do a collective for all ranks; false if a stream has not come to it.
  bool attempt(Slot& slot) const {
    if (slot.done || aborted) return true;
    if (slot.posted < size || slot.busy) return false;
    slot.busy = true;
    bool const here = std::all_of(slot.parts.begin(), slot.parts.end(), [](Part const& part) {
      return fake::Machine::reach(part.queue, part.position);
    });
    slot.busy = false;
    if (!here) return false;
    carry_out(slot.parts);
    slot.done = true;
    return true;
  }
};

}  // namespace

}  // namespace emulated

struct ncclComm {
  std::shared_ptr<emulated::Clique> clique;
  int rank = 0;
  int device = 0;
  std::size_t collectives = 0;
  std::size_t met = 0;
  std::size_t splits = 0;
  bool accepting = false;  ///< a call was accepted and is not over until it is asked for
  bool finalized = false;
  std::shared_ptr<emulated::Split const> split;  ///< that made it, or that it waits for

  [[nodiscard]] bool seated() const {
    return clique != nullptr && clique->seats == clique->size &&
           (met == 0 || clique->meetings[met] == clique->size) && (split == nullptr || split->over);
  }
};

namespace emulated {

namespace {

struct Nccl {
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  unsigned ids = 0;
};

Nccl& nccl() {
  static Nccl instance;
  return instance;
}

thread_local int group_depth = 0;
struct Grouped {
  ncclComm* comm = nullptr;
  CUstream_st* stream = nullptr;
  std::vector<Message> messages;
};
thread_local Grouped grouped;

/// A call on a communicator that is ready for one, by the thread whose device is the current one.
template <class Body>
ncclResult_t managed(ncclComm_t comm, Body const& body) {
  Turn const turn;
  if (comm->clique != nullptr && comm->clique->aborted) return ncclRemoteError;
  if (!comm->seated() || comm->accepting) give_up("a call before the last one was over");
  if (comm->device != current_device) return ncclInvalidUsage;
  return body();
}

ncclResult_t meet(ncclComm& comm) {
  ++comm.clique->meetings[++comm.met];
  return ncclInProgress;
}

/// Puts this rank's part of a collective into its stream. The caller has the turn.
ncclResult_t post(ncclComm_t comm, cudaStream_t stream, Part part) {
  if (!known(stream) || stream->device != comm->device) return ncclInvalidArgument;
  auto const clique = comm->clique;
  comm->accepting = true;
  auto& slot = clique->slots[comm->collectives++];
  if (slot == nullptr) {
    slot = std::make_shared<Slot>();
    slot->parts.resize(static_cast<std::size_t>(clique->size));
  }
  Part& place = slot->parts[static_cast<std::size_t>(comm->rank)];
  place = std::move(part);
  place.queue = stream->queue;
  if (stream->capture != nullptr) {
    if (clique->size != 1) give_up("only a group of one is captured");
    stream->capture->add(
        [parts = slot->parts, clique] {
          Slot again;
          again.parts = parts;
          again.posted = 1;
          // A replay is where its stream is.
          again.parts[0].position = again.parts[0].queue->done;
          if (!clique->attempt(again)) give_up("a replay that does not run");
        },
        stream->frontier);
    return ncclInProgress;
  }
  place.position = state().machine.enqueue_attempt(
      stream->queue, [clique, slot] { return clique->attempt(*slot); });
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

using emulated::Clique;
using emulated::Kind;
using emulated::managed;
using emulated::nccl;
using emulated::Turn;

char const* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "emulated error";
}
char const* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Turn const turn;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "%u", ++nccl().ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  Turn const turn;
  if (config->blocking != 0) emulated::give_up("a blocking communicator");
  auto& clique = nccl().cliques[id.internal];
  if (clique == nullptr) clique = std::make_shared<Clique>(size);
  int const device = emulated::current_device;
  auto const& devices = clique->devices;
  if (std::find(devices.begin(), devices.end(), device) != devices.end()) return ncclInvalidUsage;
  clique->devices[static_cast<std::size_t>(rank)] = device;
  ++clique->seats;
  *comm = new ncclComm;
  (*comm)->clique = clique;
  (*comm)->rank = rank;
  (*comm)->device = device;
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(
    ncclComm_t parent, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return managed(parent, [&] {
    if (config->blocking != 0) emulated::give_up("a blocking communicator");
    *child = new ncclComm;
    (*child)->device = parent->device;
    auto& shared = parent->clique->splits[parent->splits++];
    if (shared == nullptr) shared = std::make_shared<emulated::Split>();
    parent->split = (*child)->split = shared;
    emulated::Split& split = *shared;
    split.asked.emplace_back(color, key, parent->rank, *child);
    if (static_cast<int>(split.asked.size()) < parent->clique->size) return ncclInProgress;
    std::sort(split.asked.begin(), split.asked.end());
    for (auto const& [wanted, order, rank, comm] : split.asked) {
      int const group = wanted;
      auto const same = [group](auto const& other) { return std::get<0>(other) == group; };
      auto const first = std::find_if(split.asked.begin(), split.asked.end(), same);
      ncclComm* const leader = std::get<3>(*first);
      if (leader == comm) {
        auto const members = std::count_if(split.asked.begin(), split.asked.end(), same);
        comm->clique = std::make_shared<Clique>(static_cast<int>(members));
      }
      comm->clique = leader->clique;
      comm->rank = comm->clique->seats++;
    }
    split.over = true;
    return ncclInProgress;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return managed(comm, [&] {
    comm->finalized = true;
    return emulated::meet(*comm);
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Turn const turn;
  if (!comm->finalized) emulated::give_up("destroyed without being finalized");
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Turn const turn;
  if (comm->clique != nullptr) comm->clique->aborted = true;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  Turn const turn;
  if (comm->clique != nullptr) comm->clique->aborted = true;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  Turn const turn;
  if (comm->clique != nullptr && comm->clique->aborted) {
    *error = ncclRemoteError;
  } else {
    *error = comm->seated() && !comm->accepting ? ncclSuccess : ncclInProgress;
    if (comm->seated()) comm->accepting = false;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* size) {
  return managed(comm, [&] {
    *size = comm->clique->size;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return managed(comm, [&] {
    *rank = comm->rank;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  Turn const turn;
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  Turn const turn;
  std::size_t const pages = (bytes + 4095) / 4096 * 4096;
  *memory = emulated::state().memory.allocate(emulated::current_device, pages, false);
  return *memory != nullptr ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, std::size_t, void** handle) {
  return managed(comm, [&] {
    *handle = memory;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void*) {
  return managed(comm, [] { return ncclSuccess; });
}

ncclResult_t ncclCommWindowRegister(
    ncclComm_t comm, void* memory, std::size_t bytes, ncclWindow_t* window, int) {
  return managed(comm, [&] {
    if (reinterpret_cast<std::uintptr_t>(memory) % 4096 != 0 || bytes % 4096 != 0) {
      return ncclInvalidArgument;
    }
    *window = memory;
    return emulated::meet(*comm);
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return managed(comm, [] { return ncclSuccess; });
}

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
