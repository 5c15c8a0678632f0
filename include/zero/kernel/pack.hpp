/// @file
/// The numeric type the host kernels run a rule on.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/isa.hpp"

#if defined(__CUDACC__)
#include "zero/kernel/plain_pack.hpp"
#else
#include "zero/kernel/vector_pack.hpp"
#endif

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Several floats, which a rule cannot tell from one. The two kinds never share a name: their Isa
/// differ.
#if defined(__CUDACC__)
template <Isa I = native>
using Pack = PlainPack<I>;
#else
template <Isa I = native>
using Pack = VectorPack<I>;
#endif

}  // namespace zero::inline ZERO_NAMESPACE::kernel
