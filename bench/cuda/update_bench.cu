// Is the optimizer as fast as the memory? The update kernel, and the same update through CUB's
// DeviceTransform, as a ratio to a device-to-device copy in the same run.
//
// Variants take turns, round by round; a ratio is the median of the rounds' ratios, so that a clock
// that changes under way changes no verdict. Rates count the bytes that an algorithm must read and
// write: 28 per element with AdamW in fp32 and in mixed precision.
#include "zero/device/allocators.hpp"
#include "zero/device/element.hpp"
#include "zero/device/norm.cuh"
#include "zero/device/status.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/space/cuda.hpp"

#include <cub/device/device_transform.cuh>
#include <cuda/functional>
#include <cuda/std/tuple>
#include <cuda_runtime_api.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/tuple.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using zero::bf16;
using zero::device::check;

constexpr int rounds = 15;

/// AdamW through CUB, element by element, with scalars that the host has computed.
template <class P, class G>
struct Element {
  zero::AdamW rule;
  zero::StepScalars scalars;
  float gradient_scale;

  __device__ auto operator()(G gradient, float master, float m, float v) const {
    float state[2] = {m, v};
    P published{};
    zero::device::update_element(rule, scalars, gradient_scale, master, published, gradient, state);
    if constexpr (std::is_same_v<P, float>) {
      return thrust::make_tuple(master, state[0], state[1]);
    } else {
      return thrust::make_tuple(master, state[0], state[1], published);
    }
  }
};

template <class P, class G>
void transform(cudaStream_t stream,
               Element<P, G> const& element,
               zero::UpdateArrays<float, P, G, float, 2> const& arrays) {
  auto const f = cuda::proclaim_copyable_arguments(element);
  auto const in =
      cuda::std::make_tuple(arrays.gradient, arrays.master, arrays.state[0], arrays.state[1]);
  auto const run = [&](auto out) {
    check(cub::DeviceTransform::Transform(in, out, arrays.count, f, stream), "DeviceTransform");
  };
  if constexpr (std::is_same_v<P, float>) {
    run(thrust::make_zip_iterator(arrays.master, arrays.state[0], arrays.state[1]));
  } else {
    run(thrust::make_zip_iterator(
        arrays.master, arrays.state[0], arrays.state[1], arrays.parameter));
  }
}

struct Variant {
  char const* name;
  double bytes;  ///< read and written
  std::function<void()> run;
  std::vector<double> rates = {};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// @param repeats  in a row, so that a launch costs what it costs in a row of launches
void measure(cudaStream_t stream, std::size_t elements, int repeats) {
  zero::space::Cuda const space(0, stream);
  zero::device::MallocAllocator memory(0);
  std::vector<void*> blocks;
  auto const take = [&](std::size_t bytes) {
    void* const block = memory.allocate(bytes, 4096);
    blocks.push_back(block);
    if (block == nullptr) check(cudaErrorMemoryAllocation, "cudaMalloc");
    space.zero(block, bytes);
    return block;
  };
  auto* const master = static_cast<float*>(take(elements * 4));
  auto* const m = static_cast<float*>(take(elements * 4));
  auto* const v = static_cast<float*>(take(elements * 4));
  auto* const gradient = static_cast<float*>(take(elements * 4));
  auto* const parameter = static_cast<bf16*>(take(elements * 2));
  auto* const copy = static_cast<float*>(take(elements * 4));
  auto* const terms = static_cast<zero::StepTerms*>(take(sizeof(zero::StepTerms)));
  auto* const sum = static_cast<zero::ExactSum*>(take(sizeof(zero::ExactSum)));
  zero::StepTerms const values{.step = 10};
  space.upload(terms, &values, sizeof(values));

  zero::AdamW const rule{};
  zero::UpdateRates const rates{.learning_rate = rule.lr};
  zero::StepScalars const scalars = rule.scalars(10, rule.lr, 1.f, 1.f);
  zero::UpdateArrays<float, float, float, float, 2> const wide{
      .master = master, .gradient = gradient, .state = {m, v}, .count = elements};
  zero::UpdateArrays<float, bf16, bf16, float, 2> const mixed{
      .master = master,
      .parameter = parameter,
      .gradient = reinterpret_cast<bf16*>(gradient),
      .state = {m, v},
      .count = elements};
  Element<float, float> const wide_element{rule, scalars, 1.f};
  Element<bf16, bf16> const mixed_element{rule, scalars, 1.f};

  double const n = static_cast<double>(elements);
  std::vector<Variant> variants{
      {"device-to-device copy", 8 * n, [&] { space.copy(copy, gradient, elements * 4); }},
      {"AdamW fp32, zero", 28 * n, [&] { space.update(rule, terms, rates, wide); }},
      {"AdamW fp32, DeviceTransform", 28 * n, [&] { transform(stream, wide_element, wide); }},
      {"AdamW bf16, zero", 28 * n, [&] { space.update(rule, terms, rates, mixed); }},
      {"AdamW bf16, DeviceTransform", 28 * n, [&] { transform(stream, mixed_element, mixed); }},
      {"exact norm fp32", 4 * n, [&] { space.add_squares(sum, gradient, elements); }},
  };
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  for (int round = -2; round < rounds; ++round) {
    for (Variant& variant : variants) {
      check(cudaEventRecord(begin, stream), "cudaEventRecord");
      for (int i = 0; i < repeats; ++i) variant.run();
      check(cudaEventRecord(end, stream), "cudaEventRecord");
      check(cudaEventSynchronize(end), "cudaEventSynchronize");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
      if (round >= 0) variant.rates.push_back(variant.bytes * repeats / (1e6 * milliseconds));
    }
  }
  check(cudaEventDestroy(begin), "cudaEventDestroy");
  check(cudaEventDestroy(end), "cudaEventDestroy");
  for (void* const block : blocks) memory.deallocate(block, 0, 4096);
  std::printf(
      "\n%-30s %10s %10s\n", (std::to_string(elements) + " elements").c_str(), "GB/s", "/ copy");
  for (Variant const& variant : variants) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < variant.rates.size(); ++i) {
      ratios.push_back(variant.rates[i] / variants[0].rates[i]);
    }
    std::printf("%-30s %10.0f %10.3f\n", variant.name, median(variant.rates), median(ratios));
  }
}

}  // namespace

int main() {
  int devices = 0;
  cudaError_t const status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("no GPU to measure on (%s)\n", cudaGetErrorString(status));
    return 77;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s\n", properties.name);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  measure(stream, std::size_t{1} << 27, 1);
  // One of eight ranks' share of a bucket of 25 MiB: most of it stays in the device's cache.
  measure(stream, 25 * zero::MiB / 8 / sizeof(float), 50);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return 0;
}
