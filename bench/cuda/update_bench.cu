// Is the optimizer as fast as the memory, and are its kernels worth their lines? Updates, casts,
// sums and the norm, and the same through CUB and Thrust, as a ratio to a device-to-device copy in
// the same run.
//
// Variants take turns, round by round; a ratio is the median of the rounds' ratios, so that a clock
// that changes under way changes no verdict. Rates count the bytes that an algorithm must read and
// write: 28 per element with AdamW in fp32 and in mixed precision. Every variant is a graph of many
// runs, launched while the device is busy with the launch before it: no host is measured. The runs
// of a graph take turns on so many sets of buffers that the device's cache holds none of them when
// its turn comes. Elements are random numbers, since blocks of zeros would save the norm its
// atomics.
#include "devices.cuh"
#include "zero/device/allocators.hpp"
#include "zero/device/buffers.hpp"
#include "zero/device/element.hpp"
#include "zero/device/norm.cuh"
#include "zero/device/status.hpp"
#include "zero/device/sum.cuh"
#include "zero/rule/adamw.hpp"
#include "zero/space/cuda.hpp"

#include <cub/device/device_reduce.cuh>
#include <cub/device/device_transform.cuh>
#include <cuda/functional>
#include <cuda/std/functional>
#include <cuda/std/tuple>
#include <cuda_runtime_api.h>
#include <thrust/execution_policy.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/tabulate.h>
#include <thrust/transform.h>
#include <thrust/tuple.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using zero::bf16;
using zero::fp16;
using zero::device::check;

constexpr int rounds = 15;

/// Random numbers in (-scale, scale), or in (0, scale).
template <class T>
struct Noise {
  std::uint64_t seed;
  float scale;
  bool positive = false;

  __host__ __device__ T operator()(std::size_t i) const {
    std::uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15u + seed;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    float const unit = (static_cast<float>(bits >> 40) + 0.5f) / 16777216.f;
    return static_cast<T>(scale * (positive ? unit : 2.f * unit - 1.f));
  }
};

/// What one run works on.
struct Buffers {
  float* master;
  float* m;
  float* v;
  float* gradient;
  bf16* parameter;
  bf16* narrow_gradient;
  float* copy;
};

/// Memory for as many sets as are asked for.
class Memory {
 public:
  explicit Memory(cudaStream_t stream) : stream_(stream) {}
  Memory(Memory const&) = delete;
  ~Memory() {
    for (void* const block : blocks_) allocator_.deallocate(block, 0, 4096);
  }

  [[nodiscard]] Buffers set(std::size_t elements) {
    return {.master = noise<float>(elements, 1.f),
            .m = noise<float>(elements, 1e-3f),
            .v = noise<float>(elements, 1e-6f, true),
            .gradient = noise<float>(elements, 1e-2f),
            .parameter = noise<bf16>(elements, 1.f),
            .narrow_gradient = noise<bf16>(elements, 1e-2f),
            .copy = noise<float>(elements, 1.f)};
  }
  template <class T>
  [[nodiscard]] T* take(std::size_t elements) {
    void* const block = allocator_.allocate(elements * sizeof(T), 4096);
    if (block == nullptr) check(cudaErrorMemoryAllocation, "cudaMalloc");
    blocks_.push_back(block);
    return static_cast<T*>(block);
  }

 private:
  template <class T>
  [[nodiscard]] T* noise(std::size_t elements, float scale, bool positive = false) {
    T* const to = take<T>(elements);
    Noise<T> const numbers{blocks_.size(), scale, positive};
    thrust::tabulate(thrust::cuda::par_nosync.on(stream_), to, to + elements, numbers);
    return to;
  }

  cudaStream_t stream_;
  zero::device::MallocAllocator allocator_{0};
  std::vector<void*> blocks_;
};

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

/// out[i] = f(in[i]...), which CUB may copy elements for.
template <class F, class Out, class... In>
void transform(cudaStream_t stream, std::size_t count, F const& f, Out out, In... in) {
  check(cub::DeviceTransform::Transform(
            cuda::std::make_tuple(in...), out, count, cuda::proclaim_copyable_arguments(f), stream),
        "DeviceTransform");
}

