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
//
// With --variants, other ways to write the kernels whose first figures were slow are measured in
// the same rounds, once their results have been compared with those of the library's, bit for bit.
#include "devices.cuh"
#include "variants.cuh"
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
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using bench::median;
using zero::bf16;
using zero::fp16;
using zero::device::check;

constexpr std::size_t rounds = 15;

/// Elements that no cache has room for.
constexpr std::size_t large = std::size_t{1} << 27;

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
    Buffers const result{.master = take<float>(elements),
                         .m = take<float>(elements),
                         .v = take<float>(elements),
                         .gradient = take<float>(elements),
                         .parameter = take<bf16>(elements),
                         .narrow_gradient = take<bf16>(elements),
                         .copy = take<float>(elements)};
    fill(result, elements);
    return result;
  }
  /// The same numbers every time.
  void fill(Buffers const& set, std::size_t elements) const {
    std::uint64_t seed = 0;
    auto const noise = [&]<class T>(T* to, float scale, bool positive = false) {
      Noise<T> const numbers{++seed, scale, positive};
      thrust::tabulate(thrust::cuda::par_nosync.on(stream_), to, to + elements, numbers);
    };
    noise(set.master, 1.f);
    noise(set.m, 1e-3f);
    noise(set.v, 1e-6f, true);
    noise(set.gradient, 1e-2f);
    noise(set.parameter, 1.f);
    noise(set.narrow_gradient, 1e-2f);
    noise(set.copy, 1.f);
  }
  template <class T>
  [[nodiscard]] T* take(std::size_t elements) {
    void* const block = allocator_.allocate(elements * sizeof(T), 4096);
    if (block == nullptr) check(cudaErrorMemoryAllocation, "cudaMalloc");
    blocks_.push_back(block);
    return static_cast<T*>(block);
  }

 private:
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
  char const* like = nullptr;  ///< the one of the library's that has the same results
  cudaGraphExec_t graph = nullptr;
  std::vector<double> rates = {};

  /// Of one run in each round.
  [[nodiscard]] double seconds(std::size_t round) const { return bytes / (1e9 * rates[round]); }
};

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
           zero::SumSquares const squares{sum, elements};
           check(zero::device::try_sum_ranks(space.queue(),
                                             zero::dtype_of<T>,
                                             zero::DType::f32,
                                             {.at = {of.copy}},
                                             ranks,
                                             4,
                                             elements,
                                             square ? &squares : nullptr),
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

/// The other ways, whose results are those of a variant above.
void add_other_ways(std::vector<Variant>& variants,
                    cudaStream_t stream,
                    std::size_t elements,
                    zero::StepTerms const* terms,
                    zero::StepScalars const* in_space,
                    zero::ExactSum* sum) {
  namespace ways = bench::variants;
  using In = Buffers const&;
  auto const queue = zero::space::Cuda(0, stream).queue();
  double const n = static_cast<double>(elements);
  std::size_t const whole = elements / zero::block * zero::block;
  auto const add = [&](char const* name, double bytes, char const* like, auto const& run) {
    variants.push_back({name, bytes, [=](In of) { check(run(of), name); }, like});
  };
  auto const work_on = [=]<class P>(P, In of, std::size_t all) {
    auto const arrays = arrays_of<P>(of, elements, 0, all);
    return ways::Update<P>{{}, terms, in_space, arrays, ways::cut_at_vectors(arrays)};
  };
  auto const updates = [&]<class P>(P p, char const* like, auto const& names) {
    add(names[0], 28 * n, like, [=](In of) {
      return ways::try_update_resident(queue, work_on(p, of, 0));
    });
    add(names[1], 28 * n, like, [=](In of) {
      return ways::try_update_tiles<1>(queue, work_on(p, of, 0));
    });
    add(names[2], 28 * n, like, [=](In of) {
      return ways::try_update_tiles<4>(queue, work_on(p, of, 0));
    });
  };
  updates(
      float(),
      "AdamW fp32, zero",
      std::array{"AdamW fp32, resident grid", "AdamW fp32, tiles of 1", "AdamW fp32, tiles of 4"});
  updates(
      bf16(),
      "AdamW bf16, zero",
      std::array{"AdamW bf16, resident grid", "AdamW bf16, tiles of 1", "AdamW bf16, tiles of 4"});
  // The few elements before and after the vectors are left out: no result to compare.
  add("AdamW bf16, not aligned to lines", 28 * n, nullptr, [=](In of) {
    return ways::try_update_tiles<zero::device::kernels::update_vectors>(queue,
                                                                         work_on(bf16(), of, 1));
  });
  std::size_t const teams = whole / zero::block * zero::device::team;
  std::size_t const warps = whole / zero::block * zero::device::warp_threads;
  add("exact norm fp32, 64 bytes ahead", 4 * n, "exact norm fp32", [=](In of) {
    return ways::try_full_blocks<ways::norm_by_teams<4, float>>(
        queue, teams, sum, static_cast<float const*>(of.gradient), whole);
  });
  add("exact norm fp32, 128 bytes ahead", 4 * n, "exact norm fp32", [=](In of) {
    return zero::device::try_launch_over<ways::norm_by_teams<8, float>>(
        queue, teams, sum, static_cast<float const*>(of.gradient), whole);
  });
  add("exact norm fp32, by warps", 4 * n, "exact norm fp32", [=](In of) {
    return ways::try_full_blocks<ways::norm_by_warps>(
        queue, warps, sum, static_cast<float const*>(of.gradient), whole);
  });
  auto const at_once = [&]<class T>(T, char const* name, char const* like) {
    add(name, 5 * sizeof(T) * n, like, [=](In of) {
      zero::device::BufferList const ranks{.at = {of.master, of.m, of.v, of.gradient}};
      return ways::try_full_blocks<ways::sum_and_square_at_once<T>>(
          queue, teams, reinterpret_cast<T*>(of.copy), ranks, sum, whole);
    });
  };
  at_once(float(), "sum and norm fp32, stored at once", "sum of 4 ranks and norm fp32");
  at_once(bf16(), "sum and norm bf16, stored at once", "sum of 4 ranks and norm bf16");
  add("sum and norm fp32, by warps", 20 * n, "sum of 4 ranks and norm fp32", [=](In of) {
    ways::Sources const sources{{of.master, of.m, of.v, of.gradient}, of.copy};
    return ways::try_full_blocks<ways::sum_and_square_by_warps>(queue, warps, sources, sum, whole);
  });
}

/// All bits that a variant leaves in a set, and in the sum of squares.
std::vector<std::uint64_t> result_of(Variant const& variant,
                                     Memory const& memory,
                                     zero::space::Cuda const& space,
                                     Buffers const& set,
                                     std::size_t elements,
                                     zero::ExactSum* sum,
                                     std::uint64_t* hash) {
  memory.fill(set, elements);
  space.zero(sum, sizeof(*sum));
  space.zero(hash, sizeof(*hash));
  variant.run(set);
  std::uint64_t place = 0;
  auto const add = [&](auto const* array) {
    space.add_hash(hash, array, elements, place);
    place += elements;
  };
  for (float* const array : {set.master, set.m, set.v, set.gradient, set.copy}) add(array);
  for (bf16* const array : {set.parameter, set.narrow_gradient}) add(array);
  std::vector<std::uint64_t> result(1);
  space.download(result.data(), hash, sizeof(*hash));
  zero::ExactSum squares;
  space.download(&squares, sum, sizeof(squares));
  for (std::int64_t const word : squares.words()) {
    result.push_back(static_cast<std::uint64_t>(word));
  }
  return result;
}

/// Figures that were slow on the first GPU, and what they should be: prints a line for each.
class Goals {
 public:
  Goals(std::vector<Variant> const& variants, std::size_t elements)
      : variants_(variants), elements_(elements) {}

  /// How much faster `name` is than `than`, which follow one another if there are two of them.
  void faster(char const* what,
              char const* name,
              std::initializer_list<char const*> than,
              double goal) const {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < rounds; ++round) {
      double seconds = 0;
      for (char const* const other : than) seconds += named(other).seconds(round);
      ratios.push_back(seconds / named(name).seconds(round));
    }
    print(what, median(ratios), goal);
  }
  void of_peak(char const* what, char const* name, double peak, double goal) const {
    print(what, median(named(name).rates) / peak, goal);
  }

 private:
  [[nodiscard]] Variant const& named(std::string_view name) const {
    return *std::find_if(variants_.begin(), variants_.end(), [&](Variant const& variant) {
      return variant.name == name;
    });
  }
  void print(char const* what, double ratio, double goal) const {
    std::printf("row: %s, %zu elements: %.3f (goal %.2f)%s\n",
                what,
                elements_,
                ratio,
                goal,
                ratio < goal ? " MISSED" : "");
  }

  std::vector<Variant> const& variants_;
  std::size_t elements_;
};

