/// The real NCCL where there is no GPU: what it says then has to reach the trainer in words.
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace {

using Comm = zero::Nccl<zero::nccl::Native>;
using zero::Error;
using zero::ErrorKind;
using zero::nccl::Library;
using zero::nccl::NewGroup;
using zero::nccl::Result;

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

TEST_CASE("NCCL: results keep their numbers") {
  CHECK(static_cast<int>(Result::unhandled_cuda_error) == ncclUnhandledCudaError);
  CHECK(static_cast<int>(Result::system_error) == ncclSystemError);
  CHECK(static_cast<int>(Result::internal_error) == ncclInternalError);
  CHECK(static_cast<int>(Result::invalid_argument) == ncclInvalidArgument);
  CHECK(static_cast<int>(Result::invalid_usage) == ncclInvalidUsage);
  CHECK(static_cast<int>(Result::remote_error) == ncclRemoteError);
  CHECK(static_cast<int>(Result::in_progress) == ncclInProgress);
  CHECK(zero::detail::nccl_status(ncclSuccess).ok());
  CHECK(zero::detail::nccl_status(ncclInProgress).pending());
  CHECK(zero::detail::nccl_status(ncclRemoteError).text == ncclGetErrorString(ncclRemoteError));
  CHECK(zero::detail::nccl_status(ncclNumResults).failed());
  CHECK(zero::detail::cuda_status(cudaErrorNotReady).pending());
  CHECK(zero::detail::cuda_status(cudaErrorNoDevice).result == Result::unhandled_cuda_error);
}

TEST_CASE("NCCL: every dtype travels as itself") {
  std::pair<zero::DType, ncclDataType_t> const rows[] = {{zero::DType::f32, ncclFloat32},
                                                         {zero::DType::f64, ncclFloat64},
                                                         {zero::DType::bf16, ncclBfloat16},
                                                         {zero::DType::f16, ncclFloat16},
                                                         {zero::DType::i32, ncclInt32},
                                                         {zero::DType::i64, ncclInt64},
                                                         {zero::DType::u8, ncclUint8}};
  for (auto const& [dtype, type] : rows) CHECK(zero::detail::nccl_type(dtype) == type);
}

TEST_CASE("NCCL: the library that runs is not older than its header") {
  int const version = zero::detail::nccl_library_version<Library>();
  CHECK(version >= NCCL_VERSION_CODE);
  MESSAGE("NCCL ", zero::detail::nccl_version_text(static_cast<std::uint64_t>(version)));
}

TEST_CASE("NCCL: without a GPU a group is refused in words that name the reason") {
  if (has_gpu()) return;
  try {
    Comm const comm(NewGroup<Library>{{}, 0, 1, nullptr}, {});
    FAIL("no error");
  } catch (Error const& error) {
    std::string const text = error.what();
    CHECK(error.kind() == ErrorKind::resource);
    CHECK(error.operation() == "init");
    CHECK_MESSAGE(text.find("unhandled CUDA error") != std::string::npos, text);
    CHECK_MESSAGE(text.find("driver") != std::string::npos, text);
  }
}

TEST_CASE("NCCL: without a GPU the calls themselves fail as CUDA errors") {
  if (has_gpu()) return;
  ncclUniqueId id{};
  REQUIRE(Library::unique_id(&id).ok());
  ncclComm_t comm = nullptr;
  zero::nccl::Status const status = Library::init(&comm, 1, id, 0, {});
  CHECK(status.result == Result::unhandled_cuda_error);
  CHECK(comm == nullptr);
  CHECK(Library::last_error(nullptr).size() > 0);
  void* memory = nullptr;
  CHECK(Library::mem_alloc(&memory, 4096).result == Result::unhandled_cuda_error);
}

TEST_CASE("NCCL: a trainer's null communicator is refused") {
  CHECK_THROWS_WITH_AS(
      Comm(zero::nccl::Existing<Library>{}, {}), doctest::Contains("ncclComm_t is null"), Error);
}

}  // namespace
