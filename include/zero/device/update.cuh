/// @file
/// The update station on a device: unscale, clip, rule and cast in one pass.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/device/element.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/vector.hpp"
#include "zero/kernel/coded_element.hpp"
#include "zero/kernel/rounding.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Which arrays are aligned at the vectors of a cut. Bits of `Cut::apart` are in this order, since
/// the first array decides where vectors begin: states, which are the library's own, come first.
struct UpdateOrder {
  std::uint32_t apart;

  [[nodiscard]] __device__ bool state(std::size_t k) const { return (apart >> k & 1u) == 0; }
  [[nodiscard]] __device__ bool master(std::size_t K) const { return state(K); }
  [[nodiscard]] __device__ bool parameter(std::size_t K) const { return state(K + 1); }
  [[nodiscard]] __device__ bool gradient(std::size_t K) const { return state(K + 2); }
};

/// What an update reads of elements [at, at + width).
template <std::size_t width, class M, class P, class G, class S, std::size_t K>
struct UpdateInput {
  static constexpr std::size_t states = K == 0 ? 1 : K;
  // A coded master is a part of it, or is the parameter.
  static constexpr bool reads_parameter = kernel::CodedElement<M> && !std::same_as<M, P>;
  struct None {};

  __device__ void load(UpdateArrays<M, P, G, S, K> const& arrays,
                       std::size_t at,
                       UpdateOrder aligned) {
    master = device::load<width>(arrays.master, at, aligned.master(K));
    if constexpr (reads_parameter) {
      parameter = device::load<width>(arrays.parameter, at, aligned.parameter(K));
    }
    gradient = device::load<width>(arrays.gradient, at, aligned.gradient(K));
    for (std::size_t k = 0; k != K; ++k) {
      state[k] = device::load<width>(arrays.state[k], at, aligned.state(k));
    }
  }

  __device__ void store(UpdateArrays<M, P, G, S, K> const& arrays,
                        std::size_t at,
                        UpdateOrder aligned,
                        Vector<P, width> const& published) const {
    device::store<width>(arrays.master, at, aligned.master(K), master);
    for (std::size_t k = 0; k != K; ++k) {
      device::store<width>(arrays.state[k], at, aligned.state(k), state[k]);
    }
    if constexpr (!std::same_as<M, P>) {
      if (arrays.parameter != nullptr) {
        device::store<width>(arrays.parameter, at, aligned.parameter(K), published);
      }
    }
  }

  Vector<M, width> master;
  std::conditional_t<reads_parameter, Vector<P, width>, None> parameter;
  Vector<G, width> gradient;
  Vector<S, width> state[states];
};

/// Where elements take no random bits.
struct NoDraw {
  template <std::size_t count>
  __device__ void operator()(std::size_t, std::uint32_t (&)[count]) const {}
};

/// Updates what `input` was loaded from, but for the parameters, which are returned.
/// @param draw  draw(j, random) writes the random bits of element j: of its master, then its states
template <std::size_t width,
          class R,
          class M,
          class P,
          class G,
          class S,
          std::size_t K,
          class Draw = NoDraw>
inline __device__ Vector<P, width> update_vector(
    R const& rule,
    BasicStepScalars<kernel::RealOf<M, G, S>> const& scalars,
    kernel::RealOf<M, G, S> gradient_scale,
    UpdateInput<width, M, P, G, S, K>& input,
    Draw const& draw = {}) {
  constexpr std::size_t states = UpdateInput<width, M, P, G, S, K>::states;
  Vector<P, width> published{};
  if constexpr (UpdateInput<width, M, P, G, S, K>::reads_parameter) published = input.parameter;
#pragma unroll
  for (std::size_t j = 0; j < width; ++j) {
    S element[states];
    for (std::size_t k = 0; k < states; ++k) element[k] = input.state[k].values[j];
    M& master = input.master.values[j];
    P& parameter = published.values[j];
    G const gradient = input.gradient.values[j];
    if constexpr (kernel::CodedElement<M> || kernel::CodedElement<S>) {
      std::uint32_t random[states + 1] = {};
      draw(j, random);
      update_element(rule, scalars, gradient_scale, master, parameter, gradient, element, random);
    } else {
      update_element(rule, scalars, gradient_scale, master, parameter, gradient, element);
    }
    for (std::size_t k = 0; k < states; ++k) input.state[k].values[j] = element[k];
  }
  return published;
}

/// Calls body(order) in two ways, so that the usual one need not tell arrays apart.
template <class Body>
inline __device__ void with_order(Cut const& cut, Body const& body) {
  if (cut.apart == 0) {
    body(UpdateOrder{0});
  } else {
    body(UpdateOrder{cut.apart});
  }
}

/// Updates what is outside of vectors, an element by each thread.
/// @param update  update(single, at) returns the parameter
template <class M, class P, class G, class S, std::size_t K, class Update>
inline __device__ void update_singles(UpdateArrays<M, P, G, S, K> const& arrays,
                                      Cut const& cut,
                                      std::size_t width,
                                      Update const& update) {
  // Fewer than there are threads in the first block.
  std::size_t const inside = cut.vectors * width;
  if (std::size_t const i = grid_thread(); i < arrays.count - inside) {
    std::size_t const at = i < cut.head ? i : i + inside;
    UpdateInput<1, M, P, G, S, K> single{};
    single.load(arrays, at, {});
    single.store(arrays, at, {}, update(single, at));
  }
}

