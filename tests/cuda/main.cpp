/// The main of tests that need a GPU: where there is none, they are skipped, and say so.
#define DOCTEST_CONFIG_IMPLEMENT
#include "support/test.hpp"

#include <cuda_runtime_api.h>

int main(int argc, char** argv) {
  constexpr int skipped = 77;  // as CMakeLists.txt tells ctest
  int devices = 0;
  cudaError_t const status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("skipped: there is no GPU to run on (%s)\n",
                status != cudaSuccess ? cudaGetErrorString(status) : "no device");
    return skipped;
  }
  return doctest::Context(argc, argv).run();
}
