// Every function of the CUDA space against the host's, bit for bit, at sizes and offsets that the
// kernels' vectors care about.
#include "zero/device/allocators.hpp"
#include "zero/device/call.cuh"
#include "zero/device/elementwise.cuh"
#include "zero/device/gather.cuh"
#include "zero/device/hash.cuh"
#include "zero/device/launch.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/sum.cuh"
#include "zero/device/update.cuh"
#include "zero/kernel/reduce.hpp"
#include "zero/rule/adagrad.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/amsgrad.hpp"
#include "zero/rule/lion.hpp"
#include "zero/rule/nadam.hpp"
#include "zero/rule/rmsprop.hpp"
#include "zero/rule/sgd.hpp"
#include "zero/space/cuda.hpp"
#include "zero/space/host.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

namespace space_test {
namespace {

using zero::space::Cuda;
using zero::space::Host;

constexpr std::size_t sizes[] = {1, 3, 4, 511, 512, 513, 4099, 1000003};
constexpr std::size_t offsets[] = {0, 1, 3};

/// A stream of the first device.
struct Stream {
  cudaStream_t handle = nullptr;
  Stream() { zero::device::check(cudaStreamCreate(&handle), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(handle); }
};

/// Elements in device memory, from and to the host.
template <class T>
class Array {
 public:
  Array(Cuda const& space, std::vector<T> const& values, std::size_t offset)
      : space_(space),
        allocator_(space.device(), space.stream()),
        bytes_((values.size() + offset) * sizeof(T)),
        memory_(static_cast<T*>(allocator_.allocate(bytes_, 256))),
        offset_(offset),
        count_(values.size()) {
    space_.upload(data(), values.data(), count_ * sizeof(T));
  }
  ~Array() { allocator_.deallocate(memory_, bytes_, 256); }
  Array(Array const&) = delete;
  [[nodiscard]] T* data() const { return memory_ + offset_; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> result(count_);
    space_.download(result.data(), data(), count_ * sizeof(T));
    return result;
  }

 private:
  Cuda space_;
  zero::device::AsyncAllocator allocator_;
  std::size_t bytes_;
  T* memory_;
  std::size_t offset_;
  std::size_t count_;
};

template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> result(count);
  for (T& value : result) {
    float const mantissa = static_cast<float>(random() >> 8) / 16777216.f - 0.5f;
    value = static_cast<T>(std::ldexp(mantissa, static_cast<int>(random() % 24) - 16));
  }
  return result;
}

template <class T>
bool same(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class To, class From>
void check_elementwise(Cuda const& space) {
  for (std::size_t const count : sizes) {
    for (std::size_t const offset : offsets) {
      auto const in = numbers<From>(count, 1);
      auto out = numbers<To>(count, 2);
      Array<From> const from(space, in, offset);
      Array<To> const to(space, out, offset == 3 ? 0 : offset);
      space.add(to.data(), from.data(), count);
      Host::add(out.data(), in.data(), count);
      CHECK(same(to.values(), out));
      space.convert(to.data(), from.data(), count);
      Host::convert(out.data(), in.data(), count);
      CHECK(same(to.values(), out));
    }
  }
}

TEST_CASE("cuda: conversions and additions have the host's bits") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  check_elementwise<float, zero::bf16>(space);
  check_elementwise<zero::bf16, float>(space);
  check_elementwise<float, zero::fp16>(space);
  check_elementwise<zero::fp16, float>(space);
}

TEST_CASE("cuda: an error that a trainer has left behind is not reported as one of a conversion") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  Array<float> const from(space, {0.5f}, 0);
  Array<zero::bf16> const to(space, std::vector<zero::bf16>(1), 0);
  CHECK(cudaSetDevice(-1) != cudaSuccess);
  space.convert(to.data(), from.data(), 1);
  CHECK(static_cast<float>(to.values()[0]) == 0.5f);
}

template <class T>
void check_squares(Cuda const& space) {
  for (std::size_t const count : sizes) {
    for (float const special : {0.f, std::numeric_limits<float>::infinity()}) {
      auto x = numbers<T>(count, 3);
      if (special != 0.f) x[count / 2] = static_cast<T>(special);
      zero::ExactSum expected;
      Host::add_squares(&expected, x.data(), count);
      for (std::size_t const offset : {0u, 1u}) {
        Array<T> const device(space, x, offset);
        Array<zero::ExactSum> const sum(space, {zero::ExactSum{}}, 0);
        space.add_squares(sum.data(), device.data(), count);
        zero::ExactSum result = sum.values()[0];
        bool equal = true;
        for (std::size_t i = 0; i < zero::ExactSum::word_count; ++i) {
          equal = equal && result.words()[i] == expected.words()[i];
        }
        CHECK(equal);
        CHECK(result.finite() == (special == 0.f));
      }
    }
  }
}

TEST_CASE("cuda: the norm's words are the host's, and overflow is counted") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  check_squares<float>(space);
  check_squares<zero::bf16>(space);
  check_squares<zero::fp16>(space);
}

