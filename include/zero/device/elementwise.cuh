/// @file
/// Conversions and additions between element types, array by array.
#pragma once

#include "zero/device/element.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/vector.hpp"

#include <algorithm>
#include <cstddef>

namespace zero::inline v0_1::device {

/// Elements of a vector of which the widest is accessed in 16 bytes, the others in fewer.
template <class... T>
inline constexpr std::size_t vector_width = access_bytes / std::max({sizeof(T)...});

namespace kernels {

/// out[i] = f(out[i], in[i]); with `reads` false, out[i] = f(T{}, in[i]).
template <bool reads, class F, class Out, class In>
ZERO_KERNEL transform(F const f, Out* out, In const* in, std::size_t count, Cut const cut) {
  constexpr std::size_t width = vector_width<Out, In>;
  std::size_t const thread = grid_thread();
  std::size_t const threads = grid_threads();
  for (std::size_t i = thread; i < cut.vectors; i += threads) {
    std::size_t const at = cut.head + i * width;
    Vector<In, width> const from = load<width>(in, at);
    Vector<Out, width> to{};
    if constexpr (reads) to = load<width>(out, at);
    for (std::size_t j = 0; j < width; ++j) to.values[j] = f(to.values[j], from.values[j]);
    store<width>(out, at, to);
  }
  std::size_t const inside = cut.vectors * width;
  for (std::size_t i = thread; i < count - inside; i += threads) {
    std::size_t const at = i < cut.head ? i : i + inside;
    out[at] = f(reads ? out[at] : Out{}, in[at]);
  }
}

template <class To, class From>
struct Convert {
  __device__ To operator()(To, From x) const { return convert_element<To>(x); }
};

template <class Sum, class From>
struct Add {
  __device__ Sum operator()(Sum sum, From x) const { return add_element(sum, x); }
};

}  // namespace kernels

namespace detail {

template <bool reads, class F, class Out, class In>
void transform(
    Queue const& queue, char const* what, F const& f, Out* out, In const* in, std::size_t count) {
  if (count == 0) return;
  constexpr std::size_t width = vector_width<Out, In>;
  Cut const cut = Cutter(width).meet(out).meet(in).cut(count);
  std::size_t const items = cut.vectors != 0 ? cut.vectors : count;
  launch_over(queue, what, items, kernels::transform<reads, F, Out, In>, f, out, in, count, cut);
}

}  // namespace detail

/// Enqueues out[i] = To(float(in[i])), rounded to nearest even, as kernel::convert does.
template <class To, class From>
void convert(Queue const& queue, To* out, From const* in, std::size_t count) {
  detail::transform<false>(queue, "convert", kernels::Convert<To, From>{}, out, in, count);
}

/// Enqueues out[i] = Sum(float(out[i]) + float(in[i])), rounded once, as kernel::add does.
template <class Sum, class From>
void add(Queue const& queue, Sum* out, From const* in, std::size_t count) {
  detail::transform<true>(queue, "add", kernels::Add<Sum, From>{}, out, in, count);
}

}  // namespace zero::inline v0_1::device
