// The life of communicators of the emulated NCCL, one rank on a device. They say whether they
// block; those that do are a benchmark's baseline, and are not split.
#include "emulated/clique.hpp"
#include "support/standard.hpp"

#include <nccl.h>

namespace emulated {

namespace {

std::map<std::string, std::shared_ptr<Clique>> cliques;
unsigned ids = 0;

}  // namespace

}  // namespace emulated

using emulated::Clique;
using emulated::managed;
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
  std::snprintf(id->internal, sizeof(id->internal), "%u", ++emulated::ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  {
    Turn const turn;
    if (config->blocking < 0) emulated::give_up("a communicator that blocks by default");
    auto& clique = emulated::cliques[id.internal];
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
    (*comm)->blocks = config->blocking != 0;
    if (!(*comm)->blocks) return ncclInProgress;
  }
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    Turn const turn;
    if ((*comm)->seated()) return ncclSuccess;
  }
}

// As the real one: it says that it has succeeded, and has only begun.
ncclResult_t ncclCommSplit(
    ncclComm_t parent, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return managed(parent, [&] {
    if (config->blocking != 0) emulated::give_up("a blocking communicator");
    *child = nullptr;
    auto* const made = new ncclComm;
    made->device = parent->device;
    auto& shared = parent->clique->splits[parent->splits++];
    if (shared == nullptr) shared = std::make_shared<emulated::Split>();
    parent->split = made->split = shared;
    parent->deliver = [child, made] { *child = made; };
    emulated::Split& split = *shared;
    split.asked.emplace_back(color, key, parent->rank, made);
    if (static_cast<int>(split.asked.size()) < parent->clique->size) return ncclSuccess;
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
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return managed(comm, [&] {
    // The real one would wait for that for ever.
    for (auto const& capture : comm->captures) {
      if (capture->graphs > 0) emulated::give_up("finalized while a graph uses it");
    }
    comm->finalized = true;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Turn const turn;
  if (!comm->finalized) emulated::give_up("destroyed without being finalized");
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  auto const used = [comm] {
    return std::any_of(comm->captures.begin(), comm->captures.end(), [](auto const& capture) {
      return capture->graphs > 0;
    });
  };
  // What runs ends at once; what is there to run again keeps the communicator.
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    Turn const turn;
    if (comm->clique != nullptr) comm->clique->aborted = true;
    if (used()) continue;
    delete comm;
    return ncclSuccess;
  }
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
    if (comm->seated() && comm->deliver) std::exchange(comm->deliver, nullptr)();
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* size) {
  return managed(comm, [&] { return *size = comm->clique->size, ncclSuccess; });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return managed(comm, [&] { return *rank = comm->rank, ncclSuccess; });
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

// Waits for nothing, as the real one.
ncclResult_t ncclMemFree(void* memory) {
  Turn const turn;
  return emulated::state().memory.free(memory) ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, std::size_t, void** handle) {
  return managed(comm, [&] { return *handle = memory, ncclSuccess; });
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
    *window = nullptr;
    comm->deliver = [window, memory] { *window = memory; };
    ++comm->clique->meetings[++comm->met];
    // Says so as soon as it has begun, as the real one.
    return ncclSuccess;
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return managed(comm, [] { return ncclSuccess; });
}