template <class T>
void check_hash(Cuda const& space) {
  for (std::size_t const count : sizes) {
    auto const x = numbers<T>(count, 5);
    std::uint64_t expected = 7;
    Host::add_hash(&expected, x.data(), count, 11);
    Array<T> const device(space, x, 1);
    Array<std::uint64_t> const hash(space, {7}, 0);
    space.add_hash(hash.data(), device.data(), count, 11);
    CHECK(hash.values()[0] == expected);
  }
}

TEST_CASE("cuda: hashes are the host's") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  check_hash<float>(space);
  check_hash<zero::bf16>(space);
  check_hash<double>(space);
}

template <class P, class G, class R>
void check_update(Cuda const& space, R const& rule) {
  constexpr std::size_t k = R::states.size();
  for (std::size_t const count : sizes) {
    for (std::size_t const offset : offsets) {
      auto master = numbers<float>(count, 4);
      auto const gradient = numbers<G>(count, 5);
      std::vector<P> parameter(count);
      std::vector<std::vector<float>> state(k, std::vector<float>(count));
      Array<float> const device_master(space, master, offset);
      Array<G> const device_gradient(space, gradient, offset);
      Array<P> const device_parameter(space, parameter, offset);
      std::vector<std::unique_ptr<Array<float>>> device_state;
      for (auto const& values : state) {
        device_state.push_back(std::make_unique<Array<float>>(space, values, offset));
      }
      std::int32_t step = 3;
      for (std::int32_t const skipped : {0, 1, 0}) {
        zero::StepTerms const terms{
            .step = step++, .learning_rate = 1e-2f, .gradient_scale = 0.25f, .skipped = skipped};
        Array<zero::StepTerms> const device_terms(space, {terms}, 0);
        zero::UpdateRates const rates{.learning_rate_scale = 0.5f};
        zero::UpdateArrays<float, P, G, float, k> here{
            .master = master.data(), .gradient = gradient.data(), .count = count};
        zero::UpdateArrays<float, P, G, float, k> there{
            .master = device_master.data(), .gradient = device_gradient.data(), .count = count};
        if constexpr (!std::is_same_v<P, float>) {
          here.parameter = parameter.data();
          there.parameter = device_parameter.data();
        }
        for (std::size_t s = 0; s != k; ++s) {
          here.state[s] = state[s].data();
          there.state[s] = device_state[s]->data();
        }
        space.update(rule, device_terms.data(), rates, there);
        Host::update(rule, &terms, rates, here);
        CHECK(same(device_master.values(), master));
        CHECK(same(device_parameter.values(), parameter));
        for (std::size_t s = 0; s != k; ++s) CHECK(same(device_state[s]->values(), state[s]));
      }
    }
  }
}

TEST_CASE("cuda: updates have the bits of a host that fuses, and a skipped one changes none") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  check_update<float, float>(space, zero::AdamW{});
  check_update<zero::bf16, zero::bf16>(space, zero::AdamW{});
  check_update<zero::fp16, zero::fp16>(space, zero::Lion{});
  check_update<float, float>(space, zero::PlainSgd{});
  check_update<float, float>(space, zero::Sgd{.nesterov = true, .dampening = 0.25f});
  check_update<float, float>(space, zero::Adagrad{.initial_accumulator_value = 0.5f});
  check_update<float, float>(space, zero::AmsGrad{});
  check_update<float, float>(space, zero::NAdam{.weight_decay = 0.1f});
  check_update<float, float>(space, zero::RmsProp<true, true>{.momentum = 0.5f});
}

