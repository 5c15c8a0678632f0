/// The real NCCL where there is no GPU: what it says then has to reach the trainer in words. Where
/// there is one, a group of one rank is built and used instead.
#include "zero/base/error.hpp"
#include "zero/comm/nccl.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <string>

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
  CHECK(zero::detail::nccl_type(zero::DType::f32) == ncclFloat32);
  CHECK(zero::detail::nccl_type(zero::DType::f64) == ncclFloat64);
  CHECK(zero::detail::nccl_type(zero::DType::bf16) == ncclBfloat16);
  CHECK(zero::detail::nccl_type(zero::DType::f16) == ncclFloat16);
  CHECK(zero::detail::nccl_type(zero::DType::i32) == ncclInt32);
  CHECK(zero::detail::nccl_type(zero::DType::i64) == ncclInt64);
  CHECK(zero::detail::nccl_type(zero::DType::u8) == ncclUint8);
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

TEST_CASE("NCCL: one rank on one GPU is built, used and closed") {
  if (!has_gpu()) {
    MESSAGE("skipped: no GPU");
    return;
  }
  zero::nccl::Options options;
  options.deadline_s = 60;
  options.waiting = zero::nccl::Waiting::host;
  Comm comm(NewGroup<Library>{Comm::unique_id(), 0, 1, nullptr}, options);
  auto allocator = comm.allocator();
  auto* const memory = static_cast<float*>(allocator.allocate(2 * sizeof(float), 4096));
  float const sent[2] = {1.5f, 0.f};
  REQUIRE(cudaMemcpy(memory, sent, sizeof(sent), cudaMemcpyHostToDevice) == cudaSuccess);
  zero::run(comm, {.op = zero::Op::all_reduce, .count = 1, .send = memory, .recv = memory + 1});
  float received[2] = {};
  REQUIRE(cudaMemcpy(received, memory, sizeof(received), cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(received[1] == 1.5f);
  allocator.deallocate(memory, 2 * sizeof(float), 4096);
  comm.close();
}

}  // namespace
