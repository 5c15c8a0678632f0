/// @file
/// Those calls of NCCL that the library makes, between emulated devices: a stand-in for NCCL's
/// header of this name. Numbers and meanings are NCCL's; see nccl.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#define NCCL_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define NCCL_VERSION_CODE 22809

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclDataType_t {
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclNumTypes = 12,
};

enum ncclRedOp_t { ncclSum = 0 };

using ncclComm_t = struct ncclComm*;
using ncclWindow_t = void*;

struct ncclUniqueId {
  char internal[128];
};

struct ncclConfig_t {
  int blocking;
  int maxCTAs;
  int splitShare;
};
// A value that no option has, as in NCCL, where it means "not set".
#define NCCL_CONFIG_INITIALIZER \
  { -1, -1, -1 }
inline constexpr int NCCL_WIN_COLL_SYMMETRIC = 1;
inline constexpr int NCCL_REVOKE_DEFAULT = 0;

char const* ncclGetErrorString(ncclResult_t result);
char const* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommSplit(
    ncclComm_t parent, int color, int key, ncclComm_t* child, ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(ncclComm_t comm, int* size);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes);
ncclResult_t ncclMemFree(void* memory);
ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, std::size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
ncclResult_t ncclCommWindowRegister(
    ncclComm_t comm, void* memory, std::size_t bytes, ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclReduceScatter(
    void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclAllGather(
    void const*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclAllReduce(
    void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclBroadcast(
    void const*, void*, std::size_t, ncclDataType_t, int root, ncclComm_t, cudaStream_t);
ncclResult_t ncclSend(void const*, std::size_t, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
ncclResult_t ncclRecv(void*, std::size_t, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