template <class P, class G>
void transform(cudaStream_t stream,
               Element<P, G> const& element,
               zero::UpdateArrays<float, P, G, float, 2> const& arrays) {
  auto const run = [&](auto out) {
    transform(stream,
              arrays.count,
              element,
              out,
              arrays.gradient,
              arrays.master,
              arrays.state[0],
              arrays.state[1]);
  };
  if constexpr (std::is_same_v<P, float>) {
    run(thrust::make_zip_iterator(arrays.master, arrays.state[0], arrays.state[1]));
  } else {
    run(thrust::make_zip_iterator(
        arrays.master, arrays.state[0], arrays.state[1], arrays.parameter));
  }
}

struct SumOfFour {
  __host__ __device__ float operator()(float a, float b, float c, float d) const {
    return ((a + b) + c) + d;
  }
};

struct Square {
  template <class T>
  __host__ __device__ double operator()(T x) const {
    double const wide = static_cast<double>(static_cast<float>(x));
    return wide * wide;
  }
};

struct Variant {
  char const* name;
  double bytes;  ///< read and written
  std::function<void(Buffers const&)> run;
  cudaGraphExec_t graph = nullptr;
  std::vector<double> rates = {};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A graph of `runs` runs, in turn over all sets.
cudaGraphExec_t captured(cudaStream_t stream,
                         Variant const& variant,
                         std::vector<Buffers> const& sets,
                         std::size_t runs) {
  // Once outside: who asks the device something for the first time may not while it is captured.
  variant.run(sets[0]);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (std::size_t run = 0; run < runs; ++run) variant.run(sets[run % sets.size()]);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return executable;
}

/// One update of elements that lie `apart` elements behind an aligned place: those of lent arrays,
/// or of all.
template <class P>
zero::UpdateArrays<float, P, P, float, 2> arrays_of(Buffers const& of,
                                                    std::size_t elements,
                                                    std::size_t lent = 0,
                                                    std::size_t all = 0) {
  zero::UpdateArrays<float, P, P, float, 2> arrays{
      .master = of.master + all, .state = {of.m + all, of.v + all}, .count = elements - lent - all};
  if constexpr (std::is_same_v<P, float>) {
    arrays.gradient = of.gradient + lent + all;
  } else {
    // Of both types of 16 bits: any bits will do.
    arrays.parameter = reinterpret_cast<P*>(of.parameter) + lent + all;
    arrays.gradient = reinterpret_cast<P const*>(of.narrow_gradient) + lent + all;
  }
  return arrays;
}

std::vector<Variant> variants_of(Memory& memory,
                                 cudaStream_t stream,
                                 std::size_t elements,
                                 zero::StepTerms const* terms,
                                 zero::StepScalars const* in_space,
                                 zero::ExactSum* sum) {
  zero::space::Cuda const space(0, stream);
  zero::AdamW const rule{};
  auto const policy = thrust::cuda::par_nosync.on(stream);
  using In = Buffers const&;
  double const n = static_cast<double>(elements);
  std::vector<Variant> variants;
  variants.push_back({"device-to-device copy", 8 * n, [=](In of) {
                        space.copy(of.copy, of.gradient, elements * sizeof(float));
                      }});
  auto const adamw = [&]<class P>(P, char const* name, std::size_t lent, std::size_t all) {
    variants.push_back({name, 28 * n, [=](In of) {
                          space.update(
                              rule, terms, in_space, arrays_of<P>(of, elements, lent, all));
                        }});
  };
  adamw(float(), "AdamW fp32, zero", 0, 0);
  adamw(bf16(), "AdamW bf16, zero", 0, 0);
  adamw(fp16(), "AdamW fp16, zero", 0, 0);
  adamw(float(), "AdamW fp32, lent elsewhere", 1, 0);
  adamw(bf16(), "AdamW bf16, lent elsewhere", 1, 0);
  adamw(bf16(), "AdamW bf16, not aligned", 0, 1);
  variants.push_back({"fp32 to bf16, zero", 6 * n, [=](In of) {
                        space.convert(of.parameter, of.master, elements);
                      }});
  variants.push_back({"fp32 to bf16, Thrust", 6 * n, [=](In of) {
                        thrust::transform(policy,
                                          of.master,
                                          of.master + elements,
                                          of.parameter,
                                          zero::device::Convert<bf16, float>{});
                      }});
  variants.push_back({"bf16 to fp32, zero", 6 * n, [=](In of) {
                        space.convert(of.copy, of.narrow_gradient, elements);
                      }});
  variants.push_back({"bf16 to fp32, Thrust", 6 * n, [=](In of) {
                        thrust::transform(policy,
                                          of.narrow_gradient,
                                          of.narrow_gradient + elements,
                                          of.copy,
                                          zero::device::Convert<float, bf16>{});
                      }});
  variants.push_back({"fp32 += bf16, zero", 10 * n, [=](In of) {
                        space.add(of.copy, of.narrow_gradient, elements);
                      }});
  variants.push_back({"fp32 += bf16, Thrust", 10 * n, [=](In of) {
                        thrust::transform(policy,
                                          of.copy,
                                          of.copy + elements,
                                          of.narrow_gradient,
                                          of.copy,
                                          zero::device::Add<float, bf16>{});
                      }});
  auto const norm = [&]<class T>(T, char const* name, std::size_t apart) {
    variants.push_back(
        {name, sizeof(T) * n, [=](In of) {
           auto const* const x = std::is_same_v<T, float> ? static_cast<void const*>(of.gradient)
                                                          : of.narrow_gradient;
           space.add_squares(sum, static_cast<T const*>(x) + apart, elements - apart);
         }});
  };
  norm(float(), "exact norm fp32", 0);
  norm(bf16(), "exact norm bf16", 0);
  norm(fp16(), "exact norm fp16", 0);
  norm(bf16(), "exact norm bf16, not aligned", 1);
  zero::StepScalars const scalars = rule.scalars(10, static_cast<float>(rule.lr), 1.f, 1.f);
  Element<float, float> const wide_element{rule, scalars, 1.f};
  Element<bf16, bf16> const mixed_element{rule, scalars, 1.f};
  variants.push_back({"AdamW fp32, DeviceTransform", 28 * n, [=](In of) {
                        transform(stream, wide_element, arrays_of<float>(of, elements));
                      }});
  variants.push_back({"AdamW bf16, DeviceTransform", 28 * n, [=](In of) {
                        transform(stream, mixed_element, arrays_of<bf16>(of, elements));
                      }});
  auto const sums = [&]<class T>(T, char const* name, bool square) {
    variants.push_back(
        {name, 5 * sizeof(T) * n, [=](In of) {
           zero::device::BufferList const ranks{.at = {of.master, of.m, of.v, of.gradient}};
           zero::SumSquares const squares{square ? sum : nullptr, elements};
           check(zero::device::try_sum_ranks(space.queue(),
                                             zero::dtype_of<T>,
                                             zero::DType::f32,
                                             {.at = {of.copy}},
                                             ranks,
                                             4,
                                             0,
                                             elements,
                                             squares),
                 "try_sum_ranks");
         }});
  };
  sums(float(), "sum of 4 ranks fp32", false);
  sums(bf16(), "sum of 4 ranks bf16", false);
  sums(fp16(), "sum of 4 ranks fp16", false);
  sums(float(), "sum of 4 ranks and norm fp32", true);
  sums(bf16(), "sum of 4 ranks and norm bf16", true);
  sums(fp16(), "sum of 4 ranks and norm fp16", true);
  variants.push_back(
      {"sum of 4 ranks, DeviceTransform", 20 * n, [=](In of) {
         transform(stream, elements, SumOfFour{}, of.copy, of.master, of.m, of.v, of.gradient);
       }});
  auto const reduce = [=](auto const* x, void* storage, std::size_t& bytes) {
    check(cub::DeviceReduce::TransformReduce(storage,
                                             bytes,
                                             x,
                                             reinterpret_cast<double*>(sum),
                                             elements,
                                             cuda::std::plus<double>{},
                                             Square{},
                                             0.,
                                             stream),
          "DeviceReduce");
  };
  std::size_t bytes = 0;
  reduce(static_cast<float const*>(nullptr), nullptr, bytes);
  auto* const storage = memory.take<std::byte>(bytes);
  variants.push_back({"norm fp32, DeviceReduce", 4 * n, [=](In of) mutable {
                        reduce(of.gradient, storage, bytes);
                      }});
  return variants;
}

void measure(cudaStream_t stream, std::size_t elements) {
  int cache = 0;
  check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
  // The variant that touches least is the norm of bf16.
  std::size_t const touched = elements * sizeof(bf16);
  std::size_t const count = 4 * static_cast<std::size_t>(cache) / touched + 1;
  std::size_t const runs = std::max<std::size_t>(count, 10);

  Memory memory(stream);
  std::vector<Buffers> sets;
  for (std::size_t i = 0; i < count; ++i) sets.push_back(memory.set(elements));
  zero::space::Cuda const space(0, stream);
  auto* const terms = memory.take<zero::StepTerms>(1);
  auto* const scalars = memory.take<zero::StepScalars>(1);
  auto* const sum = memory.take<zero::ExactSum>(1);
  zero::StepTerms const values{.step = 10, .learning_rate = zero::AdamW{}.lr};
  space.upload(terms, &values, sizeof(values));
  auto const computed =
      zero::AdamW{}.scalars(values.step, static_cast<float>(values.learning_rate), 1.f, 1.f);
  space.upload(scalars, &computed, sizeof(computed));

  std::vector<Variant> variants = variants_of(memory, stream, elements, terms, scalars, sum);
  for (Variant& variant : variants) variant.graph = captured(stream, variant, sets, runs);
  bench::StreamClock clock(stream);
  for (int round = 0; round < rounds; ++round) {
    // No more may be added before a sum is normalized than many rounds together would.
    space.zero(sum, sizeof(*sum));
    for (Variant& variant : variants) {
      check(cudaGraphLaunch(variant.graph, stream), "cudaGraphLaunch");
      clock.start();
      check(cudaGraphLaunch(variant.graph, stream), "cudaGraphLaunch");
      clock.stop();
      variant.rates.push_back(variant.bytes * static_cast<double>(runs) / (1e9 * clock.seconds()));
    }
  }
  for (Variant& variant : variants) check(cudaGraphExecDestroy(variant.graph), "cudaGraphExec");

  // Of the memory, as its clock and its width give it.
  int kilohertz = 0;
  int bits = 0;
  check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, 0), "MemoryClockRate");
  check(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, 0), "MemoryBusWidth");
  double const peak = 2e-6 * kilohertz * bits / 8;
  std::printf("\n%-32s %10s %10s %10s %10s\n",
              (std::to_string(elements) + " elements").c_str(),
              "us",
              "GB/s",
              "/ copy",
              "/ peak");
  for (Variant const& variant : variants) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < variant.rates.size(); ++i) {
      ratios.push_back(variant.rates[i] / variants[0].rates[i]);
    }
    double const rate = median(variant.rates);
    std::printf("%-32s %10.1f %10.0f %10.3f %10.3f\n",
                variant.name,
                variant.bytes / (1e3 * rate),
                rate,
                median(ratios),
                rate / peak);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t const elements =
      bench::size_option(argc, argv, "elements of the larger arrays", std::size_t{1} << 27);
  if (bench::devices_or_excuse() == 0) return 77;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  measure(stream, elements);
  // One of eight ranks' share of a bucket of 25 MiB.
  measure(stream, 25 * zero::MiB / 8 / sizeof(float));
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return 0;
}
