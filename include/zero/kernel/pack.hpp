/// @file
/// The numeric type the host kernels run a rule on.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/isa.hpp"

#if defined(__CUDACC__)
#include "zero/kernel/plain_pack.hpp"
#else
#include "zero/kernel/double_pack.hpp"
#include "zero/kernel/vector_pack.hpp"
#endif

#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Several floats, which a rule cannot tell from one, and several doubles. The two kinds never
/// share a name: their Isa differ.
#if defined(__CUDACC__)
template <Isa I = native>
using Pack = PlainPack<I, float>;
/// Several doubles.
template <Isa I = native>
using WidePack = PlainPack<I, double>;
#else
template <Isa I = native>
using Pack = VectorPack<I>;
/// Several doubles.
template <Isa I = native>
using WidePack = DoublePack<I>;
#endif

/// The pack of floats, or of doubles.
template <Isa I, class Real>
using PackOf = std::conditional_t<std::is_same_v<Real, double>, WidePack<I>, Pack<I>>;

}  // namespace zero::inline ZERO_NAMESPACE::kernel
