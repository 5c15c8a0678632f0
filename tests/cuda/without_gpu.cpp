// What a program hears of a machine without a GPU, or without a driver. Compiled by the host
// compiler.
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/device/allocators.hpp"
#include "zero/device/queue.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

namespace without_gpu {
namespace {

bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

/// The text of the error that `call` throws.
template <class Call>
std::string refusal(Call const& call) {
  try {
    call();
  } catch (zero::Error const& error) {
    CHECK(error.kind() == zero::ErrorKind::resource);
    return error.what();
  }
  return "nothing";
}

TEST_CASE("a space names the call and the reason where there is no such device") {
  int const missing = has_gpu() ? 1000 : 0;
  std::string const text = refusal([&] { zero::space::Cuda const space(missing, nullptr); });
  CHECK_MESSAGE(text.find("cudaDeviceGetAttribute failed: cudaError") != std::string::npos, text);
  // The failure is told once, not again to whoever asks next; without a driver every call fails.
  if (has_gpu()) CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("allocators refuse with a reason, and give null for memory that is short") {
  if (has_gpu()) {
    zero::device::MallocAllocator memory(0);
    CHECK(memory.allocate(std::size_t{1} << 60, 4096) == nullptr);
    void* const block = memory.allocate(100, 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 4096 == 0);
    memory.deallocate(block, 100, 4096);
    return;
  }
  auto const refused = [](auto allocator) {
    std::string const text = refusal([&] { static_cast<void>(allocator.allocate(64, 256)); });
    CHECK_MESSAGE(text.find("failed: cudaError") != std::string::npos, text);
    CHECK(allocator.allocate(0, 256) == nullptr);
  };
  refused(zero::device::MallocAllocator(0));
  refused(zero::device::AsyncAllocator(0, nullptr));
}

TEST_CASE("a group needs spaces, and those a device") {
  CHECK_THROWS_AS(static_cast<void>(zero::InProcessCuda::group({})), zero::Error);
}

}  // namespace
}  // namespace without_gpu
