/// @file
/// The only header that asks which compiler it is compiled by. Nothing here changes a layout.
#pragma once

/// A file that does not exist. Compilers go on behind an error directive, but not without a file.
#define ZERO_STOP <zero stops here>

#if __cplusplus <= 201703L && !(defined(_MSVC_LANG) && _MSVC_LANG > 201703L)
#error "zero: needs C++20; compile with -std=c++20"
#include ZERO_STOP
#endif

#include "zero/base/flags.hpp"

/// Marks functions whose source serves the host and, under nvcc, the device.
#if defined(__CUDACC__)
#define ZERO_HOST_DEVICE __host__ __device__
#else
#define ZERO_HOST_DEVICE
#endif

/// Before a loop: device code has its body so many times. Compilers for the host decide themselves.
#if defined(__CUDA_ARCH__)
#define ZERO_PRAGMA(text) _Pragma(#text)
#define ZERO_UNROLL(times) ZERO_PRAGMA(unroll times)
#else
#define ZERO_UNROLL(times)
#endif

/// Code that runs once or never is compiled for size: it costs its users' compiler less.
#if defined(__GNUC__)
#define ZERO_COLD __attribute__((cold, noinline))
#else
#define ZERO_COLD
#endif

/// Inlining decides whether a kernel's body vectorises; here the decision is not the compiler's.
#if defined(__GNUC__)
#define ZERO_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ZERO_ALWAYS_INLINE inline
#endif

/// Whether zero::compiled was built with this translation unit's flags, whose name it defines as 1.
#if ZERO_IF(ZERO_JOIN(ZERO_COMPILED_, ZERO_NAMESPACE, , , , , , ), 1, 0) && !defined(__CUDACC__)
#define ZERO_TAKES_COMPILED 1
#else
#define ZERO_TAKES_COMPILED 0
#endif

/// Bodies that depend on no policy stand apart from their declarations, where this is 1. In headers
/// they are templates without parameters to choose, so that only those who call one compile it, and
/// what it instantiates; in zero::compiled they are ordinary functions.
#if !ZERO_TAKES_COMPILED || defined(ZERO_INSTANTIATE)
#define ZERO_BODIES 1
#else
#define ZERO_BODIES 0
#endif

#if ZERO_TAKES_COMPILED
#define ZERO_APART
#define ZERO_BODY
#else
/// Before a declaration whose body stands apart.
#define ZERO_APART template <class = void>
/// Before such a body.
#define ZERO_BODY template <class>
#endif