TEST_CASE("cuda: ordered sums have the host's bits, scattered and in blocks") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  for (int const ranks : {1, 2, 5}) {
    for (std::size_t const count : sizes) {
      auto const all = numbers<zero::bf16>(count * static_cast<std::size_t>(ranks), 6);
      std::vector<void const*> inputs;
      for (int rank = 0; rank < ranks; ++rank) {
        inputs.push_back(all.data() + static_cast<std::size_t>(rank) * count);
      }
      std::vector<zero::bf16> expected(count);
      auto const sum = zero::kernel::sum_function(zero::DType::bf16, zero::DType::f32);
      sum(expected.data(), inputs.data(), 0, ranks, count, zero::kernel::Store::cached);
      Array<zero::bf16> const device(space, all, 0);
      Array<zero::bf16> const out(space, std::vector<zero::bf16>(count), 0);
      Array<zero::bf16> const other(space, std::vector<zero::bf16>(count), 1);
      zero::device::BufferList list;
      for (int rank = 0; rank < ranks; ++rank) {
        list.at[rank] = device.data() + static_cast<std::size_t>(rank) * count;
      }
      zero::device::SumTargets const both{.at = {out.data(), other.data()}, .count = 2};
      auto const dtype = zero::DType::bf16;
      auto const sum_on_device = [&](zero::device::SumTargets const& targets, auto const& sources) {
        return zero::device::try_sum_ranks(
            space.queue(), dtype, zero::DType::f32, targets, sources, ranks, 0, count);
      };
      CHECK(sum_on_device(both, list) == cudaSuccess);
      CHECK(same(out.values(), expected));
      CHECK(same(other.values(), expected));
      space.zero(out.data(), count * sizeof(zero::bf16));
      zero::device::BufferBlocks const blocks{.first = device.data(), .stride = count};
      zero::device::SumTargets const one{.at = {out.data()}};
      CHECK(sum_on_device(one, blocks) == cudaSuccess);
      CHECK(same(out.values(), expected));
    }
  }
}

TEST_CASE("cuda: gathers bring every rank's bytes, aligned or not, and leave alone what is there") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  for (int const ranks : {1, 2, 5}) {
    for (std::size_t const count : sizes) {
      for (std::size_t const offset : {0u, 1u, 4u}) {
        auto const n = static_cast<std::size_t>(ranks);
        auto const bytes = numbers<zero::bf16>(count * n, 7);
        // Every buffer but the last lies elsewhere; that one is where it belongs.
        std::vector<zero::bf16> there(count * n);
        std::copy(bytes.end() - static_cast<std::ptrdiff_t>(count),
                  bytes.end(),
                  there.end() - static_cast<std::ptrdiff_t>(count));
        Array<zero::bf16> const from(space, bytes, offset);
        Array<zero::bf16> const to(space, there, offset);
        zero::device::BufferList list;
        for (std::size_t rank = 0; rank < n; ++rank) list.at[rank] = from.data() + rank * count;
        list.at[n - 1] = to.data() + (n - 1) * count;
        CHECK(zero::device::try_gather_ranks(
                  space.queue(), to.data(), list, ranks, ranks / 2, count * sizeof(zero::bf16)) ==
              cudaSuccess);
        CHECK(same(to.values(), bytes));
      }
    }
  }
}

struct Write {
  int* to;
  int value;
  __host__ __device__ void operator()() const { *to = value; }
};

TEST_CASE("cuda: calls run once in order, and the current device stays what it was") {
  Stream const stream;
  Cuda const space(0, stream.handle);
  int before = -1;
  int after = -2;
  cudaGetDevice(&before);
  Array<int> const word(space, {0}, 0);
  space.call(Write{word.data(), 7});
  CHECK(word.values()[0] == 7);
  Array<int> const copied(space, {0}, 0);
  space.copy(copied.data(), word.data(), sizeof(int));
  CHECK(copied.values()[0] == 7);
  space.zero(word.data(), sizeof(int));
  CHECK(word.values()[0] == 0);
  cudaGetDevice(&after);
  CHECK(before == after);
}

}  // namespace
}  // namespace space_test
