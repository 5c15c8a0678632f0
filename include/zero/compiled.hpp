/// @file
/// Kernels that units which share bodies share, too.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/kernel/norm.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/precision/fp32.hpp"
#include "zero/precision/mixed.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/sharded_optimizer.hpp"

#include <cstddef>
#include <cstdint>

#if ZERO_SHARES_BODIES
#if defined(ZERO_IMPLEMENTATION)
#define ZERO_INSTANTIATE template
#else
#define ZERO_INSTANTIATE extern template
#endif
#define ZERO_INSTANTIATE_KERNELS(T)                                                        \
  ZERO_INSTANTIATE void kernel::detail::sum_range<T, float, kernel::native, void const*>(  \
      T*, void const* const*, std::size_t, int, std::size_t, kernel::Store) noexcept;      \
  ZERO_INSTANTIATE void kernel::add_squares<T>(ExactSum&, T const*, std::size_t) noexcept; \
  ZERO_INSTANTIATE void kernel::add_squares<T>(                                            \
      T const*, std::size_t, std::uint64_t, double(&)[kernel::norm_lanes]) noexcept;

namespace zero::inline ZERO_NAMESPACE {

ZERO_INSTANTIATE_KERNELS(float)
ZERO_INSTANTIATE_KERNELS(bf16)
ZERO_INSTANTIATE_KERNELS(fp16)
ZERO_INSTANTIATE class detail::
    Meeting<detail::Rendezvous, detail::ThreadSlot, detail::ThreadFamily>;

}  // namespace zero::inline ZERO_NAMESPACE

#undef ZERO_INSTANTIATE_KERNELS
#undef ZERO_INSTANTIATE
#endif