/// False if a variant has other results than the library.
bool measure(cudaStream_t stream, std::size_t elements, bool other_ways) {
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
  bool right = true;
  if (other_ways) {
    std::size_t const own = variants.size();
    add_other_ways(variants, stream, elements, terms, scalars, sum);
    auto* const hash = memory.take<std::uint64_t>(1);
    auto const result = [&](Variant const& variant) {
      return result_of(variant, memory, space, sets[0], elements, sum, hash);
    };
    for (std::size_t i = own; i < variants.size(); ++i) {
      char const* const like = variants[i].like;
      // Variants of the norm read whole blocks only.
      if (like == nullptr || elements % zero::block != 0) continue;
      auto const shipped = std::find_if(variants.begin(), variants.end(), [&](Variant const& one) {
        return std::string_view(one.name) == like;
      });
      if (result(variants[i]) == result(*shipped)) continue;
      std::printf("%s has other results than %s\n", variants[i].name, like);
      right = false;
    }
  }
  for (Variant& variant : variants) variant.graph = captured(stream, variant, sets, runs);
  bench::StreamClock clock(stream);
  for (std::size_t round = 0; round < rounds; ++round) {
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
  std::printf("\n%-34s %10s %10s %10s %10s\n",
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
    std::printf("%-34s %10.1f %10.0f %10.3f %10.3f\n",
                variant.name,
                variant.bytes / (1e3 * rate),
                rate,
                median(ratios),
                rate / peak);
  }
  Goals const goals(variants, elements);
  goals.faster("sum with its norm fp32 over one after the other",
               "sum of 4 ranks and norm fp32",
               {"sum of 4 ranks fp32", "exact norm fp32"},
               0.98);
  goals.faster("sum with its norm bf16 over one after the other",
               "sum of 4 ranks and norm bf16",
               {"sum of 4 ranks bf16", "exact norm bf16"},
               0.98);
  goals.faster(
      "exact norm fp32 over DeviceReduce", "exact norm fp32", {"norm fp32, DeviceReduce"}, 0.95);
  goals.faster("AdamW fp32 over DeviceTransform",
               "AdamW fp32, zero",
               {"AdamW fp32, DeviceTransform"},
               elements >= large ? 1. : 0.95);
  goals.faster("AdamW bf16 over DeviceTransform",
               "AdamW bf16, zero",
               {"AdamW bf16, DeviceTransform"},
               elements >= large ? 1. : 0.95);
  goals.faster("AdamW bf16, arrays not aligned over aligned",
               "AdamW bf16, not aligned",
               {"AdamW bf16, zero"},
               0.95);
  if (elements >= large) {
    goals.of_peak("AdamW fp32 over the memory's peak", "AdamW fp32, zero", peak, 0.9);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  bool const other_ways = argc > 1 && std::string_view(argv[1]) == "--variants";
  if (other_ways) std::swap(argv[0], argv[1]);
  int const before = other_ways ? 1 : 0;
  std::size_t const elements =
      bench::size_option(argc - before,
                         argv + before,
                         "after --variants or not: elements of the larger arrays",
                         large);
  if (bench::devices_or_excuse() == 0) return 77;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  bool right = measure(stream, elements, other_ways);
  // Between the two: several waves of threads, and less than the cache has.
  right = measure(stream, std::size_t{1} << 22, other_ways) && right;
  // One of eight ranks' share of a bucket of 25 MiB.
  right = measure(stream, 25 * zero::MiB / 8 / sizeof(float), other_ways) && right;
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return right ? 0 : 1;
}