/// Vectors of each array that a thread updates, all of which it asks for at once.
inline constexpr unsigned update_vectors = 2;
/// And those that a block does.
inline constexpr unsigned update_tile = update_vectors * block_threads;

/// Not a cub::DeviceTransform: that stores through a zip of arrays in 4 bytes, and reads the
/// scalars for every element. The rule's scalars take double precision and divisions: they were
/// computed when the step was decided.
///
/// A block updates `update_vectors` times as many neighbouring vectors as it has threads, and ends.
template <std::size_t width, class R, class M, class P, class G, class S, std::size_t K>
ZERO_KERNEL update(R const rule,
                   StepTerms const* __restrict__ terms,
                   BasicStepScalars<kernel::RealOf<M, G, S>> const* __restrict__ computed,
                   UpdateArrays<M, P, G, S, K> const arrays,
                   Cut const cut) {
  std::size_t const tile = static_cast<std::size_t>(blockIdx.x) * update_tile;
  auto const vector = [&](unsigned v) { return tile + v * block_threads + threadIdx.x; };
  // The elements are on their way while the terms are.
  UpdateInput<width, M, P, G, S, K> inputs[update_vectors];
  with_order(cut, [&](UpdateOrder aligned) {
#pragma unroll
    for (unsigned v = 0; v < update_vectors; ++v) {
      if (vector(v) < cut.vectors) inputs[v].load(arrays, cut.head + vector(v) * width, aligned);
    }
  });
  // Or the compiler would ask for the terms before, and wait for them.
  __syncwarp();
  auto const gradient_scale = static_cast<kernel::RealOf<M, G, S>>(terms->gradient_scale);
  BasicStepScalars<kernel::RealOf<M, G, S>> const scalars = *computed;
  if (terms->skipped != 0) return;

#pragma unroll
  for (unsigned v = 0; v < update_vectors; ++v) {
    if (vector(v) >= cut.vectors) break;
    std::size_t const at = cut.head + vector(v) * width;
    auto const published = update_vector(rule, scalars, gradient_scale, inputs[v]);
    with_order(cut, [&](UpdateOrder aligned) { inputs[v].store(arrays, at, aligned, published); });
  }
  update_singles(arrays, cut, width, [&](auto& single, std::size_t) {
    return update_vector(rule, scalars, gradient_scale, single);
  });
}

/// Elements of a vector: the widest array is accessed in 16 bytes, the others in fewer.
template <class... T>
inline constexpr std::size_t width_of = access_bytes / (std::max)({sizeof(T)...});

/// Enqueues a kernel for all elements, if there are any.
/// @param launch  launch(cut) does
template <class R, class M, class P, class G, class S, std::size_t K, class Launch>
void enqueue_update(Queue const& queue,
                    UpdateArrays<M, P, G, S, K> const& arrays,
                    Cutter cutter,
                    Launch const& launch) {
  static_assert(K == R::states.size(),
                "zero: the number of state arrays is not that of the rule's states");
  static_assert(std::is_trivially_copyable_v<R>, "zero: a device gets rules as bytes");
  if (arrays.count == 0) return;
  for (std::size_t k = 0; k != K; ++k) cutter.meet(arrays.state[k]);
  cutter.meet(arrays.master).meet(arrays.parameter).meet(arrays.gradient);
  QueueScope const scope(queue);
  check(launch(cutter.cut(arrays.count)), "update");
}

}  // namespace kernels

/// Enqueues the update of `arrays.count` elements; nothing happens where `terms->skipped`. The
/// step's terms and the rule's scalars are read on the device, so that a host neither waits for
/// them nor need know them.
///
/// An element's bits are those of kernel::update on a host with a fused multiply-add, and so are
/// the shipped rules' scalars. A host without one rounds every product that `math::mul_add` adds:
/// each of these additions then differs by up to half a unit in the last place of the product, and
/// one of the sum. No flag of nvcc changes a bit but -ftz=true, a part of -use_fast_math: it
/// flushes subnormal numbers to zero, here and in the norm. Which NaN an element becomes is the
/// device's own.
/// @par Cost  one pass, in accesses of 16 bytes to the widest arrays; element by element only to
///            those that are not aligned where the first state is. A step that is skipped reads
///            everything, since that is under way before the device knows, and writes nothing
template <Rule R, class M, class P, class G, class S, std::size_t K>
void update(Queue const& queue,
            R const& rule,
            StepTerms const* terms,
            BasicStepScalars<kernel::RealOf<M, G, S>> const* scalars,
            UpdateArrays<M, P, G, S, K> const& arrays) {
  static_assert(!kernel::RandomElement<M> && !kernel::RandomElement<S>,
                "zero: what is rounded stochastically is updated in RandomUpdateArrays");
  constexpr std::size_t width = kernels::width_of<M, P, G, S>;
  kernels::enqueue_update<R>(queue, arrays, Cutter(width), [&](Cut const& cut) {
    return try_launch_tiles<kernels::update<width, R, M, P, G, S, K>>(
        queue, 1, cut.vectors, kernels::update_tile, rule, terms, scalars, arrays, cut);
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::device
